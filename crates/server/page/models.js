// The models of the server, and the one that is chosen.
import { json } from "./api.js";
import { byId, el, notice } from "./dom.js";
import { keep, settings } from "./settings.js";

let models = [];
const select = byId("model");

const can = (capability) => (model) => model.capabilities.includes(capability);

/** Asks the server which models it has. */
export async function refresh(quiet = false) {
  let listed;
  try {
    listed = await json("v1/models", { quiet });
  } catch (error) {
    if (!quiet) notice(error.message);
    return models;
  }
  models = listed.data;
  const chats = models.filter(can("completion"));
  const options = chats.map((model) => {
    const state = model.status && model.status.value !== "loaded" ? ` (${model.status.value})` : "";
    return el("option", { value: model.id, title: model.status?.error }, model.id + state);
  });
  const value = select.value || settings.model;
  select.replaceChildren(...options);
  if (!options.length) select.append(el("option", { value: "" }, "no model that chats"));
  if (chats.some((model) => model.id === value)) select.value = value;
  select.disabled = chats.length < 2;
  return models;
}

/** The model that answers. */
export const chosen = () => select.value;

/** The first that makes text of speech, or nothing. */
export const speech = () => models.find(can("audio"))?.id;

/** True if a model is not there yet when it is asked something. */
export const isLoaded = (id) => (models.find((model) => model.id === id)?.status?.value ?? "loaded") === "loaded";

select.addEventListener("change", () => {
  settings.model = select.value;
  keep();
});
// Its state may have changed since.
select.addEventListener("focus", () => refresh(true));
