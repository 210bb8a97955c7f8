// Markdown as nodes of the page, safe by construction: texts become text nodes, and only what is made here becomes an
// element. HTML in a text is shown as it stands, images are shown as links, and links lead to http, https and mailto.
//
// Text comes in pieces while a model writes. `Markdown` keeps the nodes of blocks that are complete, and makes the last
// two anew: what follows may change those, as the second line of a table does.
import { el } from "./dom.js";
import { highlight } from "./highlight.js";

/** Texts longer than this are shown as they stand, and blocks of other blocks that are ten times as long. */
const LONG = 20_000;
/** Characters of such a block that are laid out together. */
const CHUNK = 4_000;
const DEEP = 8;

const FENCE = /^ {0,3}(`{3,}(?!.*`)|~{3,})[ \t]*([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|(\d{1,9})[.)])(?:([ \t]+)(?=\S)|[ \t]*$)/;
const DIVIDER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const BLANK = /^[ \t]*$/;

/** The lines of a text with their ends, so that they join to it again. */
function linesOf(text) {
  const lines = [];
  for (let at = 0; at < text.length;) {
    const end = text.indexOf("\n", at) + 1 || text.length;
    lines.push(text.slice(at, end));
    at = end;
  }
  return lines;
}

const bare = (line) => line.replace(/\r?\n$/, "");

function interrupts(line) {
  if (line.length > LONG) return false;
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
}

/** Splits a text into blocks. Each has the `source` that it was made from; together these are the text. */
export function blocksOf(text) {
  const blocks = [];
  const lines = linesOf(text);
  for (let at = 0; at < lines.length;) {
    const first = at;
    const block = blockAt(lines, at);
    at = block.end;
    // Blank lines belong to the block before them.
    while (at < lines.length && BLANK.test(bare(lines[at]))) at++;
    block.source = lines.slice(first, at).join("");
    blocks.push(block);
  }
  return blocks;
}

function blockAt(lines, at) {
  const line = bare(lines[at]);
  if (BLANK.test(line)) return { kind: "blank", end: at + 1 };
  // What such a line is takes too long to find out, and no one reads it.
  if (line.length > LONG) return { kind: "paragraph", text: line, end: at + 1 };
  const fence = FENCE.exec(line);
  if (fence) return codeAt(lines, at, fence);
  if (/^(?: {4}|\t)/.test(line)) return indentedAt(lines, at);
  const heading = HEADING.exec(line);
  if (heading)
    return {
      kind: "heading",
      level: heading[1].length,
      text: headingText(line.slice(heading[0].length)),
      end: at + 1,
    };
  if (RULE.test(line)) return { kind: "rule", end: at + 1 };
  if (QUOTE.test(line)) return quoteAt(lines, at);
  if (ITEM.test(line)) return listAt(lines, at);
  if (line.includes("|") && at + 1 < lines.length && DIVIDER.test(bare(lines[at + 1]))) {
    const table = tableAt(lines, at);
    if (table) return table;
  }
  let end = at + 1;
  while (end < lines.length && !BLANK.test(bare(lines[end])) && !interrupts(bare(lines[end]))) end++;
  return { kind: "paragraph", text: lines.slice(at, end).join("").trim(), end };
}

/** A heading's text, without the marks that may close it. */
function headingText(text) {
  text = text.trim();
  let end = text.length;
  while (text[end - 1] === "#") end--;
  return end === 0 || /[ \t]/.test(text[end - 1]) ? text.slice(0, end).trim() : text;
}

function codeAt(lines, at, [whole, marks, language]) {
  const indent = /^ */.exec(whole)[0].length;
  const close = new RegExp(`^ {0,3}${marks[0] === "`" ? "`" : "~"}{${marks.length},}[ \\t]*$`);
  let end = at + 1;
  while (end < lines.length && !close.test(bare(lines[end]))) end++;
  const code = lines
    .slice(at + 1, end)
    .map((line) => line.replace(new RegExp(`^ {0,${indent}}`), ""))
    .join("");
  const closed = end < lines.length;
  return { kind: "code", language, text: code.replace(/\n$/, ""), closed, end: closed ? end + 1 : end };
}

function indentedAt(lines, at) {
  let end = at + 1;
  while (end < lines.length && /^(?: {4}|\t)/.test(lines[end])) end++;
  const code = lines
    .slice(at, end)
    .map((line) => line.replace(/^(?: {4}|\t)/, ""))
    .join("");
  return { kind: "code", language: "", text: code.replace(/\n$/, ""), closed: true, end };
}

