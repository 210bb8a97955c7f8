// Drives the server's own page in a browser without a window, as somebody would who chats there.
//
// usage: node page.mjs CHROMIUM AXE_FOLDER BASE_URL KEY SPEECH_MODEL SOUND [PICTURE]
//
// Run by `cargo xtask browser`, which starts the server with a key, a model that chats, named demo, and one for speech. In
// front of it is a proxy here, under a path of its own: it passes everything on but answers that no small model gives
// (hostile ones, long ones, slow ones, calls of tools), which tests ask for by the first word of a message. Ends with an
// error at the first thing that is not as it should be; speeds are printed and not judged.
import { readFile, writeFile } from "node:fs/promises";
import { createServer, request } from "node:http";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";

import { Browser } from "./cdp.mjs";

const [chromium, axeFolder, base, key, speech, sound, picture] = process.argv.slice(2);
const PREFIX = "/tallow";
const upstream = new URL(base);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function check(what, holds, found) {
  if (!holds) {
    console.log(`FAILED ${what}: ${JSON.stringify(found)}`);
    process.exit(1);
  }
  console.log(`ok     ${what}`);
}

/** Holds a text against the file of it beside this one. Where they differ, what was found is left in a file. */
async function same(what, name, found) {
  const known = await readFile(new URL(name, import.meta.url), "utf8").catch(() => "");
  const left = join(tmpdir(), name);
  if (found !== known) await writeFile(left, found);
  check(`${what} (${name})`, found === known, `see ${left}`);
}

// Answers that are made up.

const LONG_LINE = "word ".repeat(200_000);
const HOSTILE = [
  '<img src=x onerror="window.hacked = 1"> <script>window.hacked = 2</script> <iframe src="javascript:window.hacked = 3"></iframe>',
  "[a](javascript:window.hacked=4) [b](JaVaScRiPt&colon;window.hacked=5) [c](java\tscript:window.hacked=6) <javascript:window.hacked=7>",
  "[d](data:text/html,<script>window.hacked=8</script>) [e](vbscript:x) [f](//evil.example/x) [g](file:///etc/passwd)",
  "![h](http://evil.example/pixel.png) ![i](javascript:window.hacked=9) <style>body { display: none }</style> <base href=//evil.example>",
  '[j](https://evil.example/" onmouseover="window.hacked=10) [k](<https://evil.example/?a="><script>window.hacked=11</script>>)',
  '```html" onload="window.hacked=12\n</code></pre><script>window.hacked = 13</script>\n```',
  "| <img src=x onerror=window.hacked=14> | <svg onload=window.hacked=15> |\n|---|---|\n| <b onclick=window.hacked=16>x</b> | &lt;script&gt; |",
  "<details open ontoggle=window.hacked=17> <math><mi xlink:href=javascript:window.hacked=18>x</mi></math> <form action=//evil.example><input autofocus onfocus=window.hacked=19>",
].join("\n\n");
const SLOW_PARSING = {
  stars: "*a **b ".repeat(20_000),
  brackets: "[".repeat(100_000),
  quotes: "> ".repeat(20_000) + "x",
  ticks: "`a``b```c".repeat(10_000),
  spaces: `# ${" ".repeat(500_000)}#x`,
  pipes: `${"|".repeat(50_000)}\n${"|-".repeat(50_000)}|`,
  lists: "- ".repeat(10_000),
  lines: "\n".repeat(300_000),
  nested: Array.from({ length: 300 }, (_, at) => `${" ".repeat(at)}- x`).join("\n"),
  underlines: "_".repeat(200_000),
  rule: "- ".repeat(9_000) + "x",
  code: "```js\n" + "x = '".repeat(40_000),
  links: "[a](b".repeat(4_000),
  addresses: "http://".repeat(40_000),
  tildes: "~~a".repeat(40_000),
};
const PARAGRAPH =
  "Some **bold** text with `code`, a [link](https://example.com) and _more_ of it, as models write.\n\n";
const CODE =
  '```rust\nfn main() {\n    println!("{}", 6 * 7); // the answer\n}\n```\n\n- one\n- two\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n';
