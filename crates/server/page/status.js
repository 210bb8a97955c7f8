// The second tab: what the server does now, from `/metrics` and `/v1/models`.
import { call } from "./api.js";
import { byId, bytes, el, notice, short } from "./dom.js";
import * as models from "./models.js";

const EVERY = 1000;
/** Most points of a curve. */
const POINTS = 120;

/** Samples of a page of metrics: a list of `{ name, labels, value }`. */
export function samplesOf(text) {
  const samples = [];
  for (const [, name, list, value] of text.matchAll(/^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/gm)) {
    const labels = {};
    for (const [, label, quoted] of (list ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[label] = quoted.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    }
    samples.push({ name, labels, value: Number(value) });
  }
  return samples;
}

/** What changes of a model from one look to the next, by its name. */
function byModel(samples) {
  const found = new Map();
  for (const { name, labels, value } of samples) {
    if (labels.model_name === undefined) continue;
    const model = found.get(labels.model_name) ?? {};
    found.set(labels.model_name, model);
    // Those with further labels are added up.
    model[name] = (model[name] ?? 0) + (name.endsWith("_bucket") ? 0 : value);
  }
  return found;
}

const COLUMNS = [
  "Model",
  "State",
  "Running",
  "Waiting",
  "KV cache",
  "Prompt tokens/s",
  "Tokens/s",
  "Prefix hits",
  "First token",
  "Memory",
  "",
];

export class Status {
  #pane = byId("server");
  #facts = el("dl", { class: "facts" });
  #rows = el("tbody");
  #curve = el("div", { class: "curve" });
  #error = el("p", { role: "alert", class: "error" });
  #timer;
  #before;
  #speeds = [];
  #busy = false;

  constructor() {
    this.#pane.append(
      el("h2", {}, "What the server does now"),
      this.#error,
      this.#facts,
      this.#curve,
      el(
        "div",
        { class: "wide", tabindex: "0", role: "region", "aria-label": "Models" },
        el(
          "table",
          {},
          el(
            "thead",
            {},
            el("tr", {}, ...COLUMNS.map((name) => (name ? el("th", { scope: "col" }, name) : el("td")))),
          ),
          this.#rows,
        ),
      ),
    );
  }

  show() {
    this.#look();
    this.#timer ??= setInterval(() => {
      if (!document.hidden) this.#look();
    }, EVERY);
  }

  hide() {
    clearInterval(this.#timer);
    this.#timer = undefined;
    this.#before = undefined;
  }

  async #look() {
    if (this.#busy) return;
    this.#busy = true;
    try {
      const quiet = this.#before !== undefined;
      const [text, listed] = [await (await call("metrics", { quiet })).text(), await models.refresh(true)];
      this.#show(samplesOf(text), listed);
      this.#error.textContent = "";
    } catch (error) {
      this.#error.textContent = error.message;
    }
    this.#busy = false;
  }

  #show(samples, listed) {
    const now = {
      at: performance.now() / 1000,
      models: byModel(samples),
      process: new Map(samples.map(({ name, value }) => [name, value])),
    };
    const before = this.#before;
    const rate = (model, name) => {
      const [new_, old] = [now.models.get(model)?.[name], before?.models.get(model)?.[name]];
      return new_ === undefined || old === undefined ? NaN : Math.max(0, new_ - old) / (now.at - before.at);
    };
    let speed = 0;
    // Adapters and other names of a model have no metrics of their own.
    const primary = listed.filter((model) => model.root === model.id && !model.parent);
    const rows = primary.map((model) => {
      const at = now.models.get(model.id) ?? {};
      const tokens = rate(model.id, "vllm:generation_tokens_total");
      speed += tokens || 0;
      const [hits, queries] = [at["vllm:prefix_cache_hits_total"], at["vllm:prefix_cache_queries_total"]];
      const first = at["vllm:time_to_first_token_seconds_sum"] / at["vllm:time_to_first_token_seconds_count"];
      const cells = [
        model.status?.value ?? "loaded",
        short(at["vllm:num_requests_running"]),
        short(at["vllm:num_requests_waiting"]),
        at["vllm:kv_cache_usage_perc"] === undefined ? "–" : `${(at["vllm:kv_cache_usage_perc"] * 100).toFixed(1)} %`,
        short(rate(model.id, "vllm:prompt_tokens_total")),
        short(tokens),
        queries ? `${((hits / queries) * 100).toFixed(1)} %` : "–",
        Number.isFinite(first) ? `${short(first)} s` : "–",
        model.status?.memory ? bytes(model.status.memory) : "–",
      ];
      return el(
        "tr",
        {},
        el("th", { scope: "row", title: model.status?.error }, model.id),
        ...cells.map((text) => el("td", {}, text)),
        el("td", {}, this.#button(model)),
      );
    });
    // A button that has the focus keeps it.
    const focused = this.#rows.contains(document.activeElement)
      ? document.activeElement.getAttribute("aria-label")
      : null;
    this.#rows.replaceChildren(...rows);
    if (focused) this.#rows.querySelector(`button[aria-label="${CSS.escape(focused)}"]`)?.focus();
    this.#showFacts(now.process, before && { ...before, seconds: now.at - before.at }, samples);
    if (before) this.#speeds.push(speed);
    this.#speeds = this.#speeds.slice(-POINTS);
    this.#showCurve();
    this.#before = now;
  }

  #button(model) {
    if (!model.status) return null;
    const loads = model.status.value === "unloaded";
    if (!loads && model.status.value !== "loaded") return null;
    const label = loads ? "Load" : "Unload";
    const onclick = async (event) => {
      event.target.disabled = true;
      try {
        await call(loads ? "models/load" : "models/unload", { body: { model: model.id } });
      } catch (error) {
        notice(error.message);
        this.#error.textContent = error.message;
      }
    };
    return el("button", { type: "button", "aria-label": `${label} ${model.id}`, onclick }, label);
  }

  #showFacts(process, before, samples) {
    const build = samples.find((sample) => sample.name === "vllm:build_info")?.labels;
    const up = Date.now() / 1000 - process.get("process_start_time_seconds");
    const cpu = before
      ? (process.get("process_cpu_seconds_total") - before.process.get("process_cpu_seconds_total")) / before.seconds
      : NaN;
    const facts = [
      ["Version", build ? `${build.version} (${build.commit})` : "–"],
      ["Up", up >= 3600 ? `${short(up / 3600)} h` : `${short(up / 60)} min`],
      ["CPU", `${short(cpu)} cores`],
      ["Memory", bytes(process.get("process_resident_memory_bytes"))],
      ["Connections", short(process.get("vllm:connections"))],
    ];
    this.#facts.replaceChildren(
      ...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
    );
  }

  /** Tokens a second of the last two minutes. */
  #showCurve() {
    const svg = (tag, attributes, ...children) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
      element.append(...children);
      return element;
    };
    const most = Math.max(1, ...this.#speeds);
    const points = this.#speeds.map(
      (speed, at) => `${POINTS - this.#speeds.length + at},${(40 - (speed / most) * 38).toFixed(2)}`,
    );
    const now = this.#speeds.at(-1) ?? 0;
    const label = `${short(now)} tokens a second, at most ${short(Math.max(0, ...this.#speeds))} in the last two minutes`;
    const line = svg("polyline", { points: points.join(" "), fill: "none", "vector-effect": "non-scaling-stroke" });
    this.#curve.replaceChildren(
      svg(
        "svg",
        { viewBox: `0 0 ${POINTS} 40`, preserveAspectRatio: "none", role: "img", "aria-label": label },
        line,
      ),
      el("p", {}, label),
    );
  }
}
