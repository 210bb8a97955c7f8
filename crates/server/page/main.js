// The page: its tabs, the list of conversations, and what keys do everywhere.
import { Chat } from "./chat.js";
import { Conversation, Store } from "./conversation.js";
import { ask, byId, el, notice } from "./dom.js";
import * as models from "./models.js";
import * as settings from "./settings.js";
import { Status } from "./status.js";

settings.applyTheme();
const store = await Store.open();
const chat = new Chat(store, showConversations);
const status = new Status();
if (!store.keeps) notice("This browser keeps nothing: export what you need before you close the page.");

// Tabs.

const tabs = [...document.querySelectorAll("[role=tab]")];
function open(tab) {
  for (const other of tabs) {
    const isOpen = other === tab;
    other.setAttribute("aria-selected", String(isOpen));
    other.tabIndex = isOpen ? 0 : -1;
    byId(other.getAttribute("aria-controls")).hidden = !isOpen;
  }
  if (tab.id === "tab-server") status.show();
  else status.hide();
}
for (const [at, tab] of tabs.entries()) {
  tab.addEventListener("click", () => open(tab));
  tab.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const next = tabs[(at + 1) % tabs.length];
    open(next);
    next.focus();
  });
}

// Conversations.

async function showConversations() {
  const all = await store.all();
  const item = (conversation) => {
    const isOpen = conversation.id === chat.conversation.id;
    return el(
      "li",
      {},
      el(
        "button",
        {
          type: "button",
          class: "plain",
          "aria-current": isOpen ? "true" : null,
          onclick: () => {
            if (!isOpen) chat.open(conversation);
            menu(false);
            showConversations();
          },
        },
        conversation.title,
      ),
      el(
        "button",
        {
          type: "button",
          class: "plain",
          "aria-label": `Delete ${conversation.title}`,
          onclick: () => remove(conversation),
        },
        "×",
      ),
    );
  };
  byId("conversations").replaceChildren(...all.map(item));
}

function begin() {
  menu(false);
  chat.open(new Conversation());
  showConversations();
}

async function remove(conversation) {
  byId("sure-title").textContent = `Delete “${conversation.title}”?`;
  if ((await ask(byId("sure"))) !== "yes") return;
  await chat.delete(conversation.id);
  if (conversation.id === chat.conversation.id) begin();
  else showConversations();
}

function menu(isOpen) {
  byId("history").classList.toggle("open", isOpen);
  byId("menu").setAttribute("aria-expanded", String(isOpen));
}

byId("menu").addEventListener("click", () => menu(!byId("history").classList.contains("open")));
byId("new-chat").addEventListener("click", begin);

// Settings, and conversations as files.

byId("open-settings").addEventListener("click", async () => {
  if (await settings.edit()) models.refresh();
});

byId("export").addEventListener("click", async () => {
  const blob = new Blob([JSON.stringify({ tallow: 1, conversations: await store.all() }, null, 1)], {
    type: "application/json",
  });
  const address = URL.createObjectURL(blob);
  el("a", { href: address, download: "tallow-conversations.json" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
});

byId("import").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  event.target.value = "";
  try {
    const { conversations } = JSON.parse(await file.text());
    const read = conversations.map(Conversation.imported);
    if (read.includes(null)) throw new Error("not all of it are conversations");
    for (const conversation of read) await store.put(conversation);
    byId("settings").close("cancel");
    notice(`${read.length} conversations were imported`);
    showConversations();
  } catch (error) {
    byId("settings-error").textContent = `${file.name} is no file of conversations: ${error.message}`;
  }
});

// Keys.

document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    menu(false);
    chat.stop();
  } else if ((event.ctrlKey || event.metaKey) && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    begin();
  }
});

showConversations();
await models.refresh();
