"""Holds a server's answers against the schemas of three protocols with llm-comply.

usage: comply.py BASE_URL

Run by `cargo xtask clients`, which serves the demo model, greedily, with a template that has tools. Left out are pictures, which
chats refuse, and requests without a model, which a server of one model answers.
"""
import dataclasses
import json
import pathlib
import sys
import urllib.request

import llm_comply
from checks import BASE, check, post
from llm_comply.cli import _SPEC_FILES, _get_tests
from llm_comply.config import ComplianceConfig
from llm_comply.result import TestStatus
from llm_comply.runner import TestRunner
from llm_comply.schema import SpecLoader

LEFT_OUT = ["image-input", "chat-image-input", "anth-image-input", "error-handling", "chat-error-handling"]


def ending(case):
    """A teller of stories ends no string and no row of calls by itself: both ends are made likely where calls are forced."""
    texts = ['"', "<|end_of_text|>"]
    ends = [post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"] for text in texts]
    check("both ends are tokens", all(len(tokens) == 1 for tokens in ends), ends)
    bias, build = {str(token): 12 for [token] in ends}, case.build_request
    return dataclasses.replace(case, build_request=lambda config: {**build(config), "logit_bias": bias})


def run(suite: str, model: str) -> None:
    cases = [case for case in _get_tests(suite) if case.id not in LEFT_OUT]
    cases = [ending(case) if case.id.endswith("tool-calling") else case for case in cases]
    spec = SpecLoader(str(pathlib.Path(llm_comply.__file__).parent / "specs" / _SPEC_FILES[suite]))
    config = ComplianceConfig(base_url=f"{BASE}/v1", api_key="none", model=model)
    results = TestRunner(config=config, test_cases=cases, spec_loader=spec).run_all()
    for result in results.results:
        check(f"{suite}: {result.id}: {result.status.value}", result.status != TestStatus.FAILED, result)
    check(f"{suite}: {results.passed} passed", results.failed == 0 and results.passed >= 5, results)


def main() -> None:
    with urllib.request.urlopen(f"{BASE}/v1/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    for suite in ["open-responses", "openai-chat", "anthropic"]:
        run(suite, model)


if __name__ == "__main__":
    sys.exit(main())