const TALK = (PARAGRAPH + PARAGRAPH + CODE).repeat(40);
const CALLS = [
  { index: 0, id: "call_1", type: "function", function: { name: "weather", arguments: '{"city": ' } },
  { index: 0, function: { arguments: '"Zürich"}' } },
];

const cut = []; // Answers whose reader went away.

async function madeUp(kind, response) {
  let open = true;
  response.on("close", () => {
    open = false;
  });
  response.writeHead(200, { "content-type": "text/event-stream" });
  const send = (delta, finish_reason = null) =>
    open && response.write(`data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason }] })}\n\n`);
  const end = (reason = "stop") => {
    send({}, reason);
    const usage = { prompt_tokens: 7, completion_tokens: 9, prompt_tokens_details: { cached_tokens: 3 } };
    if (open) response.end(`data: ${JSON.stringify({ choices: [], usage })}\n\ndata: [DONE]\n\n`);
  };
  if (kind === "SLOW") {
    for (let n = 0; open && n < 3000; n++) {
      send({ content: `word ${n} ` });
      await pause(20);
    }
    cut.push(kind);
  } else if (kind === "HOSTILE") {
    send({ content: HOSTILE });
  } else if (kind === "LINE") {
    for (let at = 0; at < LONG_LINE.length; at += 50_000) {
      send({ content: LONG_LINE.slice(at, at + 50_000) });
      await pause(5);
    }
  } else if (kind === "FAST") {
    // 200 tokens a second, of four characters.
    const begun = performance.now();
    for (let n = 0; n < 1000 && open; n++) {
      send({ content: TALK.slice(n * 4, n * 4 + 4) });
      await pause(Math.max(0, begun + (n + 1) * 5 - performance.now()));
    }
  } else if (kind === "THINK") {
    send({ reasoning_content: "First I **think**." });
    send({ content: "Then I answer." });
  } else if (kind === "TOOL") {
    for (const call of CALLS) send({ tool_calls: [call] });
    return end("tool_calls");
  } else if (kind === "BREAK") {
    send({ content: "half an ans" });
    await pause(100);
    return response.destroy();
  } else if (kind === "ERROR") {
    if (open) response.end(`data: ${JSON.stringify({ error: { message: "the engine has failed" } })}\n\n`);
    return;
  } else {
    send({ content: PARAGRAPH + CODE });
  }
  end();
}

const KINDS = ["SLOW", "HOSTILE", "LINE", "FAST", "THINK", "TOOL", "BREAK", "ERROR", "MARKDOWN"];
const asked = []; // Bodies of requests for answers.

const proxy = createServer(async (from, response) => {
  const path = from.url.slice(PREFIX.length);
  if (!from.url.startsWith(`${PREFIX}/`)) return response.writeHead(404).end();
  const pieces = [];
  for await (const piece of from) pieces.push(piece);
  const body = Buffer.concat(pieces);
  if (path === "/v1/chat/completions" && from.headers.authorization === `Bearer ${key}`) {
    const parsed = JSON.parse(body);
    asked.push(parsed);
    const kind = parsed.messages.findLast((message) => message.role === "user").content.split(/\s/)[0];
    // A tool's result is answered by the model.
    if (KINDS.includes(kind) && parsed.messages.at(-1).role === "user") return madeUp(kind, response);
  }
  const headers = { ...from.headers, host: upstream.host };
  delete headers.origin;
  const to = request(
    { host: upstream.hostname, port: upstream.port, path, method: from.method, headers },
    (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    },
  );
  to.on("error", () => response.destroy());
  response.on("close", () => to.destroy());
  to.end(body);
});
await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
const origin = `http://127.0.0.1:${proxy.address().port}`;
const api = async (path, body) => {
  const headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
  return (
    await fetch(base + path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) })
  ).json();
};

const browser = new Browser(chromium, ["--force-device-scale-factor=1", "--window-size=1100,800"]);
const page = await browser.open();
await page.start();

const address = `${origin}${PREFIX}/`;

// What a person does.

