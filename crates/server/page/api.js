// Requests to the server. Addresses are relative to the page, so that it may stand behind a proxy under any path.
import { ask, byId } from "./dom.js";

const KEY = "tallow.key";

export const key = {
  get: () => localStorage.getItem(KEY) ?? "",
  set: (value) => (value ? localStorage.setItem(KEY, value) : localStorage.removeItem(KEY)),
};

/** An answer that is an error: `status`, and the server's message. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function messageOf(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text.slice(0, 500) || response.statusText;
  }
}

let asked;
/** Asks for the key, once for all requests that lack it. */
function askForKey() {
  const dialog = byId("key-dialog");
  asked ??= ask(dialog).then((value) => {
    asked = undefined;
    const given = dialog.querySelector("input").value.trim();
    if (value !== "save" || !given) return false;
    key.set(given);
    return true;
  });
  return asked;
}

/** Sends a request; a body that is no form is sent as JSON. */
export async function call(path, { body, method = body ? "POST" : "GET", signal, quiet = false } = {}) {
  for (;;) {
    const headers = {};
    if (key.get()) headers.authorization = `Bearer ${key.get()}`;
    const isForm = body instanceof FormData;
    if (body && !isForm) headers["content-type"] = "application/json";
    const sent = body && !isForm ? JSON.stringify(body) : body;
    let response;
    try {
      response = await fetch(new URL(path, document.baseURI), { method, headers, body: sent, signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "the server cannot be reached");
    }
    if (response.ok) return response;
    if (response.status === 401 && !quiet && (await askForKey())) continue;
    throw new ApiError(response.status, await messageOf(response));
  }
}

export const json = async (path, options) => (await call(path, options)).json();

/** The events of a stream, parsed. An error in it is thrown. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new ApiError(0, "the connection was lost");
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new ApiError(0, event.error.message);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
