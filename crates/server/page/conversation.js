// Conversations as trees of messages, and where they are kept: in this browser alone.

/** The parent of first messages. */
export const ROOT = "root";

const id = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(12)), (b) => b.toString(16).padStart(2, "0")).join("");

/**
 * A conversation. An edit or another try is a branch beside the old one; `chosen` says which is shown.
 *
 * A message has `role`, `content`, and maybe `reasoning`, `calls` (of tools), `call` (which a tool's result is for), `files`,
 * `figures`, `error`, `stopped`.
 */
export class Conversation {
  constructor(data = {}) {
    this.id = data.id ?? id();
    this.title = data.title ?? "New chat";
    this.updated = data.updated ?? Date.now();
    this.messages = data.messages ?? {};
    this.chosen = data.chosen ?? {};
  }

  add(parent, message) {
    const added = { id: id(), parent, content: "", ...message };
    this.messages[added.id] = added;
    this.chosen[parent] = added.id;
    this.updated = Date.now();
    if (parent === ROOT && message.role === "user" && this.title === "New chat") {
      this.title = (message.content.trim() || message.files?.[0]?.name || this.title)
        .replace(/\s+/g, " ")
        .slice(0, 60);
    }
    return added;
  }

  /** The messages beside one, and it, in the order in which they were added. */
  siblings(message) {
    return Object.values(this.messages).filter((other) => other.parent === message.parent);
  }

  choose(message) {
    this.chosen[message.parent] = message.id;
  }

  /** The messages that are shown, from the first to the last. */
  path() {
    const path = [];
    let at = this.messages[this.chosen[ROOT]];
    while (at && path.length < 100_000) {
      path.push(at);
      at = this.messages[this.chosen[at.id]];
    }
    return path;
  }

  get last() {
    return this.path().at(-1)?.id ?? ROOT;
  }

  /** A conversation from a file that somebody imports, or `null`. */
  static imported(data) {
    const isText = (value) => typeof value === "string";
    if (!data || !isText(data.id) || !isText(data.title) || typeof data.messages !== "object" || !data.messages)
      return null;
    const messages = {};
    for (const [key, message] of Object.entries(data.messages)) {
      const { role, content, parent } = message ?? {};
      if (
        message?.id !== key ||
        ![role, content, parent].every(isText) ||
        !["user", "assistant", "tool"].includes(role)
      )
        return null;
      if (parent !== ROOT && !Object.hasOwn(data.messages, parent)) return null;
      const calls = Array.isArray(message.calls) ? message.calls : undefined;
      if (calls?.some((call) => ![call?.id, call?.name, call?.arguments].every(isText))) return null;
      const files = Array.isArray(message.files) ? message.files : undefined;
      if (files?.some((file) => ![file?.name, file?.text].every(isText))) return null;
      const kept = { id: key, parent, role, content, calls, files };
      for (const name of ["reasoning", "call", "figures", "error"])
        if (isText(message[name])) kept[name] = message[name];
      messages[key] = kept;
    }
    const chosen = {};
    for (const [parent, child] of Object.entries(data.chosen ?? {}))
      if (messages[child]?.parent === parent) chosen[parent] = child;
    return new Conversation({
      id: data.id,
      title: data.title.slice(0, 200),
      updated: Number(data.updated) || Date.now(),
      messages,
      chosen,
    });
  }
}

/** Conversations in IndexedDB; in memory where a browser has none, as in some private windows. */
export class Store {
  #database;
  #memory = new Map();

  static async open() {
    const store = new Store();
    try {
      const request = indexedDB.open("tallow", 1);
      request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
      store.#database = await finished(request);
    } catch {
      store.#database = null;
    }
    return store;
  }

  get keeps() {
    return this.#database !== null;
  }

  #objects(mode) {
    return this.#database.transaction("conversations", mode).objectStore("conversations");
  }

  /** All of them, the latest first. */
  async all() {
    const all = this.keeps ? await finished(this.#objects("readonly").getAll()) : [...this.#memory.values()];
    return all.map((data) => new Conversation(data)).sort((a, b) => b.updated - a.updated);
  }

  async put(conversation) {
    if (this.keeps) await finished(this.#objects("readwrite").put({ ...conversation }));
    else this.#memory.set(conversation.id, conversation);
  }

  async remove(id) {
    if (this.keeps) await finished(this.#objects("readwrite").delete(id));
    else this.#memory.delete(id);
  }
}

function finished(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
