#!/usr/bin/env python3
"""Measures speculative decoding against plain decoding, in one run, on one model file.

    python3 tools/bench/speculative.py TALLOW MODEL.gguf [--draft SMALL.gguf] [--edits] [--rounds 3] [--requests 200] [SERVE OPTION...]

Two servers of the same program, one with --speculative off, answer the same requests in turn. "Repeats" is greedy decoding
of a prompt that repeats itself: a model that copies, or one of random weights, which soon goes in circles, is the best case.
"Greedy" answers prompts of random tokens, with what a draft model or an MTP layer guesses of them. "Random" is sampled at
temperature 1, where nothing can be guessed: the cost. With a draft model there are stories too, greedy
and sampled. With --edits, for a model of edit_model.py, "edit" answers a text in which one token of 24 was changed, and "summary" one
of which it quotes a few tokens at a time. All answers of both servers are compared, and those to as many requests of mixed sampling as --requests says.
TPOT is the time for each token of an answer after its first, so without the prompt's. Prints a table in Markdown."""

import argparse
import http.client
import pathlib
import random
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import NamedTuple

import edit_model
from processes import PATIENCE, Failed, program, running, stream

TOKENS = range(100, 2000)


def repeats(number: int) -> dict:
    chance = random.Random(number)
    line = [chance.choice(TOKENS) for _ in range(24)]
    return {"prompt": line * 8, "max_tokens": 192, "temperature": 0, "ignore_eos": True}


def sampled(number: int) -> dict:
    chance = random.Random(number)
    prompt = [chance.choice(TOKENS) for _ in range(192)]
    return {"prompt": prompt, "max_tokens": 96, "temperature": 1, "seed": number, "ignore_eos": True}


def greedy(number: int) -> dict:
    return sampled(number) | {"temperature": 0}


def edit(number: int, every: int = 24) -> dict:
    """A text of which one token in so many was changed, and the request to write it as it should be."""
    chance = random.Random(number)
    text, start = chance.randrange(edit_model.TEXTS), chance.randrange(edit_model.TEXT)
    changed = lambda token: chance.choice(TOKENS) if chance.randrange(every) == 0 else token
    prompt = [changed(edit_model.token(text, start + place)) for place in range(edit_model.TEXT)]
    return {"prompt": [*prompt, edit_model.token(text, start - 1)], "max_tokens": 144, "temperature": 0, "ignore_eos": True}


def summary(number: int) -> dict:
    return edit(number, 8)


def story(number: int, temperature: float = 0) -> dict:
    chance = random.Random(number)
    who, where = chance.choice(["a king", "an old woman", "two brothers", "a fox"]), chance.choice(["the forest", "a tower"])
    prompt = f"Once upon a time there was {who} in {where}, {number} miles from the sea."
    return {"prompt": prompt, "max_tokens": 192, "temperature": temperature, "seed": number, "ignore_eos": True}


def sampled_story(number: int) -> dict:
    return story(number, 0.8)


def mixed(number: int) -> dict:
    """Requests of all kinds, which share prefixes and end at different lengths."""
    chance = random.Random(number)
    body = repeats(number % 20) if chance.random() < 0.7 else sampled(number % 20)
    return body | {
        "max_tokens": chance.randint(1, 64), "seed": number, "temperature": chance.choice([0, 0, 0.3, 0.8]),
        "top_k": chance.choice([0, 5, 40]), "presence_penalty": chance.choice([0, 0, 0.4]),
        "repetition_penalty": chance.choice([1, 1, 1.1]), "logprobs": chance.choice([None, None, 2])}


class Driven(NamedTuple):
    rate: float  # tokens per second, from the first request to the last token
    each: float  # milliseconds for each token after the first of an answer (TPOT)
    answers: list[str]


def drive(port: int, bodies: list[dict], clients: int) -> Driven:
    begun = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(lambda body: stream(f"127.0.0.1:{port}", body), bodies))
    took = time.perf_counter() - begun
    counts = [answer.usage["completion_tokens"] for answer in answers]
    decoding = sum((answer.last or 0) - (answer.first or 0) for answer in answers)
    each = decoding / max(1, sum(count - 1 for count in counts))
    return Driven(sum(counts) / took, each, [answer.text for answer in answers])


def counts(port: int) -> dict[str, int]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    found = [line.split() for line in lines if line.startswith("vllm:spec_decode_num_")]
    return {name.partition("_num_")[2].partition("_tokens")[0]: int(float(value)) for name, value in found}


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tallow", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--draft", type=pathlib.Path)
    parser.add_argument("--edits", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=200)
    options, more = parser.parse_known_args(args)
    serve = [str(options.tallow), "serve", str(options.model), "--device", "cpu", "--offline", *more]
    draft = ["--draft", str(options.draft)] if options.draft else []
    stories = [("stories", story), ("stories, sampled", sampled_story)] if draft else []
    edits = [("edit", edit), ("summary", summary)] if options.edits else [("repeats", repeats), ("greedy", greedy)]
    kinds = [(f"{name}, {clients} client{'s' * (clients > 1)}", kind, clients)
             for name, kind in [*stories, *edits, ("random", sampled)] for clients in [1, 8]]
    with running([*serve, "--speculative", "off"]) as (plain, _), running([*serve, *draft]) as (drafts, _):
        print("| requests | plain tokens/s | speculative tokens/s | ratio (least–most) | TPOT, ms | ratio | drafted | right |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
        number = 0
        for name, kind, clients in kinds:
            speeds, before = [], counts(drafts)
            for round_ in range(options.rounds):
                bodies = [kind(number + i) for i in range(2 * clients if clients > 1 else 3)]
                number += len(bodies)
                # Each is first every other time.
                order = [plain, drafts][::-1 if round_ % 2 else 1]
                done = {port: drive(port, bodies, clients) for port in order}
                without, with_ = done[plain], done[drafts]
                if with_.answers != without.answers:
                    raise Failed(f"{name}: answers differ with drafts and without")
                speeds.append((without.rate, with_.rate, with_.rate / without.rate, without.each, with_.each,
                               without.each / max(with_.each, 1e-9)))
            drafted, accepted = [counts(drafts)[name] - before[name] for name in ["draft", "accepted"]]
            slow, fast, ratio, *each, faster = map(median, zip(*speeds))
            least, most = [edge(row[2] for row in speeds) for edge in (min, max)]
            tpot = " -> ".join(f"{ms:.1f}" for ms in each)
            print(f"| {name} | {slow:.1f} | {fast:.1f} | {ratio:.2f} ({least:.2f}–{most:.2f}) | {tpot} | {faster:.2f} | {drafted} | "
                  f"{accepted} |", flush=True)
        bodies = [mixed(i) for i in range(options.requests)]
        if drive(plain, bodies, 6).answers != drive(drafts, bodies, 6).answers:
            raise Failed("mixed requests: answers differ with drafts and without")
        print(f"\nAll answers were the same, those to {options.requests} mixed requests too.")
    return 0


if __name__ == "__main__":
    program(main)
