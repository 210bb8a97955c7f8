// Colors of code, the same few for all languages: comments, strings, numbers and words that many languages keep.
import { el } from "./dom.js";

const WORDS = new Set(
  `abstract and as assert async await begin bool boolean break case catch char class const continue def default
    del do done double elif else elsif end enum esac except export extends extern false fi final finally float
    fn for from func function global go goto if impl implements import in include instanceof int interface is
    lambda let local long loop match mod module move mut namespace new nil none not null nullptr of or override
    package pass private protected pub public raise ref repeat require return self select short signed sizeof
    static string struct super switch template then this throw throws trait true try type typedef typeof
    undefined union unless unsafe unsigned until use using val var virtual void where while with yield`.split(/\s+/),
);
const HASH = new Set(
  "bash sh shell zsh console py python rb ruby perl yaml yml toml ini conf make makefile dockerfile r nix".split(" "),
);
const DASHES = new Set("sql lua haskell hs ada elm".split(" "));
const PLAIN = new Set(["", "text", "txt", "markdown", "md", "diff", "log", "csv"]);

/** The nodes of a code, in order; their text is the code. */
export function highlight(code, language) {
  language = language.toLowerCase();
  if (PLAIN.has(language)) return [document.createTextNode(code)];
  const comment = HASH.has(language)
    ? "#[^\\n]*"
    : DASHES.has(language)
      ? "--[^\\n]*"
      : "//[^\\n]*|/\\*[^]*?(?:\\*/|$)";
  const string = "\"(?:[^\"\\\\\\n]|\\\\.)*\"?|'(?:[^'\\\\\\n]|\\\\.){0,200}'|`(?:[^`\\\\]|\\\\.)*`?";
  const pattern = new RegExp(
    `(${comment})|(${string})|\\b(0[xXbB][\\da-fA-F_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)\\b|([A-Za-z_]\\w*)`,
    "g",
  );
  const nodes = [];
  let plain = 0;
  const lower = language === "sql";
  for (const found of code.matchAll(pattern)) {
    const [whole, isComment, isString, isNumber, word] = found;
    const kind = isComment
      ? "comment"
      : isString
        ? "string"
        : isNumber
          ? "number"
          : WORDS.has(lower ? word.toLowerCase() : word)
            ? "word"
            : null;
    if (!kind) continue;
    if (found.index > plain) nodes.push(document.createTextNode(code.slice(plain, found.index)));
    nodes.push(el("span", { class: kind }, whole));
    plain = found.index + whole.length;
  }
  if (plain < code.length) nodes.push(document.createTextNode(code.slice(plain)));
  return nodes;
}