function quoteAt(lines, at) {
  let end = at;
  // A paragraph in it may go on without the mark.
  while (
    end < lines.length &&
    (QUOTE.test(lines[end]) || (!BLANK.test(bare(lines[end])) && !interrupts(bare(lines[end]))))
  )
    end++;
  return {
    kind: "quote",
    text: lines
      .slice(at, end)
      .map((line) => line.replace(QUOTE, ""))
      .join(""),
    end,
  };
}

function listAt(lines, at) {
  const ordered = ITEM.exec(bare(lines[at]))[3];
  const items = [];
  let loose = false;
  let indent = 0;
  let blanks = 0;
  for (; at < lines.length; at++) {
    const line = bare(lines[at]);
    const depth = /^ */.exec(line)[0].length;
    if (BLANK.test(line)) {
      blanks++;
      items.at(-1).push("\n");
      continue;
    }
    const item = ITEM.exec(line);
    if (items.length && depth >= indent) {
      items.at(-1).push(lines[at].slice(indent));
    } else if (item && (item[3] === undefined) === (ordered === undefined) && !RULE.test(line)) {
      // Code after a mark begins with its spaces.
      const gap = item[4] && item[4].length <= 4 ? item[4].length : 1;
      indent = item[1].length + item[2].length + gap;
      loose ||= blanks > 0 && items.length > 0;
      items.push([lines[at].slice(indent) || "\n"]);
    } else if (blanks || interrupts(line)) {
      break;
    } else {
      items.at(-1).push(lines[at]);
    }
    blanks = 0;
  }
  at -= blanks;
  return {
    kind: "list",
    start: ordered,
    loose,
    items: items.map((item) => item.join("").replace(/\n+$/, "\n")),
    end: at,
  };
}

function cellsOf(line) {
  const cells = [""];
  for (const [part] of bare(line)
    .trim()
    .replace(/^\|/, "")
    .replace(/(?<!\\)\|$/, "")
    .matchAll(/\\\||\||[^\\|]+|\\/g)) {
    if (part === "|") cells.push("");
    else cells[cells.length - 1] += part === "\\|" ? "|" : part;
  }
  return cells.map((cell) => cell.trim());
}

function tableAt(lines, at) {
  const head = cellsOf(lines[at]);
  const marks = cellsOf(lines[at + 1]);
  if (head.length !== marks.length) return null;
  const align = marks.map((mark) => (/^:.*:$/.test(mark) ? "center" : mark.endsWith(":") ? "right" : "left"));
  let end = at + 2;
  while (end < lines.length && !BLANK.test(bare(lines[end])) && !interrupts(bare(lines[end]))) end++;
  return { kind: "table", head, align, rows: lines.slice(at + 2, end).map(cellsOf), end };
}

// Within a block.