const last = "document.querySelector('#log article:last-child')";
const text = () => page.value(`${last}.querySelector('.body > .text').innerText`);
const settled = () => page.until("document.querySelector('#stop').hidden", "the answer ends");
const click = (selector) => page.call((selector) => document.querySelector(selector).click(), selector);
const press = (label, of = last) =>
  page.value(`[...${of}.querySelectorAll('button')].find((b) => b.textContent === ${JSON.stringify(label)}).click()`);

async function say(words) {
  await page.call(() => document.querySelector("#prompt").focus());
  await page.type(words);
  await page.press("Enter");
  await page.until(`document.querySelectorAll('#log article').length > 1`);
}

async function reopen() {
  await page.go(address);
  await page.until("document.querySelector('#model').value === 'demo'", "the page is ready");
}

async function ask(words) {
  await say(words);
  await settled();
}

async function setting(values) {
  await click("#open-settings");
  await page.call((values) => {
    const form = document.querySelector("#settings form");
    for (const [name, value] of Object.entries(values)) form.elements[name].value = value;
    form.querySelector("button[value=save]").click();
  }, values);
  const kept = `JSON.parse(localStorage.getItem("tallow.settings") ?? "{}")`;
  await page.until(
    `Object.entries(${JSON.stringify(values)}).every(([name, value]) => ${kept}[name] === value)`,
    "settings are kept",
  );
}

const axe = await readFile(`${axeFolder}/axe.min.js`, "utf8");
async function accessible(what) {
  await page.value(`${axe}; 0`);
  const broken = await page.call(async () => {
    const { violations } = await axe.run(document);
    return violations.map(
      ({ id, nodes }) =>
        `${id}: ${nodes.map((node) => `${node.html.slice(0, 120)} ${node.any[0]?.message ?? ""}`).join("; ")}`,
    );
  });
  check(`${what}: contrast, names and roles`, broken.length === 0, broken);
}

const drop = (name, type, content) =>
  page.call(
    (name, type, content) => {
      const data = new DataTransfer();
      data.items.add(new File([Uint8Array.from(atob(content), (c) => c.charCodeAt(0))], name, { type }));
      document
        .querySelector("#chat")
        .dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    },
    name,
    type,
    Buffer.from(content).toString("base64"),
  );

const lastError = () => page.errors.splice(0);

// The key, models, and a chat.

await page.go(address);
await page.until("document.querySelector('#key-dialog').open", "the key is asked for");
check(
  "the key is asked for before models are named",
  (await page.value("document.querySelector('#model').options.length")) === 0,
);
await page.type("wrong");
await page.press("Enter");
await page.until("document.querySelector('#key-dialog').open", "a wrong key is asked for again");
await page.call(() => {
  document.querySelector("#key-dialog input").value = "";
  document.querySelector("#key-dialog input").focus();
});
await page.type(key);
await page.press("Enter");
await page.until("document.querySelector('#model').value === 'demo'", "models are listed");
check(
  "only models that chat can be chosen",
  !(await page.value("document.querySelector('#model').innerText")).includes(speech),
);
lastError(); // Two answers of 401.

await accessible("an empty chat");
await setting({ temperature: "0", max_tokens: "24", seed: "7" });
await ask("Once upon a time");
const messages = [{ role: "user", content: "Once upon a time" }];
const known = await api("/v1/chat/completions", { model: "demo", messages, temperature: 0, max_tokens: 24, seed: 7 });
const first = known.choices[0].message.content;
const plain = (words) => words.replace(/\s+/g, " ").trim();
check("a chat answers what the API does", plain(await text()) === plain(first), [
  await page.value(`${last}.outerHTML`),
  first,
]);
const figures = await page.value(`${last}.querySelector('.figures').textContent`);
check(
  "it tells tokens and speed",
  /^(Cut at the limit of tokens\. )?\d+ tokens(, [\d.]+ a second)?; first after [\d.]+ s; \d+ in the prompt/.test(
    figures,
  ),
  figures,
);

// Retry, edit, branches.

