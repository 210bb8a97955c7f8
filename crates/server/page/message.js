// A message of a conversation, as it is shown.
import { el, notice } from "./dom.js";
import { Markdown } from "./markdown.js";

const NAMES = { user: "You", assistant: "Answer", tool: "Result of a tool" };

/** What is seen of a message. */
export class MessageView {
  #chat;
  #message;
  #body = el("div", { class: "body" });
  #text = el("div", { class: "text" });
  #markdown = new Markdown(this.#text);
  #thought = el("div", { class: "text" });
  #thoughts = new Markdown(this.#thought);
  #thinking = el("details", { class: "thinking", hidden: true }, el("summary", {}, "Thinking"), this.#thought);
  #calls = el("div", { class: "calls" });
  #foot = el("footer");

  constructor(chat, message) {
    this.#chat = chat;
    this.#message = message;
    const name = NAMES[message.role];
    this.#body.append(this.#thinking, this.#text, this.#calls);
    // Text that nobody looks at is not rendered.
    this.#thinking.addEventListener("toggle", () => this.grow());
    this.element = el(
      "article",
      { class: message.role, "aria-label": message.model ? `${name}, ${message.model}` : name },
      this.#body,
      this.#foot,
    );
  }

  /** Shows text that has grown. */
  grow() {
    const message = this.#message;
    const complete = !this.#chat.isRunning(message);
    if (message.reasoning) {
      this.#thinking.hidden = false;
      if (this.#thinking.open) this.#thoughts.show(message.reasoning, complete);
    }
    if (message.role === "assistant") this.#markdown.show(message.content, complete);
    else this.#text.textContent = message.content;
    if (message.calls && !complete)
      this.#calls.replaceChildren(...message.calls.filter(Boolean).map((call) => this.#call(call)));
  }

  show() {
    const message = this.#message;
    const runs = this.#chat.isRunning(message);
    this.grow();
    if (!runs) this.#showCalls();
    const notes = [];
    if (message.files)
      notes.push(el("ul", { class: "files" }, ...message.files.map((file) => el("li", {}, file.name))));
    if (message.error) notes.push(el("p", { class: "error", role: "alert" }, message.error));
    const state = message.stopped ? "Stopped. " : message.cut ? "Cut at the limit of tokens. " : "";
    if (state || message.figures) notes.push(el("p", { class: "figures" }, state + (message.figures ?? "")));
    this.#foot.replaceChildren(...notes, runs ? el("p", { class: "figures" }, "…") : this.#actions());
  }

  #actions() {
    const message = this.#message;
    const actions = el("div", { class: "actions" });
    const siblings = this.#chat.siblings(message);
    const at = siblings.indexOf(message);
    const action = (label, onclick, disabled = false) =>
      el("button", { type: "button", class: "plain", onclick, disabled }, label);
    if (siblings.length > 1) {
      const go = (label, mark, to) =>
        el(
          "button",
          {
            type: "button",
            class: "plain",
            "aria-label": label,
            disabled: !siblings[to],
            onclick: () => this.#chat.choose(siblings[to]),
          },
          mark,
        );
      actions.append(
        el(
          "span",
          { class: "branches", role: "group", "aria-label": "Branches" },
          go("The branch before", "‹", at - 1),
          `${at + 1} of ${siblings.length}`,
          go("The next branch", "›", at + 1),
        ),
      );
    }
    if (message.role === "user") actions.append(action("Edit", () => this.edit()));
    if (message.role === "assistant") actions.append(action("Retry", () => this.#chat.retry(message)));
    const copy = action("Copy", async () => {
      try {
        await navigator.clipboard.writeText(message.content);
        copy.textContent = "Copied";
      } catch {
        copy.textContent = "Not allowed";
      }
    });
    actions.append(copy);
    return actions;
  }

  edit() {
    const text = el("textarea", { "aria-label": "The message, edited", rows: "4" });
    text.value = this.#message.content;
    const done = () => {
      form.replaceWith(this.#text);
      this.show();
    };
    const form = el(
      "form",
      {
        class: "edit",
        onsubmit: (event) => {
          event.preventDefault();
          if (this.#chat.isAnswering) return notice("An answer is under way: stop it first");
          done();
          if (text.value.trim()) this.#chat.resend(this.#message, text.value);
        },
        onkeydown: (event) => {
          if (event.key === "Escape") {
            event.stopPropagation();
            done();
          }
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            form.requestSubmit();
          }
        },
      },
      text,
      el(
        "div",
        { class: "buttons" },
        el("button", { type: "submit", class: "main" }, "Send"),
        el("button", { type: "button", onclick: done }, "Cancel"),
      ),
    );
    this.#text.replaceWith(form);
    this.#foot.replaceChildren();
    text.focus();
  }

  #call(call) {
    let given = call.arguments;
    try {
      given = JSON.stringify(JSON.parse(given), null, 2);
    } catch {
      // It is shown as far as it has come.
    }
    return el(
      "div",
      { class: "call" },
      el("p", {}, "Calls ", el("code", {}, call.name)),
      el("pre", { tabindex: "0", "aria-label": `Arguments of ${call.name}` }, given),
    );
  }

  #showCalls() {
    const { calls, id } = this.#message;
    if (!calls?.length) return;
    const shown = calls.map((call) => this.#call(call));
    const isLast = this.#chat.conversation.last === id;
    if (isLast) {
      const inputs = calls.map((call) =>
        el("textarea", { "aria-label": `Result of ${call.name}`, placeholder: `Result of ${call.name}`, rows: "2" }),
      );
      for (const [at, input] of inputs.entries()) shown[at].append(input);
      shown.push(
        el(
          "button",
          {
            type: "button",
            onclick: () =>
              this.#chat.results(
                this.#message,
                inputs.map((input) => input.value),
              ),
          },
          "Send results",
        ),
      );
    }
    this.#calls.replaceChildren(...shown);
  }
}
