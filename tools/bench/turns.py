#!/usr/bin/env python3
"""Plays an agent's conversation against a server: how much of what it has seen before is computed again?

    python3 tools/bench/turns.py TALLOW MODEL.gguf [--turns 20] [--tokens 30000] [SERVE OPTION...]
    python3 tools/bench/turns.py --url http://127.0.0.1:8080        # any server with /v1/completions and prompts of token ids

Each turn resends everything: instructions and tools, then answers and results of tools. The first half of each answer is
its thinking, which the next prompt leaves out; every fifth turn the last result is edited, and the turn is asked again.
Prompts are token ids, so that it is known which tokens were there before. A token counts as computed again if it is in the
longest beginning that this prompt shares with an earlier one, and was not in the cache. Beside each turn
stands the time of a request with as many new tokens after the same beginning, all of which has been seen: what the new
tokens cost. Prints a table in Markdown."""

import argparse
import pathlib
import random
import urllib.parse
from statistics import median

from processes import Failed, program, running, stream

TOKENS = range(100, 2000)
ANSWER = 48


def ask(address: str, prompt: list[int], generated: int) -> tuple[float, int]:
    """Milliseconds to the first text of an answer, and the prompt tokens that were cached."""
    answer = stream(address, {"prompt": prompt, "max_tokens": generated, "temperature": 0, "ignore_eos": True})
    counted = answer.usage.get("prompt_tokens")
    if counted != len(prompt):
        raise Failed(f"the server counted {counted} tokens, not {len(prompt)}")
    if answer.first is None:
        raise Failed("an answer has no text")
    return answer.first, (answer.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def conversation(turns: int, tokens: int) -> list[list[int]]:
    """The prompts. Answers are stood in for by tokens of this program's, as if a client had rewritten them: all that
    a server can find again of an answer is its prompt."""
    chance = random.Random(11)
    some = lambda count: [chance.choice(TOKENS) for _ in range(count)]
    each = tokens // (turns + 4)
    prompts, history = [], some(4 * each)  # instructions and tools
    for turn in range(turns):
        result = some(each - ANSWER // 2)
        prompts.append(history + result)
        if turn % 5 == 4:
            result = result[:len(result) // 2] + some(len(result) // 2)
            prompts.append(history + result)
        history = history + result + some(ANSWER // 2)
    return prompts


def play(address: str, turns: int, tokens: int) -> None:
    chance, seen, ratios = random.Random(12), [], []
    all_again = all_prompt = 0
    print("| turn | prompt | new | cached | again | first token, ms | new tokens alone, ms | ratio |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for turn, prompt in enumerate(conversation(turns, tokens), 1):
        known = max((common(prompt, other) for other in seen), default=0)
        first, cached = ask(address, prompt, ANSWER)
        again, new = max(0, known - cached), len(prompt) - known
        seen.append(prompt)
        # The whole beginning has been seen and no more of it, so this request computes what is new.
        other = prompt[:known] + [chance.choice(TOKENS) for _ in range(new)]
        alone, _ = ask(address, other, 1)
        ratio = first / alone
        if turn > 1:
            ratios.append(ratio)
            all_again, all_prompt = all_again + again, all_prompt + len(prompt)
        print(f"| {turn} | {len(prompt)} | {new} | {cached} | {again} | {first:.0f} | {alone:.0f} | {ratio:.2f} |", flush=True)
    print(f"\nComputed again: {100 * all_again / all_prompt:.2f} % of {all_prompt} prompt tokens after the first turn. "
          f"First token: {median(ratios):.2f} (most {max(ratios):.2f}) times the cost of the new tokens.")


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tallow", type=pathlib.Path, nargs="?")
    parser.add_argument("model", type=pathlib.Path, nargs="?")
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=30000)
    options, more = parser.parse_known_args(args)
    if options.url:
        play(urllib.parse.urlsplit(options.url).netloc, options.turns, options.tokens)
        return 0
    if not options.model:
        parser.error("a program and a model are needed, or --url")
    context = str(options.tokens + 2000)
    command = [str(options.tallow), "serve", str(options.model), "--offline", "--context", context, *more]
    with running(command) as (port, _):
        play(f"127.0.0.1:{port}", options.turns, options.tokens)
    return 0


if __name__ == "__main__":
    program(main)