const ESCAPE = /\\([!-/:-@[-`{-~])/y;
const AUTOLINK = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const ADDRESS = /https?:\/\/[^\s<>"'`*|\\^{}[\]]{1,2000}/y;
const LINK =
  /!?\[((?:[^[\]\\\n]|\\.){0,1000})\]\(\s{0,4}<?((?:[^\s<>()\\]|\\.|\([^\s()<>]{0,500}\)){0,2000})>?(?:\s{1,4}(?:"[^"\n]{0,300}"|'[^'\n]{0,300}'))?\s{0,4}\)/y;
const PLAIN = /[^\\`<[!*_~h\n]+/y;
const MARKS = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "del" };
/** Most marks that wait for their other half. */
const OPEN = 64;

/** An address that a link may have, or `null`. */
export function safeAddress(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function linkTo(address, children) {
  const href = safeAddress(address);
  if (!href) return null;
  return el("a", { href, target: "_blank", rel: "noopener noreferrer nofollow", title: href }, ...children);
}

const isSpace = (c) => c === undefined || /\s/.test(c);
const isWord = (c) => c !== undefined && /[\p{L}\p{N}]/u.test(c);

/** The nodes of text within a block. */
export function inline(text, depth = 0) {
  const nodes = [];
  const open = [];
  const missing = new Set();
  let plain = "";
  const flush = () => {
    if (plain) nodes.push(document.createTextNode(plain));
    plain = "";
  };
  const put = (node) => {
    flush();
    nodes.push(node);
  };
  const match = (pattern, at) => {
    pattern.lastIndex = at;
    return pattern.exec(text);
  };
  for (let at = 0; at < text.length;) {
    const c = text[at];
    let found = match(PLAIN, at);
    if (found) {
      plain += found[0];
      at += found[0].length;
      continue;
    }
    if (c === "\n") {
      const hard = plain.endsWith("  ");
      plain = plain.trimEnd();
      if (hard) put(el("br"));
      else plain += "\n";
      at++;
    } else if ((found = match(ESCAPE, at))) {
      plain += found[1];
      at += 2;
    } else if (c === "`") {
      const marks = /`+/y;
      marks.lastIndex = at;
      const run = marks.exec(text)[0];
      const end = missing.has(run.length) ? -1 : closing(text, run, at + run.length);
      if (end < 0) {
        missing.add(run.length);
        plain += run;
        at += run.length;
      } else {
        const code = text.slice(at + run.length, end).replace(/\n/g, " ");
        put(el("code", {}, /^ .* $/.test(code) && code.trim() ? code.slice(1, -1) : code));
        at = end + run.length;
      }
    } else if (c === "<" && (found = match(AUTOLINK, at))) {
      put(linkTo(found[1], [found[1].replace(/^mailto:/, "")]) ?? found[0]);
      at += found[0].length;
    } else if ((c === "[" || c === "!") && (found = match(LINK, at))) {
      const image = c === "!";
      const label = image
        ? [`image: ${found[1] || found[2]}`]
        : depth < DEEP
          ? inline(found[1], depth + 1)
          : [found[1]];
      const link = linkTo(found[2].replace(ESCAPE, "$1"), label);
      if (link) put(link);
      else plain += found[0];
      at += found[0].length;
    } else if (c === "h" && !isWord(text[at - 1]) && (found = match(ADDRESS, at))) {
      let address = found[0].replace(/[.,:;!?]+$/, "");
      if (address.endsWith(")") && !address.includes("(")) address = address.slice(0, -1);
      put(linkTo(address, [address]) ?? address);
      at += address.length;
    } else if ("*_~".includes(c)) {
      const inner = open.findLast((other) => other.mark[0] === c);
      // Of three that end something, the first may belong to the inner one.
      const one = text[at + 1] !== c || (inner?.mark === c && text[at + 2] === c && !isSpace(text[at - 1]));
      const mark = one ? c : c + c;
      const [before, after] = [text[at - 1], text[at + mark.length]];
      const within = c === "_" && isWord(before) && isWord(after);
      flush();
      const opener =
        MARKS[mark] && !isSpace(before) && !within ? open.findLastIndex((other) => other.mark === mark) : -1;
      if (opener >= 0 && open[opener].at < nodes.length - 1) {
        const { at: first } = open[opener];
        const children = nodes.splice(first).slice(1);
        nodes.push(el(MARKS[mark], {}, ...children));
        open.length = opener;
      } else {
        if (MARKS[mark] && !isSpace(after) && !within && open.length < OPEN) open.push({ mark, at: nodes.length });
        // The mark itself, until its other half is found.
        nodes.push(document.createTextNode(mark));
      }
      at += mark.length;
    } else {
      plain += c;
      at++;
    }
  }
  flush();
  return nodes;
}

/** The place of the marks that end code within a line, or -1. */
function closing(text, run, from) {
  for (let at = text.indexOf(run, from); at >= 0;) {
    let end = at;
    while (text[end] === "`") end++;
    if (end - at === run.length) return at;
    at = text.indexOf(run, end);
  }
  return -1;
}

// Nodes of blocks.

function isLong(block) {
  if (block.kind === "code") return block.text.length > LONG;
  return block.source.length > (block.kind === "paragraph" || block.kind === "heading" ? LONG : 10 * LONG);
}

function chunks(text, from = 0) {
  const spans = [];
  for (let at = from; at < text.length; at += CHUNK)
    spans.push(el("span", { class: "chunk" }, text.slice(at, at + CHUNK)));
  return spans;
}

/** A text of any length as it stands. */
function long(text) {
  return el("div", { class: "long" }, ...chunks(text));
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => {
    button.textContent = "Copy";
  }, 2000);
}

function codeNode(block) {
  const code = el("code", {});
  if (block.text.length > LONG) code.append(...chunks(block.text));
  else if (block.closed) code.append(...highlight(block.text, block.language));
  else code.append(block.text);
  const button = el(
    "button",
    { type: "button", class: "plain", onclick: () => copy(code.textContent, button) },
    "Copy",
  );
  const label = block.language || "text";
  return el(
    "figure",
    { class: "code" },
    el("figcaption", {}, label, button),
    el("pre", { tabindex: "0", "aria-label": `Code, ${label}` }, code),
  );
}

function tableNode({ head, align, rows }) {
  const cell = (tag, text, at) => el(tag, { class: align[at] }, ...inline(text));
  const row = (cells) => el("tr", {}, ...head.map((_, at) => cell("td", cells[at] ?? "", at)));
  const table = el(
    "table",
    {},
    el("thead", {}, el("tr", {}, ...head.map((text, at) => cell("th", text, at)))),
    el("tbody", {}, ...rows.map(row)),
  );
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table" }, table);
}

function itemNode(text, loose, depth) {
  const task = /^\[([ xX])\][ \t]+/.exec(text);
  if (task) text = text.slice(task[0].length);
  const box =
    task &&
    el("input", {
      type: "checkbox",
      disabled: true,
      checked: task[1] !== " ",
      "aria-label": task[1] === " " ? "to do" : "done",
    });
  const blocks = blocksOf(text);
  loose ||= blocks.filter((block) => block.kind === "paragraph").length > 1;
  const children = blocks.flatMap((block) =>
    block.kind === "paragraph" && !loose && !isLong(block) ? inline(block.text) : [blockNode(block, depth + 1)],
  );
  return el("li", {}, box, ...children);
}

function blockNode(block, depth = 0) {
  if (block.kind === "code") return codeNode(block);
  if (isLong(block) || depth > DEEP) return long(block.source);
  switch (block.kind) {
    case "heading":
      // The page has a heading of its own.
      return el(`h${Math.min(block.level + 2, 6)}`, {}, ...inline(block.text));
    case "rule":
      return el("hr");
    case "quote":
      return el("blockquote", {}, ...blocksOf(block.text).map((inner) => blockNode(inner, depth + 1)));
    case "list":
      return el(
        block.start === undefined ? "ul" : "ol",
        { start: block.start },
        ...block.items.map((item) => itemNode(item, block.loose, depth)),
      );
    case "table":
      return tableNode(block);
    case "blank":
      return document.createTextNode("");
    default:
      return el("p", {}, ...inline(block.text));
  }
}

/** Keeps an element up to date with a text that grows. */
export class Markdown {
  #element;
  /** Blocks with their nodes, and where each begins. */
  #blocks = [];
  #text = "";

  constructor(element) {
    this.#element = element;
  }

  /** Shows a text; `complete` if nothing will follow. */
  show(text, complete = true) {
    if (!text.startsWith(this.#text)) {
      this.#blocks = [];
      this.#element.replaceChildren();
    }
    const kept = complete ? 0 : Math.max(0, this.#blocks.length - 2);
    let begin = this.#blocks[kept]?.begin ?? 0;
    const blocks = blocksOf(text.slice(begin));
    for (const [at, block] of blocks.entries()) {
      block.begin = begin;
      begin += block.source.length;
      this.#put(kept + at, block);
    }
    for (const old of this.#blocks.splice(kept + blocks.length)) old.node.remove();
    this.#text = text;
  }

  #put(at, block) {
    const old = this.#blocks[at];
    this.#blocks[at] = block;
    if (old && old.source === block.source && old.kind === block.kind && old.begin === block.begin) {
      block.node = old.node;
    } else if (old && grows(old, block)) {
      block.node = old.node;
      grow(old, block);
    } else {
      block.node = blockNode(block);
      if (old) old.node.replaceWith(block.node);
      else this.#element.append(block.node);
    }
  }
}

/** True if a block needs no more than text at its end. */
function grows(old, block) {
  if (old.kind !== block.kind || old.begin !== block.begin) return false;
  if (block.kind !== "code") return isLong(old) && isLong(block);
  return (
    old.language === block.language &&
    !old.closed &&
    isLong(old) === isLong(block) &&
    (isLong(block) || !block.closed)
  );
}

function grow(old, block) {
  const isCode = block.kind === "code";
  const [before, now] = isCode ? [old.text, block.text] : [old.source, block.source];
  const target = isCode ? block.node.querySelector("code") : block.node;
  if (isLong(block)) {
    const whole = Math.floor(before.length / CHUNK);
    while (target.childNodes.length > whole) target.lastChild.remove();
    target.append(...chunks(now, whole * CHUNK));
  } else if (target.firstChild && now.startsWith(before)) {
    target.firstChild.appendData(now.slice(before.length));
  } else {
    target.textContent = now;
  }
}
