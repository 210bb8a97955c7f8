"""Drives a server with OpenAI's own Python client.

usage: openai_client.py BASE_URL

Run by `cargo xtask openai-client`, which starts the server (8 slots) and installs the client. Ends with an error at the
first thing that is not as the client's users expect.
"""
import asyncio
import sys

import openai
from checks import BASE, PROMPT, at_once, check, idle, post

client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="none", max_retries=0, timeout=120)
MODEL = client.models.list().data[0].id


def messages(text: str = PROMPT) -> list:
    return [{"role": "user", "content": text}]


def chat(**more):
    return client.chat.completions.create(model=MODEL, messages=messages(), **{"max_tokens": 24, "seed": 7, **more})


def whole_and_streamed() -> None:
    whole = chat()
    check("chat answers", len(whole.choices[0].message.content) > 20, whole)
    check("chat's role", whole.choices[0].message.role == "assistant")
    check("chat's usage adds up", whole.usage.total_tokens == whole.usage.prompt_tokens + 24, whole.usage)
    check("chat ends by length", whole.choices[0].finish_reason == "length")
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    check("streamed = whole", text == whole.choices[0].message.content, text)
    check("role comes first", chunks[0].choices[0].delta.role == "assistant")
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    check("the reason comes last", reasons[-1] == "length" and not any(reasons[:-1]), reasons)
    check("usage comes at the very end", chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 24)
    check("one id for all pieces", len({c.id for c in chunks}) == 1)
    again = chat()
    check("same seed, same answer", again.choices[0].message.content == whole.choices[0].message.content)
    other = chat(seed=8)
    check("other seed, other answer", other.choices[0].message.content != whole.choices[0].message.content)


def several() -> None:
    both = chat(n=2)
    check("n=2 gives two", [c.index for c in both.choices] == [0, 1])
    texts = [c.message.content for c in both.choices]
    check("which differ", texts[0] != texts[1], texts)
    check("the first is that of n=1", texts[0] == chat().choices[0].message.content)
    streamed = {0: "", 1: ""}
    for chunk in chat(n=2, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    check("n=2 streamed = whole", [streamed[0], streamed[1]] == texts, streamed)


def stops() -> None:
    text = chat(max_tokens=60).choices[0].message.content
    stop = text[25:32]
    stopped = chat(max_tokens=60, stop=stop).choices[0]
    check("stop cuts before its text", stopped.message.content == text[: text.index(stop)], (stop, stopped))
    check("stop says so", stopped.finish_reason == "stop")
    streamed = "".join(c.choices[0].delta.content or "" for c in chat(max_tokens=60, stop=[stop, "zzz"], stream=True))
    check("stop does not leak into a stream", streamed == stopped.message.content, streamed)


def scores() -> None:
    # Scores are the model's own: without its usual penalty, what is likeliest is what is taken.
    plain = {"repetition_penalty": 1}
    choice = chat(logprobs=True, top_logprobs=3, temperature=0, max_tokens=8, extra_body=plain).choices[0]
    content = choice.logprobs.content
    check("a score for each token", len(content) == 8, content)
    check("of three alternatives", all(len(t.top_logprobs) == 3 for t in content))
    check("the likeliest was taken", all(t.token == t.top_logprobs[0].token for t in content))
    check("scores are no more than 0", all(t.logprob <= 0 for t in content))
    spelled = b"".join(bytes(t.bytes) for t in content).decode()
    check("tokens spell the answer", spelled == choice.message.content, spelled)
    banned = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=1, temperature=0, logprobs=1)
    check("completions' scores", len(banned.choices[0].logprobs.token_logprobs) == 1)
    token = post("/tokenize", {"prompt": banned.choices[0].text, "add_special_tokens": False})["tokens"][0]
    other = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=1, temperature=0, logit_bias={str(token): -100}
    )
    check("logit_bias bans a token", other.choices[0].text != banned.choices[0].text, other)


def cached() -> None:
    text = "The old king lived in a castle by the sea. " * 20
    for _ in range(2):
        usage = client.completions.create(model=MODEL, prompt=text, max_tokens=2).usage
    found = usage.prompt_tokens_details.cached_tokens
    check("cached_tokens of a prompt that was there", found > usage.prompt_tokens - 32, usage)


def refusals() -> None:
    def refused(what: str, error: type, param: str | None, call) -> None:
        try:
            call()
        except error as e:
            check(what, e.param == param if param else True, e.body)
        else:
            sys.exit(f"FAILED {what}: it was taken")

    bad = openai.BadRequestError
    refused("temperature 3e9 is refused", bad, "temperature", lambda: chat(temperature=3e9))
    refused("an unknown field is refused", bad, "no_such_field", lambda: chat(extra_body={"no_such_field": 1}))
    refused("tools are refused by name", bad, "tools", lambda: chat(tools=[{"type": "function", "function": {"name": "f"}}]))
    refused("a long prompt is refused", bad, None, lambda: client.completions.create(model=MODEL, prompt="word " * 5000))
    refused("an unknown model is 404", openai.NotFoundError, "model", lambda: client.completions.create(model="x", prompt="y"))


def cancel() -> None:
    stream = chat(max_tokens=900, stream=True, extra_body={"ignore_eos": True})
    for _, _ in zip(range(5), stream):
        pass
    stream.close()
    idle("after a cancel mid-stream")


async def many() -> None:
    several = openai.AsyncOpenAI(base_url=f"{BASE}/v1", api_key="none", max_retries=0, timeout=300)

    async def one(i: int) -> str:
        ask = dict(model=MODEL, prompt=f"{PROMPT} number {i % 8} went", max_tokens=32, temperature=0)
        if i % 2:
            return (await several.completions.create(**ask)).choices[0].text
        text = ""
        async for chunk in await several.completions.create(**ask, stream=True):
            text += chunk.choices[0].text
        return text

    answers = await at_once(one)
    alone = client.completions.create(model=MODEL, prompt=f"{PROMPT} number 0 went", max_tokens=32, temperature=0)
    check("and the same as alone", alone.choices[0].text == answers[0], alone)


def main() -> None:
    print(f"openai {openai.__version__}, model {MODEL}")
    for part in [whole_and_streamed, several, stops, scores, cached, refusals, cancel]:
        part()
    asyncio.run(many())
    idle("in the end")


if __name__ == "__main__":
    main()
