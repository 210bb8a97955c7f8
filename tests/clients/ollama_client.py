"""Drives a server with Ollama's own Python client.

usage: ollama_client.py BASE_URL [BASE_URL OF AN EMBEDDING MODEL]

Run by `cargo xtask clients`, which serves the demo model with a template that has tools and thinking.
"""
import asyncio
import json
import math
import sys

import ollama
from checks import BASE, CITY, PERSON, PROMPT, at_once, check, idle, is_person, raises

client = ollama.Client(host=BASE, timeout=120)
MODEL = client.list().models[0].model
TOOL = {"type": "function", "function": {"name": "weather", "description": "Says the weather.", "parameters": CITY}}
MESSAGES = [{"role": "user", "content": PROMPT}]


def chat(**more):
    options = {"temperature": 0, "num_predict": 40, "num_ctx": 1024, **more.pop("options", {})}
    return client.chat(**{"model": MODEL, "messages": MESSAGES, "options": options, **more})


def whole_and_streamed() -> None:
    made = chat()
    check("a chat", made.done and made.done_reason == "length" and made.message.role == "assistant", made)
    check("with its counts", made.eval_count == 40 and made.prompt_eval_count > 3 and made.eval_duration > 0, made)
    lines = list(chat(stream=True))
    text = "".join(line.message.content or "" for line in lines)
    check("streamed = whole", text == made.message.content and lines[-1].done and not lines[0].done, text)
    generated = client.generate(model=MODEL, prompt=PROMPT, options={"temperature": 0, "num_predict": 40})
    check("a prompt alone is a chat", generated.response == made.message.content, generated)
    raw = client.generate(model=MODEL, prompt=PROMPT, raw=True, options={"temperature": 0, "num_predict": 40})
    check("unless it is raw", raw.response != "" and raw.prompt_eval_count != generated.prompt_eval_count, raw)
    stop = made.message.content[25:30]
    stopped = chat(options={"stop": [stop]})
    check("a stop stops", stopped.done_reason == "stop" and stop not in stopped.message.content, stopped)
    check("an empty chat loads the model", client.chat(model=MODEL, messages=[]).done_reason == "load")


def tools() -> None:
    # Ollama's API forces no calls; what a model writes is read.
    made = chat(tools=[TOOL])
    check("a model that may call need not", bool(made.message.content or made.message.tool_calls), made)
    call = {"function": {"name": "weather", "arguments": {"city": "Bern"}}}
    turns = [*MESSAGES, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "Sun", "tool_name": "weather"}]
    check("the result of a call is answered", chat(messages=turns, tools=[TOOL]).message.content != "")


def structure_and_thinking() -> None:
    text = chat(format=PERSON, options={"num_predict": 200}).message.content
    check("an answer has the schema", is_person(json.loads(text)), text)
    text = chat(format="json", options={"num_predict": 200, "stop": ["}"]}).message.content
    check("or is JSON", text.startswith("{"), text)
    made = client.chat(model=MODEL, messages=MESSAGES, think=True, options={"num_predict": 60})
    check("thinking has a field of its own", bool(made.message.thinking), made)
    check("and can be off", not client.chat(model=MODEL, messages=MESSAGES, think=False).message.thinking)


def models() -> None:
    check("models are listed", client.list().models[0].details.family != "", client.list())
    check("and running", client.ps().models[0].model == MODEL, client.ps())
    shown = client.show(MODEL)
    check("and shown", "tools" in shown.capabilities and "thinking" in shown.capabilities, shown)


def errors() -> None:
    error = ollama.ResponseError
    raises("an unknown model is 404", error, lambda: client.chat(model="x", messages=MESSAGES), 404)
    raises("a context that is not there is refused", error, lambda: chat(options={"num_ctx": 99999}), 400)
    raises("a picture is refused", error, lambda: chat(messages=[{**MESSAGES[0], "images": ["aGk="]}]), 400)


def embeddings(base: str) -> None:
    encoder = ollama.Client(host=base, timeout=120)
    name = encoder.list().models[0].model
    made = encoder.embed(model=name, input=["a cat", "a kitten", "the stock market"])
    one, two, three = made.embeddings
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))
    check("embeddings are vectors of length one", all(math.isclose(dot(v, v), 1, abs_tol=1e-3) for v in made.embeddings))
    check("and near where meanings are", dot(one, two) > dot(one, three) + 0.2, (dot(one, two), dot(one, three)))
    old = encoder.embeddings(model=name, prompt="a cat").embedding
    check("by the older route, too", max(abs(x - y) for x, y in zip(old, one)) < 1e-4)


def cancel() -> None:
    stream = chat(stream=True, options={"num_predict": 900, "ignore_eos": True})
    for _, _ in zip(range(5), stream):
        pass
    stream.close()
    idle("after a cancel mid-stream")


async def many() -> None:
    several = ollama.AsyncClient(host=BASE, timeout=300)

    async def one(i: int) -> str:
        messages = [{"role": "user", "content": f"{PROMPT} number {i % 8}"}]
        ask = {"model": MODEL, "messages": messages, "options": {"temperature": 0, "num_predict": 24}}
        if i % 2:
            return (await several.chat(**ask)).message.content
        return "".join([line.message.content or "" async for line in await several.chat(**ask, stream=True)])

    await at_once(one)


def main() -> None:
    print(f"ollama, model {MODEL}")
    for part in [whole_and_streamed, tools, structure_and_thinking, models, errors, cancel]:
        part()
    if len(sys.argv) > 2:
        embeddings(sys.argv[2])
    asyncio.run(many())
    idle("in the end")


if __name__ == "__main__":
    main()