await press("Retry");
await settled();
const branch = () => page.value(`${last}.querySelector('.branches')?.textContent`);
check("another try is a branch beside the first", (await branch()) === "‹2 of 2›", await branch());
check("with the same answer for the same seed", plain(await text()) === plain(first), await text());
await page.value(`${last}.querySelector('.branches button').click()`);
check("the first is there still", (await branch()) === "‹1 of 2›", await branch());
await page.call(() => document.querySelector("#prompt").focus());
await page.press("ArrowUp");
await page.until("document.activeElement.closest('form.edit')", "the arrow up edits the last message");
await page.call(() => document.activeElement.select());
await page.type("The little dog");
await page.press("Enter");
await settled();
const user = "document.querySelector('#log article.user')";
check(
  "an edited message is a branch too",
  (await page.value(`${user}.querySelector('.branches').textContent`)) === "‹2 of 2›",
);
check(
  "the request has the edited text",
  asked.at(-1).messages.at(-1).content === "The little dog",
  asked.at(-1).messages,
);
check("and its answer is another", plain(await text()) !== plain(first));
await ask("And then?");
check(
  "a turn sends all that came before",
  asked
    .at(-1)
    .messages.map((m) => m.role)
    .join() === "user,assistant,user",
  asked.at(-1).messages,
);
check(
  "with the answer as it was",
  asked.at(-1).messages[1].content !== first && asked.at(-1).messages[0].content === "The little dog",
);

// Stop, failures.

await say("SLOW please");
await page.until(`${last}.innerText.includes('word 20')`, "the answer grows");
await page.press("Escape");
await settled();
check(
  "Escape stops an answer",
  (await page.value(`${last}.querySelector('.figures').textContent`)).startsWith("Stopped"),
);
for (let left = 100; !cut.length && left; left--) await pause(50);
check("and the server hears of it", cut.length === 1);
await say("SLOW again");
await page.until(`${last}.innerText.includes('word 5')`, "the answer grows");
await click("#stop");
await settled();
check(
  "the button does, too",
  (await page.value(`${last}.querySelector('.figures').textContent`)).startsWith("Stopped"),
);
const titles = () =>
  page.value("[...document.querySelectorAll('#conversations li > button:first-child')].map((b) => b.textContent)");
const open = (title) =>
  page.call(
    (title) => [...document.querySelectorAll("#conversations button")].find((b) => b.textContent === title).click(),
    title,
  );
await click("#new-chat");
await say("SLOW and left");
await page.until(`${last}.innerText.includes('word 5')`, "the answer grows");
await open("Once upon a time");
await page.until(`!document.querySelector('#log').innerText.includes('SLOW and left')`, "another conversation opens");
await open("SLOW and left");
const before = await text();
await page.until(
  `${last}.innerText.length > ${before.length}`,
  "an answer goes on when its conversation is left and opened again",
);
await page.value("document.querySelector('#conversations button[aria-label=\"Delete SLOW and left\"]').click()");
await page.until("document.querySelector('#sure').open", "deleting is asked about");
await page.value("document.querySelector('#sure button[value=yes]').click()");
await page.until(`document.querySelectorAll('#log article').length === 0`, "it is deleted");
await pause(300);
check(
  "a conversation that is deleted while it is answered stays away",
  !(await titles()).includes("SLOW and left"),
  await titles(),
);
await open("Once upon a time");
await ask("BREAK it");
check(
  "a lost connection is told, with what had come",
  (await page.value(`${last}.innerText`)).includes("half an ans") &&
    /lost|reached|error/i.test(await page.value(`${last}.querySelector('.error')?.textContent`)),
  await page.value(`${last}.innerText`),
);
await ask("ERROR now");
check(
  "an error in a stream is told",
  (await page.value(`${last}.querySelector('.error').textContent`)) === "the engine has failed",
);
await setting({ tools: '[{"type": "cat"}]' });
await ask("hello");
const refusal = await page.value(`${last}.querySelector('.error')?.textContent`);
check("a refusal is told in the server's words", refusal?.includes("tools"), refusal);
await setting({ tools: "" });
lastError();

// Thinking, tools, files.

