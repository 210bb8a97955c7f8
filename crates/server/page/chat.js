// The first tab: a conversation and what is written to it.
import { call, events, json } from "./api.js";
import { Conversation } from "./conversation.js";
import { byId, el, notice, short } from "./dom.js";
import { MessageView } from "./message.js";
import * as models from "./models.js";
import { fields, settings } from "./settings.js";

/** Most characters of a file that is attached as text. */
const MOST_OF_FILE = 2_000_000;

export class Chat {
  #store;
  #changed;
  #conversation = new Conversation();
  /** Views of messages by their ids. */
  #views = new Map();
  /** Conversations with an answer under way, and how it is stopped, by the conversation's id. */
  #running = new Map();
  /** Ids of conversations that were deleted. */
  #deleted = new Set();
  #files = [];
  #follows = true;
  #log = byId("log");
  #prompt = byId("prompt");

  /** `changed` is called when the list of conversations has changed. */
  constructor(store, changed) {
    this.#store = store;
    this.#changed = changed;
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    byId("stop").addEventListener("click", () => this.stop());
    byId("attach").addEventListener("change", (event) => {
      this.#attach(event.target.files);
      event.target.value = "";
    });
    this.#prompt.addEventListener("input", () => this.#fit());
    this.#prompt.addEventListener("keydown", (event) => this.#key(event));
    this.#log.addEventListener("scroll", () => {
      this.#follows = this.#log.scrollHeight - this.#log.scrollTop - this.#log.clientHeight < 40;
    });
    const pane = byId("chat");
    pane.addEventListener("dragover", (event) => event.preventDefault());
    pane.addEventListener("drop", (event) => {
      event.preventDefault();
      if (event.dataTransfer.files.length) this.#attach(event.dataTransfer.files);
    });
    this.#prompt.addEventListener("paste", (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this.#attach(event.clipboardData.files);
    });
    this.open(this.#conversation);
  }

  get conversation() {
    return this.#conversation;
  }

  open(conversation) {
    // One that is being answered is further than what is kept of it.
    this.#conversation = this.#running.get(conversation.id)?.conversation ?? conversation;
    this.#views.clear();
    this.#follows = true;
    this.#render();
    this.#buttons();
    this.#prompt.focus();
  }

  /** True if the conversation that is shown is being answered. */
  get isAnswering() {
    return this.#running.has(this.#conversation.id);
  }

  stop() {
    this.#running.get(this.#conversation.id)?.abort.abort();
  }

  /** Deletes a conversation, whose answer is stopped. */
  async delete(id) {
    this.#deleted.add(id);
    this.#running.get(id)?.abort.abort();
    await this.#store.remove(id);
  }

  // What is written.

  #key(event) {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      this.#send();
    } else if (event.key === "ArrowUp" && !this.#prompt.value) {
      const last = this.#conversation.path().findLast((message) => message.role === "user");
      if (last) this.#views.get(last.id)?.edit();
    }
  }

  #fit() {
    this.#prompt.style.height = "auto";
    this.#prompt.style.height = `${Math.min(this.#prompt.scrollHeight + 2, innerHeight / 3)}px`;
  }

  async #attach(files) {
    for (const file of files) {
      try {
        if (file.type.startsWith("audio/") || /\.(wav|flac|mp3|ogg|oga|opus|m4a|aac)$/i.test(file.name))
          await this.#transcribe(file);
        else if (/^(image|video)\//.test(file.type))
          notice(`${file.name}: no model of this server takes pictures in a chat`);
        else await this.#attachText(file);
      } catch (error) {
        notice(`${file.name}: ${error.message}`);
      }
    }
    this.#showFiles();
    this.#prompt.focus();
  }

  async #attachText(file) {
    if (file.size > MOST_OF_FILE) throw new Error("longer than 2 MB");
    const text = new TextDecoder("utf-8", { fatal: true });
    try {
      this.#files.push({ name: file.name, text: text.decode(await file.arrayBuffer()) });
    } catch {
      throw new Error("neither text nor sound");
    }
  }

  async #transcribe(file) {
    const model = models.speech();
    if (!model) throw new Error("no model of this server takes sound");
    const body = new FormData();
    body.append("file", file);
    body.append("model", model);
    notice(`${file.name} is transcribed`);
    const { text } = await json("v1/audio/transcriptions", { body });
    this.#prompt.value += (this.#prompt.value ? "\n" : "") + text.trim();
    notice("");
    this.#fit();
  }

  #showFiles() {
    const chip = (file) =>
      el(
        "li",
        {},
        file.name,
        el(
          "button",
          {
            type: "button",
            class: "plain",
            "aria-label": `Remove ${file.name}`,
            onclick: () => {
              this.#files = this.#files.filter((other) => other !== file);
              this.#showFiles();
            },
          },
          "×",
        ),
      );
    byId("files").replaceChildren(...this.#files.map(chip));
  }

  #send() {
    const content = this.#prompt.value;
    if ((!content.trim() && !this.#files.length) || this.isAnswering) return;
    const message = { role: "user", content };
    if (this.#files.length) message.files = this.#files;
    this.#prompt.value = "";
    this.#files = [];
    this.#showFiles();
    this.#fit();
    this.#answer(this.#conversation.add(this.#conversation.last, message).id);
  }

  // Answers.

  /** The request for an answer to a message. */
  #request(conversation, parent) {
    const messages = [];
    for (let at = conversation.messages[parent]; at; at = conversation.messages[at.parent])
      messages.unshift(forModel(at));
    if (settings.system.trim()) messages.unshift({ role: "system", content: settings.system });
    return { model: models.chosen(), messages, stream: true, stream_options: { include_usage: true }, ...fields() };
  }

  async #answer(parent) {
    const conversation = this.#conversation;
    const abort = new AbortController();
    const body = this.#request(conversation, parent);
    const message = conversation.add(parent, { role: "assistant", model: body.model });
    this.#running.set(conversation.id, { conversation, abort });
    this.#follows = true;
    this.#buttons();
    this.#render();
    this.#save(conversation);
    if (!models.isLoaded(body.model)) notice(`${body.model} is loaded first`);
    const watch = new Watch();
    try {
      const response = await call("v1/chat/completions", { body, signal: abort.signal });
      for await (const event of events(response)) {
        watch.take(event, message);
        this.#update(message);
      }
    } catch (error) {
      if (error.name === "AbortError") message.stopped = true;
      else message.error = error.message;
    }
    this.#running.delete(conversation.id);
    const figures = watch.figures();
    if (figures) message.figures = figures;
    conversation.updated = Date.now();
    this.#views.get(message.id)?.show();
    this.#buttons();
    this.#save(conversation);
    byId("notice").textContent = message.error ? "" : message.stopped ? "Stopped" : "The answer is complete";
    models.refresh(true);
  }

  async #save(conversation) {
    if (this.#deleted.has(conversation.id)) return;
    try {
      await this.#store.put(conversation);
    } catch (error) {
      notice(`the conversation could not be kept: ${error.message}`);
    }
    this.#changed();
  }

  /** Another answer to the same. */
  retry(message) {
    if (!this.isAnswering) this.#answer(message.parent);
  }

  /** Sends a message again, as it should have been. */
  resend(message, content) {
    const { role, files } = message;
    this.#answer(this.#conversation.add(message.parent, files ? { role, content, files } : { role, content }).id);
  }

  choose(message) {
    this.#conversation.choose(message);
    this.#render();
    this.#save(this.#conversation);
    this.#views.get(message.id)?.element.querySelector(".branches button")?.focus();
  }

  /** Sends the results of the tools that an answer called. */
  results(message, results) {
    if (this.isAnswering) return;
    let parent = message.id;
    for (const [at, content] of results.entries()) {
      parent = this.#conversation.add(parent, { role: "tool", content, call: message.calls[at].id }).id;
    }
    this.#answer(parent);
  }

  siblings(message) {
    return this.#conversation.siblings(message);
  }

  isRunning(message) {
    return this.isAnswering && this.#conversation.last === message.id;
  }

  // What is shown.

  #buttons() {
    byId("send").hidden = this.isAnswering;
    byId("stop").hidden = !this.isAnswering;
    this.#log.setAttribute("aria-busy", String(this.isAnswering));
  }

  #render() {
    const path = this.#conversation.path();
    const view = (message) => {
      const view = this.#views.get(message.id) ?? new MessageView(this, message);
      this.#views.set(message.id, view);
      view.show();
      return view.element;
    };
    this.#log.replaceChildren(...path.map(view));
    if (!path.length)
      this.#log.append(el("p", { class: "empty" }, "What you write and what is answered stays in this browser."));
    this.#scroll();
  }

  #due = new Set();
  /** Shows a message's text once a frame, however fast it comes. */
  #update(message) {
    if (!this.#due.size) {
      requestAnimationFrame(() => {
        const due = [...this.#due];
        this.#due.clear();
        for (const message of due) this.#views.get(message.id)?.grow();
        this.#scroll();
      });
    }
    this.#due.add(message);
  }

  #scroll() {
    if (this.#follows) this.#log.scrollTop = this.#log.scrollHeight;
  }
}

