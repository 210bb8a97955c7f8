"""What the scripts of all clients share: the server's address, and checks that end a script at the first that fails."""
import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable

BASE = sys.argv[1]
PROMPT = "Once upon a time"
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"],
        "additionalProperties": False}
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer",
          "minimum": 0, "maximum": 99}}, "required": ["name", "age"], "additionalProperties": False}


def check(what: str, holds: bool, found: object = "") -> None:
    if not holds:
        sys.exit(f"FAILED {what}: {found!r}")
    print(f"ok     {what}")


def raises(what: str, error: type, call: Callable[[], object], status: int) -> Exception:
    try:
        call()
    except error as e:
        check(what, getattr(e, "status_code", None) == status, e)
        return e
    sys.exit(f"FAILED {what}: it was taken")


def is_person(found: object) -> bool:
    """Judged without the server's words for it."""
    return (isinstance(found, dict) and list(found) == ["name", "age"] and isinstance(found["name"], str)
            and type(found["age"]) is int and 0 <= found["age"] <= 99)


def is_city(found: object) -> bool:
    return isinstance(found, dict) and list(found) == ["city"] and isinstance(found["city"], str)


def metric(name: str) -> float:
    with urllib.request.urlopen(f"{BASE}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def idle(when: str) -> None:
    names = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"]
    until = time.monotonic() + 5
    while any(metric(name) > 0 for name in names):
        if time.monotonic() > until:
            sys.exit(f"FAILED every page back in the pool {when}: { {n: metric(n) for n in names} }")
        time.sleep(0.01)
    print(f"ok     every page is back in the pool {when}")


def post(path: str, body: dict) -> dict:
    request = urllib.request.Request(BASE + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


async def at_once(one: Callable[[int], Awaitable[str]]) -> list[str]:
    """64 requests at once, each of which has the prompt of every eighth."""
    begun = time.monotonic()
    answers = await asyncio.gather(*(one(i) for i in range(64)))
    took = time.monotonic() - begun
    same = all(answers[i] == answers[i % 8] for i in range(64))
    check(f"64 at once ({took:.1f} s), the same answer to the same prompt", same, answers[:16])
    return answers