await click("#new-chat");
await ask("THINK first");
check(
  "thinking is folded",
  await page.value(`(() => { const d = ${last}.querySelector('.thinking'); return !d.hidden && !d.open; })()`),
);
await page.value(`${last}.querySelector('.thinking').open = true`);
await page.until(`${last}.querySelector('.thinking strong')?.textContent === 'think'`, "it opens");
check(
  "and is not sent back",
  (await ask("THINK more"), !JSON.stringify(asked.at(-1).messages).includes("First I")),
  asked.at(-1).messages,
);
await setting({ tools: '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]' });
await ask("TOOL now");
check("tools are sent", asked.at(-1).tools?.[0].function.name === "weather");
check(
  "a call is shown",
  (await page.value(`${last}.querySelector('.call').innerText`)).includes("Zürich"),
  await page.value(`${last}.innerText`),
);
await accessible("a call of a tool");
await setting({ tools: "" });
await page.value(`${last}.querySelector('.call textarea').focus()`);
await page.type("It rains.");
await press("Send results");
await settled();
const [call, result] = asked.at(-1).messages.slice(-2);
check(
  "its result goes to the model",
  result.role === "tool" && result.content === "It rains." && result.tool_call_id === "call_1",
  result,
);
check("after the call", call.tool_calls?.[0].function.arguments === '{"city": "Zürich"}', call);
await drop("notes.txt", "text/plain", "Three ``` ticks\n");
await page.until("document.querySelector('#files li')", "a text is attached");
await ask("MARKDOWN of that");
check(
  "a text that is dropped is sent along",
  asked.at(-1).messages.at(-1).content.endsWith("notes.txt:\n````\nThree ``` ticks\n\n````"),
  asked.at(-1).messages.at(-1),
);
await drop("cat.png", "image/png", "no picture");
await page.until(
  "document.querySelector('#notice').textContent.includes('takes pictures')",
  "a picture is refused, with the reason",
);
await drop(basename(sound), "audio/ogg", await readFile(sound));
await page.until(
  "document.querySelector('#notice').textContent.includes('transcribed') || document.querySelector('#prompt').value",
  "sound is transcribed",
);
await page.until("!document.querySelector('#notice').textContent.includes('is transcribed')", "sound is transcribed");
const form = new FormData();
form.append("file", new Blob([await readFile(sound)]), basename(sound));
form.append("model", speech);
const heard = await (
  await fetch(`${base}/v1/audio/transcriptions`, {
    method: "POST",
    headers: { authorization: `Bearer ${key}` },
    body: form,
  })
).json();
check(
  "sound becomes the text that the API makes of it",
  (await page.value("document.querySelector('#prompt').value")) === heard.text.trim(),
  heard,
);
await page.call(() => {
  document.querySelector("#prompt").value = "";
});

// Answers that nobody should trust.

