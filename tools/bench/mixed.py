#!/usr/bin/env python3
"""Mixed requests to a server of several models, some of which do not fit beside each other: what becomes of them?

    python3 tools/bench/mixed.py http://127.0.0.1:8080 [--requests 10000] [--clients 16] [--seed 1]

Finds the models by what they answer, and asks each of them in turn at random: chats and completions, whole and in streams,
embeddings, ranking, and speech. All answers are greedy, and asked for again and again: each must be the one that was given
first, and each stream must be whole. Prints a table in Markdown, and how long it took to load each model: alone, by itself
(the server's other models unloaded), and under the load. Ends with an error if an answer was wrong, cut or refused."""

import argparse
import collections
import http.client
import io
import json
import math
import random
import struct
import sys
import threading
import time
import urllib.parse
import wave
from statistics import median

from processes import Failed, program

PROMPTS = ["Once upon", "The weather", "A list of", "In the", "1, 2, 3,", "To be or"]
# What a request may wait in seconds: a model may have to be loaded for it, and others before it.
PATIENCE = 900


def sound(seconds: float) -> bytes:
    """A tone as a WAV file."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", "not compressed"))
        samples = (int(8000 * math.sin(n * 0.1) * math.sin(n / 3000)) for n in range(int(16000 * seconds)))
        file.writeframes(b"".join(struct.pack("<h", sample) for sample in samples))
    return out.getvalue()


class Server:
    def __init__(self, url: str):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port = parts.hostname, parts.port or 80

    def ask(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, {"Content-Type": kind} if body else {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def post(self, path: str, body: dict) -> tuple[int, bytes]:
        return self.ask("POST", path, json.dumps(body).encode())

    def models(self) -> dict[str, dict]:
        listed = json.loads(self.ask("GET", "/v1/models")[1])["data"]
        return {model["id"]: model["status"] for model in listed if model["id"] == model["root"]}

    def loads(self) -> dict[str, int]:
        loads = {}
        for line in self.ask("GET", "/metrics")[1].decode().splitlines():
            if line.startswith("vllm:model_loads_total{"):
                loads[line.split('"')[1]] = int(float(line.rsplit(" ", 1)[1]))
        return loads


def streamed(answer: bytes) -> str:
    """The text of a stream, which must be whole."""
    events = [event.removeprefix("data: ") for event in answer.decode().split("\n\n") if event and not event.startswith(":")]
    if not events or events[-1] != "[DONE]":
        raise Failed(f"a stream was cut: {answer[-200:]!r}")
    chunks = [json.loads(event) for event in events[:-1]]
    return "".join(chunk["choices"][0].get("text") or "" for chunk in chunks if chunk["choices"])


def text(server: Server, model: str, which: int, stream: bool) -> str:
    body = {"model": model, "prompt": PROMPTS[which % len(PROMPTS)], "max_tokens": 4 + which % 9, "temperature": 0,
            "ignore_eos": True, "stream": stream}
    status, answer = server.post("/v1/completions", body)
    if status != 200:
        raise Failed(f"{status}: {answer[:300]!r}")
    return streamed(answer) if stream else json.loads(answer)["choices"][0]["text"]


def vectors(server: Server, model: str, which: int, _: bool) -> str:
    status, answer = server.post("/v1/embeddings", {"model": model, "input": PROMPTS[which % len(PROMPTS)].lower()})
    if status != 200:
        raise Failed(f"{status}: {answer[:300]!r}")
    return json.dumps(json.loads(answer)["data"])


def ranking(server: Server, model: str, which: int, _: bool) -> str:
    body = {"model": model, "query": "a cat", "documents": [PROMPTS[(which + i) % len(PROMPTS)].lower() for i in range(3)]}
    status, answer = server.post("/v1/rerank", body)
    if status != 200:
        raise Failed(f"{status}: {answer[:300]!r}")
    return json.dumps(json.loads(answer)["results"])


def speech(server: Server, model: str, which: int, _: bool) -> str:
    parts = [f'--b0\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n'.encode(),
             b'--b0\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n', sound(1 + which % 3), b"\r\n--b0--\r\n"]
    status, answer = server.ask("POST", "/v1/audio/transcriptions", b"".join(parts), "multipart/form-data; boundary=b0")
    if status != 200:
        raise Failed(f"{status}: {answer[:300]!r}")
    return json.loads(answer)["text"]


KINDS = [text, vectors, ranking, speech]


def kind(server: Server, model: str):
    """How a model is asked: the first way that it answers."""
    for ask in KINDS:
        try:
            ask(server, model, 0, False)
            return ask
        except Failed:
            continue
    raise Failed(f"{model} answers nothing")


def alone(server: Server, model: str) -> float:
    """Seconds in which a model is loaded with its files in the page cache and nothing else to do."""
    times = []
    for _ in range(3):
        for other, status in server.models().items():
            if status["value"] != "unloaded":
                server.post("/models/unload", {"model": other})
        begun = time.perf_counter()
        status, answer = server.post("/models/load", {"model": model})
        if status != 200:
            raise Failed(f"{model}: {answer[:300]!r}")
        times.append(time.perf_counter() - begun)
    return median(times)


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("server")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(args)
    server, chance = Server(options.server), random.Random(options.seed)
    names = list(server.models())
    ways = {name: kind(server, name) for name in names}
    by_itself = {name: alone(server, name) for name in names}
    before, lock = server.loads(), threading.Lock()
    first, took, wrong = {}, collections.defaultdict(list), collections.Counter()
    # Each of the models that write text is left alone for a while, so that it gives way to the others.
    texts = [name for name in names if ways[name] is text]
    def asked(number: int) -> list[str]:
        left = texts[number // 250 % len(texts)] if len(texts) > 1 else None
        return [name for name in names if name != left]
    todo = [(chance.choice(asked(i)), chance.randrange(54), chance.random() < 0.5) for i in range(options.requests)]
    at = iter(range(options.requests))

    def client() -> None:
        while True:
            with lock:
                number = next(at, None)
            if number is None:
                return
            model, which, stream = todo[number]
            begun = time.perf_counter()
            try:
                answer = ways[model](server, model, which, stream)
            except (Failed, OSError, http.client.HTTPException, ValueError, KeyError) as e:
                with lock:
                    wrong[f"{model}: {e}"] += 1
                continue
            with lock:
                took[model].append(time.perf_counter() - begun)
                if first.setdefault((model, which), answer) != answer:
                    wrong[f"{model}: another answer than before to {which}"] += 1

    begun = time.perf_counter()
    clients = [threading.Thread(target=client) for _ in range(options.clients)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    seconds = time.perf_counter() - begun
    loads = {name: count - before[name] for name, count in server.loads().items()}
    print(f"{options.requests} requests of {options.clients} clients in {seconds:.0f} s, {sum(wrong.values())} wrong\n")
    print("| model | asked by | answers | median s | p99 s | loads | load alone, s |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for name in names:
        times = sorted(took[name]) or [math.nan]
        print(f"| {name} | {ways[name].__name__} | {len(took[name])} | {median(times):.2f} | {times[int(0.99 * (len(times) - 1))]:.2f} "
              f"| {loads[name]} | {by_itself[name]:.2f} |")
    for what, count in wrong.most_common(20):
        print(f"\n{count} times: {what}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    program(main)
