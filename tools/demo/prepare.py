"""Cleans a folder of public-domain children's books into story text for the demo model.

usage: prepare.py BOOKS_DIR OUT_DIR

BOOKS_DIR holds `train.txt.gz` and `valid.txt`: books separated by a line `<|endoftext|>`, paragraphs by blank
lines. OUT_DIR gets `train.txt` and `valid.txt` in which every story or chapter stands alone, separated by `\x00`.
A small model has no capacity to spare, so the text is given one shape: one style of quotation marks, no
headings, footnotes, indexes or printer's notes.
"""
import gzip
import pathlib
import re
import sys

END_OF_BOOK = "<|endoftext|>"
STORY_OPENING = re.compile(r"^(Once upon a time|Once on a time|There was once|There once|Long, long ago|Many years ago|In olden times|A long time ago)\b")
HEADING = re.compile(r"^(chapter|book|part|story)\b[\s.:]*[ivxlcdm\d]+", re.I)


def one_quote_style(book: str) -> str:
    if book.count("‘") > book.count("“"):
        # British style. An opening mark is unambiguous; a closing one follows punctuation and ends a word.
        book = book.replace("‘", '"')
        book = re.sub(r"(?<=[.,!?;:\-—)])’(?=[\s)\-—]|$)", '"', book, flags=re.M)
    table = {"“": '"', "”": '"', "‘": "'", "’": "'", "`": "'", "—": "--", "–": "-", "…": "...", "\u00a0": " "}
    for old, new in table.items():
        book = book.replace(old, new)
    return book


def is_story_text(p: str) -> bool:
    if len(p) < 2 or p[0] in "[*|(" or "|" in p or "http" in p:
        return False
    letters = sum(c.isalpha() for c in p)
    if letters < 0.6 * len(p):
        return False
    digits = sum(c.isdigit() for c in p)
    if digits > 0.02 * len(p) + 2:
        return False
    if sum(c.isupper() for c in p) > 0.2 * letters + 2:
        return False
    if re.search(r"\b(pp?\.|vol\.|cf\.|ibid|edit(?:ed|ion|or)|Gutenberg|copyright|illustrat|transcrib)", p, re.I) and len(p) < 1500:
        return False
    return p.rstrip()[-1:] in ".!?\"':;,-"


def is_heading(p: str) -> bool:
    if HEADING.match(p):
        return len(p) < 120
    if len(p) > 80 or p.rstrip()[-1:] in ".!?\"':;,-":
        return False
    words = re.findall(r"[A-Za-z']+", p)
    return bool(words) and sum(w[0].isupper() for w in words) * 2 > len(words)


def stories(book: str):
    story: list[str] = []
    for p in re.split(r"\n\s*\n", one_quote_style(book)):
        p = re.sub(r"\s+", " ", p).strip()
        p = re.sub(r"\s*\[(?:\d+|[A-Z][^\]]{0,80})\]", "", p)
        if not p:
            continue
        # A heading glued to the paragraph that follows it: "CHAPTER I. Down the Rabbit-Hole".
        if is_heading(p) or (STORY_OPENING.match(p) and story):
            yield story
            story = []
            if is_heading(p):
                continue
        if is_story_text(p):
            story.append(p)
    yield story


def clean(text: str) -> list[str]:
    out = []
    for book in text.split(END_OF_BOOK):
        for story in stories(book):
            body = "\n\n".join(story)
            if len(body) > 400:
                out.append(body)
    return out


def main() -> None:
    books, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("train", gzip.open(books / "train.txt.gz", "rt", encoding="utf-8").read()),
        ("valid", (books / "valid.txt").read_text(encoding="utf-8")),
    ):
        found = clean(text)
        (out / f"{name}.txt").write_text("\x00".join(found), encoding="utf-8")
        print(f"{name}: {len(found)} stories, {sum(map(len, found)):,} characters of {len(text):,}")


if __name__ == "__main__":
    main()