check("so far nothing went wrong in the page", lastError().length === 0, page.errors);
await click("#new-chat");
await ask("HOSTILE answer");
await pause(500);
const made = await page.call(() => {
  const log = document.querySelector("#log");
  const attributes = [...log.querySelectorAll("*")]
    .flatMap((e) => [...e.attributes].map((a) => a.name))
    .filter((name) => name.startsWith("on") || name === "style" || name === "src");
  const tags = [...log.querySelectorAll(".text *")].map((e) => e.localName);
  const links = [...log.querySelectorAll("a")].map((a) => a.href);
  return {
    hacked: window.hacked ?? null,
    attributes,
    links,
    tags: [...new Set(tags)].sort(),
    shown: log.innerText.includes("<img src=x onerror="),
  };
});
check("a hostile answer runs nothing", made.hacked === null && made.attributes.length === 0, made);
const harmless = "a button code div figcaption figure p pre span table tbody td th thead tr".split(" ");
check("and is but text", made.shown && made.tags.every((tag) => harmless.includes(tag)), made.tags);
check(
  "its links lead to the web alone",
  made.links.every((href) => /^https?:\/\//.test(href)),
  made.links,
);
const outside = () =>
  page.requests.filter(
    (address) => !address.startsWith(`${origin}${PREFIX}/`) && !/^(about|data|blob):/.test(address),
  );
check("and no one was told of it", outside().length === 0, outside());

// Also as long as what is taken apart at most.
const slow = Object.entries(SLOW_PARSING).flatMap(([name, text]) => [
  [name, text],
  [`${name}, 19,900 characters`, text.slice(0, 19_900)],
]);
for (const [name, hostile] of slow) {
  const ms = await page.call(async (hostile) => {
    const { Markdown } = await import("./page/markdown.js");
    const element = document.createElement("div");
    document.body.append(element);
    const begun = performance.now();
    new Markdown(element).show(hostile);
    element.getBoundingClientRect();
    const took = performance.now() - begun;
    element.remove();
    return took;
  }, hostile);
  check(`text made to be slow, ${name}: ${Math.round(ms)} ms`, ms < 30_000, ms);
}
const begun = Date.now();
await ask("LINE of a megabyte");
check(
  `a line of a megabyte is shown (${Date.now() - begun} ms)`,
  (await page.value(`${last}.querySelector('.body > .text').textContent.trim().length`)) === LONG_LINE.trim().length,
);

// Markdown: what is made of it, and streamed as whole.

const SAMPLE = `${CODE}# Title #\n\nA *b **c*** d_e_f __g__ ~~h~~ \`\` i\`j \`\` \\*k\\*\n***l***\n\n1. one\n   - two\n\n     three\n2. four\n\n> quote\ngoes on\n\n---\n\n- [x] done\n- [ ] to do\n\n~~~\nraw <b>\n~~~\n\n    indented\n\n<https://example.com/a_b> https://example.com/c(d). hello  \nworld\n\n| x |\n|:-:|\n| a\\|b |`;
const { whole, different } = await page.call(async (text) => {
  const { Markdown } = await import("./page/markdown.js");
  const of = () => {
    const element = document.createElement("div");
    return [element, new Markdown(element)];
  };
  const outline = (node) =>
    node.nodeType === 3
      ? JSON.stringify(node.data)
      : `${node.localName}(${[...node.childNodes]
          .filter((n) => n.data !== "")
          .map(outline)
          .join(" ")})`;
  const merge = (element) => {
    element.normalize();
    return outline(element);
  };
  const [one, markdown] = of();
  markdown.show(text);
  const whole = merge(one);
  const different = [];
  for (const size of [1, 2, 3, 7, 31]) {
    const [other, streamed] = of();
    for (let at = size; at < text.length; at += size) streamed.show(text.slice(0, at), false);
    streamed.show(text);
    if (merge(other) !== whole) different.push([size, merge(other)]);
  }
  return { whole, different };
}, SAMPLE);
check("Markdown that comes in pieces is as the whole", different.length === 0, { whole, different });
const lines = whole.replace(/ (?=(?:p|h\d|ul|ol|figure|blockquote|hr|div|li|tr|thead|tbody|table)\()/g, "\n") + "\n";
await same("Markdown becomes what it should", "page_markdown.txt", lines);

// Speed: frames while 200 tokens a second come in.

await click("#new-chat");
await say("FAST answer");
const frames = await page.call(async () => {
  const times = [];
  let before = performance.now();
  while (!document.querySelector("#stop").hidden) {
    await new Promise(requestAnimationFrame);
    times.push(performance.now() - before);
    before = performance.now();
  }
  return times.sort((a, b) => a - b);
});
const at = (part) => frames[Math.floor(frames.length * part)].toFixed(1);
const perSecond = frames.length / (frames.reduce((sum, ms) => sum + ms, 0) / 1000);
console.log(
  `figure 200 tokens a second: ${perSecond.toFixed(1)} frames a second; a frame takes ${at(0.5)} ms, p99 ${at(0.99)} ms`,
);
check("all of it is shown", (await text()).includes("println!"));

// What stays, and files of it.

await reopen();
await page.until("document.querySelectorAll('#conversations li').length >= 4", "conversations are kept");
check("the key, too", !(await page.value("document.querySelector('#key-dialog').open")));
const kept = await page.call(async () => {
  const { Store, Conversation } = await import("./page/conversation.js");
  const all = await (await Store.open()).all();
  const read = JSON.parse(JSON.stringify(all)).map(Conversation.imported);
  return {
    n: all.length,
    same: all.every((one, at) => read[at] && one.path().length === read[at].path().length),
    bad: Conversation.imported({
      id: "a",
      title: "b",
      messages: { x: { id: "x", role: "system", content: "", parent: "root" } },
    }),
  };
});
check("they can be exported and imported", kept.n >= 4 && kept.same && kept.bad === null, kept);
await page.call(() =>
  [...document.querySelectorAll("#conversations button")].find((b) => b.textContent.startsWith("Once upon")).click(),
);
await page.until("document.querySelectorAll('#log article').length > 2", "an old conversation opens");
await accessible("an old conversation");

// The second tab.

await click("#tab-server");
await page.until("document.querySelectorAll('#server tbody tr').length === 2", "models are listed");
await page.until(
  "document.querySelector('#server svg polyline').getAttribute('points').includes(' ')",
  "the curve grows",
);
const row = await page.value("document.querySelector('#server tbody tr').innerText");
check("it tells of each model", /^demo\s+loaded\s+0\s+0\s+[\d.]+ %/.test(row), row);
await accessible("the server's state");
await page.press("ArrowLeft");

// Colors, a phone, settings.

await click("#tab-chat");
const fits = () => page.value("document.documentElement.scrollWidth <= innerWidth");
check("a window needs no scrolling aside", await fits(), await page.value("document.documentElement.scrollWidth"));
await page.call(() =>
  [...document.querySelectorAll("#conversations button")].find((b) => b.textContent.startsWith("THINK")).click(),
);
for (const theme of ["dark", "light"]) {
  await page.send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: theme }] });
  await accessible(`${theme} colors`);
}
await click("#open-settings");
await accessible("the settings");
await click("#close-settings");
await page.send("Emulation.setDeviceMetricsOverride", {
  width: 360,
  height: 740,
  deviceScaleFactor: 1,
  mobile: true,
});
await pause(200);
check("a phone needs no scrolling aside", await fits(), await page.value("document.documentElement.scrollWidth"));
await click("#menu");
check("its menu opens", await page.value("document.querySelector('#history').getBoundingClientRect().width > 100"));
await accessible("a phone");
await page.send("Emulation.clearDeviceMetricsOverride");