/** A message as a request has it. */
function forModel({ role, content, files, calls, call }) {
  if (role === "tool") return { role, content, tool_call_id: call };
  for (const file of files ?? []) {
    const fence = "`".repeat(Math.max(3, ...[...file.text.matchAll(/`+/g)].map(([run]) => run.length + 1)));
    content += `${content ? "\n\n" : ""}${file.name}:\n${fence}\n${file.text}\n${fence}`;
  }
  if (!calls?.length) return { role, content };
  const tool_calls = calls.map(({ id, name, arguments: given }) => ({
    id,
    type: "function",
    function: { name, arguments: given },
  }));
  return { role, content, tool_calls };
}

/** Takes in the events of an answer, and the time. */
class Watch {
  #begun = performance.now();
  #first;
  #last;
  #usage;

  take({ choices, usage }, message) {
    if (usage) this.#usage = usage;
    const delta = choices?.[0]?.delta;
    if (!delta) return;
    if (delta.reasoning_content) message.reasoning = (message.reasoning ?? "") + delta.reasoning_content;
    if (delta.content) message.content += delta.content;
    for (const call of delta.tool_calls ?? []) {
      message.calls ??= [];
      const calls = message.calls;
      calls[call.index] ??= { id: call.id ?? "", name: "", arguments: "" };
      calls[call.index].name += call.function?.name ?? "";
      calls[call.index].arguments += call.function?.arguments ?? "";
    }
    if (choices[0].finish_reason === "length") message.cut = true;
    this.#last = performance.now();
    if (delta.content || delta.reasoning_content || delta.tool_calls) this.#first ??= this.#last;
  }

  figures() {
    if (!this.#usage || this.#first === undefined) return null;
    const { prompt_tokens: prompt, completion_tokens: tokens, prompt_tokens_details: details } = this.#usage;
    const seconds = (this.#last - this.#first) / 1000;
    const speed = tokens > 1 && seconds > 0 ? `, ${short((tokens - 1) / seconds)} a second` : "";
    const cached = details?.cached_tokens ? ` (${details.cached_tokens} cached)` : "";
    return `${tokens} tokens${speed}; first after ${short((this.#first - this.#begun) / 1000)} s; ${prompt} in the prompt${cached}`;
  }
}
