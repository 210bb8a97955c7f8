// Settings, kept in this browser, and their dialog.
import { key } from "./api.js";
import { ask, byId } from "./dom.js";

const KEPT = "tallow.settings";
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const TEXTS = ["system", "tools", "thinking", "theme", "model"];

export const settings = Object.fromEntries([...NUMBERS, ...TEXTS].map((name) => [name, ""]));
try {
  const kept = JSON.parse(localStorage.getItem(KEPT)) ?? {};
  for (const name in settings) if (typeof kept[name] === "string") settings[name] = kept[name];
} catch {
  // What cannot be read is as if nothing had been kept.
}

export function keep() {
  localStorage.setItem(KEPT, JSON.stringify(settings));
}

export function applyTheme() {
  if (settings.theme) document.documentElement.dataset.theme = settings.theme;
  else delete document.documentElement.dataset.theme;
}

/** The fields of a request that follow from them. */
export function fields() {
  const fields = {};
  for (const name of NUMBERS) if (settings[name] !== "") fields[name] = Number(settings[name]);
  if (settings.thinking) fields.chat_template_kwargs = { enable_thinking: settings.thinking === "true" };
  if (settings.tools.trim()) fields.tools = JSON.parse(settings.tools);
  return fields;
}

/** What is wrong with a list of tools, or nothing. */
function wrongTools(text) {
  if (!text.trim()) return "";
  try {
    return Array.isArray(JSON.parse(text)) ? "" : "Tools should be a list.";
  } catch (error) {
    return `Tools: ${error.message}`;
  }
}

/** Opens the dialog; true if something may have changed. */
export async function edit() {
  const dialog = byId("settings");
  const form = dialog.querySelector("form");
  for (const name in settings) if (form.elements[name]) form.elements[name].value = settings[name];
  form.elements.key.value = key.get();
  byId("settings-error").textContent = "";
  form.onsubmit = (event) => {
    const wrong = wrongTools(form.elements.tools.value);
    byId("settings-error").textContent = wrong;
    if (wrong) event.preventDefault();
  };
  byId("close-settings").onclick = () => dialog.close("cancel");
  if ((await ask(dialog)) !== "save") return false;
  for (const name in settings) if (form.elements[name]) settings[name] = form.elements[name].value;
  key.set(form.elements.key.value.trim());
  keep();
  applyTheme();
  return true;
}