// The whole page, as a screen reader has it.

await click("#new-chat");
const { nodes } = await page.send("Accessibility.getFullAXTree");
const seen = nodes.filter(
  (node) =>
    !node.ignored &&
    !["StaticText", "InlineTextBox", "none", "generic", "ListMarker", "listitem", "LabelText", "paragraph"].includes(
      node.role?.value,
    ),
);
const tree =
  seen
    .map((node) => `${node.role.value}: ${node.name?.value ?? ""}`)
    .filter((line) => !/^(button: (Delete )?(Once|SLOW|THINK|HOSTILE|FAST)|MenuListPopup|option)/.test(line))
    .join("\n") + "\n";
await same("the page has the parts that it should", "page_outline.txt", tree);

const unexpected = lastError();
check("nothing went wrong in the page", unexpected.length === 0, unexpected);
check("nothing was asked of others", outside().length === 0, outside());

if (picture) {
  await setting({ temperature: "", max_tokens: "", seed: "" });
  await page.send("Emulation.setDeviceMetricsOverride", {
    width: 1100,
    height: 720,
    deviceScaleFactor: 1,
    mobile: false,
  });
  const remove = () =>
    new Promise((resolve) =>
      Object.assign(indexedDB.deleteDatabase("tallow"), { onsuccess: resolve, onblocked: resolve }),
    );
  await page.call(remove);
  await reopen();
  await ask("Tell me about a clever fox.");
  await press("Retry");
  await settled();
  await ask("Now tell me about a little bear.");
  await page.call(() => document.activeElement.blur());
  const { data } = await page.send("Page.captureScreenshot", { format: "png" });
  await writeFile(picture, Buffer.from(data, "base64"));
}
await browser.close();
console.log("the page works");
process.exit(0);
