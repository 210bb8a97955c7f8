"""Holds random answers under JSON Schemas against PyPI's jsonschema: five for each schema of the JSON Schema test suite.

usage: schemas.py BASE_URL

Run by `cargo xtask clients`. Schemas that the server refuses by name are counted; of the others no answer may be invalid. Without
the suite (in TALLOW_SHARED, or beside the project) nothing is checked, which is an error in CI.
"""
import json
import os
import pathlib
import re
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import jsonschema
from checks import BASE, check, post

DRAFTS = {
    "draft2020-12": ("https://json-schema.org/draft/2020-12/schema", jsonschema.Draft202012Validator),
    "draft7": ("http://json-schema.org/draft-07/schema#", jsonschema.Draft7Validator),
}
SEEDS = 5


def suite() -> pathlib.Path | None:
    root = pathlib.Path(__file__).resolve().parents[2]
    shared = pathlib.Path(os.environ.get("TALLOW_SHARED") or root.parent / "shared")
    folder = shared / "data" / "json-schema-test-suite"
    return folder if folder.is_dir() else None


def schemas(folder: pathlib.Path) -> list:
    found = []
    for file in sorted(folder.glob("*--*.json")):
        draft = file.name.split("--")[0]
        for group in json.loads(file.read_text()):
            found.append((draft, f"{file.name}: {group['description']}", group["schema"]))
    return found


def biases() -> dict:
    """A teller of stories ends no string, list or object by itself."""
    ends = {}
    for text in ['"', "]", "}", "<|end_of_text|>"]:
        for token in post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]:
            ends[str(token)] = 4
    return ends


def answers(case: tuple, bias: dict) -> tuple:
    """How often a schema was refused, answered, and answered to the end."""
    draft, name, schema = case
    uri, validator = DRAFTS[draft]
    if isinstance(schema, dict):
        schema = {"$schema": uri, **schema}
    ended = 0
    for seed in range(SEEDS):
        body = {"prompt": "A value:", "json_schema": schema, "max_tokens": 120, "temperature": 1.0, "seed": seed,
                "logit_bias": bias}
        try:
            choice = post("/v1/completions", body)["choices"][0]
        except urllib.error.HTTPError as e:
            error = json.loads(e.read())["error"]
            if e.code != 400 or error["param"] != "json_schema":
                sys.exit(f"FAILED {name}: {e.code} {error}")
            return 1, 0, 0, None
        if choice["finish_reason"] != "stop":
            continue
        ended += 1
        try:
            value = json.loads(choice["text"])
        except ValueError:
            return 0, seed + 1, ended, f"{name}: no JSON: {choice['text']!r}"
        try:
            is_valid = validator(schema).is_valid(value)
        except re.error:
            # Its patterns are Python's, which knows no \\p.
            continue
        if not is_valid:
            return 0, seed + 1, ended, f"{name}: {choice['text']} under {json.dumps(schema)}"
    return 0, SEEDS, ended, None


def main() -> None:
    folder = suite()
    if folder is None:
        notice = "the JSON Schema test suite is not there"
        sys.exit(f"FAILED {notice}") if os.environ.get("CI") else print(f"skipped: {notice}")
        return
    cases = [case for case in schemas(folder) if case[0] in DRAFTS]
    bias = biases()
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda case: answers(case, bias), cases))
    refused, made, ended = (sum(result[i] for result in results) for i in range(3))
    wrong = [result[3] for result in results if result[3]]
    check("no answer is invalid", not wrong, wrong[:10])
    enforced = len(cases) - refused
    check(f"{len(cases)} schemas: {refused} refused, {enforced} enforced; {made} answers, {ended} to the end",
          enforced > len(cases) / 2 and ended > made / 2, (refused, made, ended))


if __name__ == "__main__":
    main()
