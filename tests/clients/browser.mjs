// Drives a server with OpenAI's own JavaScript client from web pages, in a browser without a window.
//
// usage: node browser.mjs CHROMIUM OPENAI_FOLDER BASE_URL KEY PORT
//
// Run by `cargo xtask browser`, which starts the server and installs the client. Pages are served here, on PORT, under
// several names that the browser is told to find on this machine: one that the server was told to allow, one that is
// local, and one that is neither. Ends with an error at the first thing that is not as it should be.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join, normalize } from "node:path";

const [chromium, folder, base, key, port] = process.argv.slice(2);
const PATIENCE = 120_000;

// What each page does. A browser gives a script no more of a request that it blocks than that it failed.
const PAGE = `<!doctype html><meta charset="utf-8"><title>test</title>
<script type="importmap">{"imports": {"#x509-transport-state": "/openai/internal/auth/x509-transport-state.mjs"}}</script>
<script type="module">
import OpenAI from "/openai/index.mjs";
const base = ${JSON.stringify(base)}, key = ${JSON.stringify(key)};
const client = new OpenAI({ baseURL: base + "/v1", apiKey: key, dangerouslyAllowBrowser: true, maxRetries: 0 });
const messages = [{ role: "user", content: "Once upon a time" }];
const body = { model: "demo", messages, max_tokens: 12, seed: 7, temperature: 0 };
const tests = {
  models: async () => (await client.models.list()).data[0].id,
  chat: async () => (await client.chat.completions.create(body)).choices[0].message.content,
  stream: async () => {
    let text = "";
    for await (const chunk of await client.chat.completions.create({ ...body, stream: true })) {
      text += chunk.choices[0]?.delta?.content ?? "";
    }
    return text;
  },
  error: async () => {
    try {
      return await client.chat.completions.create({ ...body, temperature: 99 });
    } catch (e) {
      if (e.status !== 400) throw e;
      return { status: e.status, param: e.param, named: Boolean(e.requestID) };
    }
  },
  plain: async () => {
    // What a page can send without asking first; it cannot read the answer.
    const sent = { method: "POST", mode: "no-cors", body: JSON.stringify(body) };
    return (await fetch(base + "/v1/chat/completions", sent)).type;
  },
};
const result = { origin: location.origin };
for (const [name, test] of Object.entries(tests)) {
  try {
    result[name] = { value: await test() };
  } catch (e) {
    result[name] = { failed: e.constructor.name + ": " + e.message };
  }
}
await fetch("/result", { method: "POST", body: JSON.stringify(result) });
</script>`;

let arrived;
const server = createServer(async (request, response) => {
  try {
    if (request.method === "POST") {
      let text = "";
      for await (const piece of request) text += piece;
      response.end();
      arrived?.(JSON.parse(text));
    } else if (request.url === "/") {
      response.writeHead(200, { "content-type": "text/html" }).end(PAGE);
    } else if (request.url.startsWith("/openai/") && request.url === normalize(request.url)) {
      const file = await readFile(join(folder, request.url.slice("/openai/".length)));
      response.writeHead(200, { "content-type": "text/javascript" }).end(file);
    } else {
      response.writeHead(404).end();
    }
  } catch {
    response.writeHead(404).end();
  }
});

// Opens a page and gives what it found.
async function visit(origin) {
  const profile = mkdtempSync(join(tmpdir(), "browser-"));
  const found = new Promise((resolve, reject) => {
    arrived = resolve;
    setTimeout(() => reject(new Error(`${origin}: nothing came of the page in ${PATIENCE / 1000} s`)), PATIENCE).unref();
  });
  const browser = spawn(chromium, [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", `--user-data-dir=${profile}`,
    "--host-resolver-rules=MAP *.example 127.0.0.1", `${origin}/`,
  ], { stdio: "ignore" });
  const gone = new Promise((_, reject) => browser.once("error", reject));
  try {
    return await Promise.race([found, gone]);
  } finally {
    const ended = new Promise((resolve) => browser.once("exit", resolve));
    browser.kill("SIGKILL");
    await ended;
    // The browser's other processes end a little later, and write until they do.
    for (let left = 40; left > 0; left--) {
      try {
        rmSync(profile, { recursive: true, force: true });
        break;
      } catch {
        await new Promise((resolve) => setTimeout(resolve, 250));
      }
    }
  }
}

// Answers that the server has finished, of all requests.
async function answered() {
  const page = await (await fetch(`${base}/metrics`, { headers: { authorization: `Bearer ${key}` } })).text();
  const lines = page.split("\n").filter((line) => line.startsWith("vllm:request_success_total{"));
  return lines.reduce((sum, line) => sum + Number(line.split(" ").pop()), 0);
}

function check(what, holds, found) {
  if (!holds) {
    console.log(`FAILED ${what}: ${JSON.stringify(found)}`);
    process.exit(1);
  }
  console.log(`ok     ${what}`);
}

await new Promise((resolve) => server.listen(Number(port), "127.0.0.1", resolve));
for (const [origin, why] of [[`http://chat.example:${port}`, "allowed"], [`http://localhost:${port}`, "local"]]) {
  const page = await visit(origin);
  check(`${origin} (${why}): the page is what it should be`, page.origin === origin, page);
  check(`${origin}: lists models`, page.models.value === "demo", page.models);
  check(`${origin}: chats`, page.chat.value?.length > 10, page.chat);
  check(`${origin}: streams the same`, page.stream.value === page.chat.value, page.stream);
  const { status, param, named } = page.error.value ?? {};
  check(`${origin}: reads errors with the request's id`, status === 400 && param === "temperature" && named, page.error);
}
const before = await answered();
check("answers are counted", before >= 4, before);
const foreign = `http://evil.example:${port}`;
const page = await visit(foreign);
check(`${foreign} (not allowed): the page is what it should be`, page.origin === foreign, page);
for (const test of ["models", "chat", "stream", "error"]) {
  check(`${foreign}: cannot use the client (${test})`, page[test].failed?.startsWith("APIConnectionError"), page[test]);
}
check(`${foreign}: cannot read what it sends without asking`, page.plain.value === "opaque", page.plain);
check(`${foreign}: had nothing computed`, (await answered()) === before, await answered());
console.log("the JavaScript client works from allowed pages, and from no others");
process.exit(0);
