// A browser without a window, driven by the protocol of its developer tools over a pipe.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const PATIENCE = 60_000;

export class Browser {
  #process;
  #profile = mkdtempSync(join(tmpdir(), "browser-"));
  #waiting = new Map();
  #listeners = [];
  #next = 1;
  #rest = Buffer.alloc(0);

  constructor(program, options = []) {
    this.#process = spawn(
      program,
      [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--remote-debugging-pipe",
        `--user-data-dir=${this.#profile}`,
        ...options,
        "about:blank",
      ],
      { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] },
    );
    this.#process.stdio[4].on("data", (data) => this.#read(data));
    this.#process.stdio[3].on("error", () => {});
  }

  #read(data) {
    this.#rest = Buffer.concat([this.#rest, data]);
    for (let end; (end = this.#rest.indexOf(0)) >= 0;) {
      const message = JSON.parse(this.#rest.subarray(0, end).toString());
      this.#rest = this.#rest.subarray(end + 1);
      const waiting = this.#waiting.get(message.id);
      this.#waiting.delete(message.id);
      if (waiting) message.error ? waiting.reject(new Error(message.error.message)) : waiting.resolve(message.result);
      else for (const listener of this.#listeners) listener(message);
    }
  }

  send(method, params = {}, sessionId) {
    const id = this.#next++;
    this.#process.stdio[3].write(JSON.stringify({ id, method, params, sessionId }) + "\0");
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      setTimeout(() => reject(new Error(`${method}: no answer in ${PATIENCE / 1000} s`)), PATIENCE).unref();
    });
  }

  on(listener) {
    this.#listeners.push(listener);
  }

  async open() {
    const { targetId } = await this.send("Target.createTarget", { url: "about:blank" });
    const { sessionId } = await this.send("Target.attachToTarget", { targetId, flatten: true });
    return new Page(this, sessionId);
  }

  async close() {
    const ended = new Promise((resolve) => this.#process.once("exit", resolve));
    this.#process.kill("SIGKILL");
    await ended;
    // The browser's other processes end a little later, and write until they do.
    for (let left = 40; left > 0; left--) {
      try {
        rmSync(this.#profile, { recursive: true, force: true });
        break;
      } catch {
        await new Promise((resolve) => setTimeout(resolve, 250));
      }
    }
  }
}

export class Page {
  /** Addresses that were asked for, and what went wrong, as they came. */
  requests = [];
  errors = [];
  #browser;
  #session;

  constructor(browser, session) {
    this.#browser = browser;
    this.#session = session;
    browser.on(({ sessionId, method, params }) => {
      if (sessionId !== session) return;
      if (method === "Network.requestWillBeSent") this.requests.push(params.request.url);
      if (method === "Runtime.exceptionThrown")
        this.errors.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
      if (method === "Log.entryAdded" && params.entry.level === "error")
        this.errors.push(`${params.entry.text} ${params.entry.url ?? ""}`);
    });
  }

  send(method, params) {
    return this.#browser.send(method, params, this.#session);
  }

  async start() {
    for (const domain of ["Page", "Runtime", "Network", "Log", "Accessibility"]) await this.send(`${domain}.enable`);
  }

  async go(address) {
    await this.send("Page.navigate", { url: address });
    await this.until("document.readyState === 'complete'", "the page loads");
  }

  /** The value of an expression in the page, which may be a promise. */
  async value(expression) {
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", {
      expression,
      awaitPromise: true,
      returnByValue: true,
      userGesture: true,
    });
    if (exceptionDetails)
      throw new Error(
        `${expression.slice(0, 200)}: ${exceptionDetails.exception?.description ?? exceptionDetails.text}`,
      );
    return result.value;
  }

  /** The result of a function, called in the page. */
  call(work, ...values) {
    return this.value(`(${work})(${values.map((value) => JSON.stringify(value)).join(", ")})`);
  }

  async until(expression, what = expression, patience = PATIENCE) {
    for (const end = Date.now() + patience; ;) {
      if (await this.value(`Boolean(${expression})`)) return;
      if (Date.now() > end) throw new Error(`${what}: not so after ${patience / 1000} s`);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  async type(text) {
    await this.send("Input.insertText", { text });
  }

  async press(key, { shift = false, control = false } = {}) {
    const codes = { Enter: 13, Escape: 27, Tab: 9, ArrowUp: 38, ArrowLeft: 37, ArrowRight: 39 };
    const code = codes[key] ?? key.toUpperCase().charCodeAt(0);
    const modifiers = (shift ? 8 : 0) + (control ? 2 : 0);
    const event = {
      key,
      code: key.length === 1 ? `Key${key.toUpperCase()}` : key,
      windowsVirtualKeyCode: code,
      modifiers,
    };
    await this.send("Input.dispatchKeyEvent", {
      type: "keyDown",
      ...event,
      text: key === "Enter" ? "\r" : undefined,
    });
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", ...event });
  }
}
