"""Processes that are measured: what they write, what others used meanwhile, and servers under load."""
from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import pathlib
import random
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Callable, Iterator, NamedTuple, NoReturn

# Token ids of prompts, which have the same length for every server that way: in the model's vocabulary, and not special.
TOKENS = range(30_000, 120_000)
# What an answer, or a server's start, may take in seconds.
PATIENCE = 600


class Failed(Exception):
    """What a program did wrong, for people."""


def program(main: Callable[[list[str]], int]) -> NoReturn:
    """Runs a program to its end, and says what failed."""
    try:
        sys.exit(main(sys.argv[1:]))
    except Failed as e:
        sys.exit(f"error: {e}")


def ticks(server: int | None) -> tuple[float, float, float] | None:
    """CPU ticks of the machine: busy, all, and our own, with those of children that ended and of a running server."""
    try:
        counts = [int(n) for n in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        theirs = pathlib.Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[11:15] if server else []
    except OSError:
        return None
    ours = sum(os.times()[:4]) * os.sysconf("SC_CLK_TCK") + sum(map(int, theirs))
    return sum(counts) - counts[3] - counts[4], sum(counts), ours


def others_since(begun: tuple[float, float, float] | None, server: int | None = None) -> float | None:
    """The share of the machine that other processes used; None where the system does not say."""
    now = ticks(server)
    if not begun or not now or now[1] <= begun[1]:
        return None
    return max(0.0, now[0] - begun[0] - (now[2] - begun[2])) / (now[1] - begun[1])


class Output(NamedTuple):
    """What a program wrote, and the share of the machine that others used meanwhile."""
    out: str
    err: str
    others: float | None


def output(command: list[str]) -> Output:
    begun = ticks(None)
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    except OSError as e:
        raise Failed(f"{command[0]} does not start: {e.strerror}") from e
    if done.returncode:
        last = (done.stderr.strip() or "it says nothing").splitlines()[-1]
        raise Failed(f"{' '.join(command)} ended with {done.returncode}: {last}")
    return Output(done.stdout, done.stderr, others_since(begun))


@dataclass(frozen=True)
class Load:
    """Clients of a server, each of which asks again as soon as it is answered."""
    clients: int
    requests: int  # of all clients together
    alone: int  # requests of a single client, before
    prompt: int  # tokens
    generated: int  # tokens of each answer


def serve(command: list[str], load: Load, seed: int) -> tuple[list[float], float | None]:
    """Tokens per second and times to the first token (ms), with many clients and with one."""
    with running(command) as (port, process):
        drive(port, load, 2, 2, 4 * seed)
        begun = ticks(process)
        one = drive(port, load, 1, load.alone, 4 * seed + 1)
        many = drive(port, load, load.clients, load.requests, 4 * seed + 2)
        return [*many, *one[:2]], others_since(begun, process)


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[tuple[int, int]]:
    """A server that is ready: its port, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*command, "--host", "127.0.0.1", "--port", str(port)]
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError as e:
        raise Failed(f"{command[0]} does not start: {e.strerror}") from e
    try:
        end = time.monotonic() + PATIENCE
        while not is_ready(port):
            if process.poll() is not None or time.monotonic() > end:
                raise Failed(f"the server did not become ready; see what it says: {' '.join(command)}")
            time.sleep(0.05)
        yield port, process.pid
    finally:
        process.kill()
        process.wait()


def is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def drive(port: int, load: Load, clients: int, requests: int, seed: int) -> list[float]:
    """Clients that ask again as soon as they are answered: tokens per second; median and 95th percentile of the time to
    the first token, in ms."""
    def one(number: int) -> float:
        # No prompt begins like another, so that no prefix cache helps.
        chance = random.Random(seed << 32 | number)
        return ask(port, [chance.choice(TOKENS) for _ in range(load.prompt)], load.generated)
    begun = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        firsts = sorted(pool.map(one, range(requests)))
    seconds = time.perf_counter() - begun
    return [requests * load.generated / seconds, median(firsts), firsts[math.ceil(0.95 * len(firsts)) - 1]]


class Answer(NamedTuple):
    first: float | None  # milliseconds to the first text
    last: float | None  # milliseconds to the last text
    text: str
    usage: dict


def ask(port: int, prompt: list[int], generated: int) -> float:
    """One request; milliseconds to the first text of its answer. An answer that is not whole is refused."""
    answer = stream(f"127.0.0.1:{port}", {"prompt": prompt, "max_tokens": generated, "temperature": 0, "ignore_eos": True})
    counted, wanted = [answer.usage.get("prompt_tokens"), answer.usage.get("completion_tokens")], [len(prompt), generated]
    if counted != wanted:
        raise Failed(f"the server counted {counted} tokens of prompt and answer, not {wanted}")
    if answer.first is None:
        raise Failed("an answer has no text")
    return answer.first


def stream(address: str, body: dict) -> Answer:
    """One request for a completion, whose answer is streamed."""
    body = body | {"stream": True, "stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    first, last, text, usage = None, None, "", {}
    try:
        begun = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise Failed(f"the server answered {answer.status}: {answer.read().decode(errors='replace')}")
        for line in answer:
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            event = json.loads(line[5:])
            if event.get("error"):
                raise Failed(f"the server answered {event['error']}")
            added = "".join(choice.get("text") or "" for choice in event.get("choices", []))
            if added:
                text, last = text + added, 1000 * (time.perf_counter() - begun)
                first = first or last
            usage = event.get("usage") or usage
    except (OSError, http.client.HTTPException, ValueError) as e:
        raise Failed(f"an answer broke off: {e}") from e
    finally:
        connection.close()
    return Answer(first, last, text, usage)
