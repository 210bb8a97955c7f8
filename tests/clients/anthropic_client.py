"""Drives a server with Anthropic's own Python client.

usage: anthropic_client.py BASE_URL

Run by `cargo xtask clients`, which serves the demo model with a template that has tools and thinking.
"""
import asyncio

import anthropic
from checks import BASE, CITY, PERSON, PROMPT, at_once, check, idle, is_city, is_person, raises

client = anthropic.Anthropic(base_url=BASE, api_key="none", max_retries=0, timeout=120)
MODEL = client.models.list().data[0].id
TOOL = {"name": "weather", "description": "Says the weather.", "input_schema": CITY}
THINKING = {"type": "enabled", "budget_tokens": 20}


def ask(**more):
    # What the client has no arguments for.
    extra = {"temperature": 0, **more.pop("extra_body", {})}
    messages = [{"role": "user", "content": PROMPT}]
    return {"model": MODEL, "max_tokens": 40, "messages": messages, "extra_body": extra, **more}


def whole_and_streamed() -> None:
    made = client.messages.create(**ask())
    check("a message", made.role == "assistant" and made.stop_reason == "max_tokens", made)
    check("with its usage", made.usage.output_tokens == 40 and made.usage.input_tokens > 3, made.usage)
    text = made.content[0].text
    with client.messages.stream(**ask()) as stream:
        streamed = "".join(stream.text_stream)
        last = stream.get_final_message()
    check("streamed = whole", streamed == text and last.content[0].text == text, streamed)
    check("and its end, too", last.stop_reason == "max_tokens" and last.usage.output_tokens == 40, last)
    kinds = [event.type for event in client.messages.create(**ask(max_tokens=3, stream=True))]
    check("events in order", kinds[:2] == ["message_start", "content_block_start"] and kinds[-3:] == [
        "content_block_stop", "message_delta", "message_stop"], kinds)
    stop = text[25:30]
    stopped = client.messages.create(**ask(stop_sequences=[stop]))
    check("a stop sequence stops", stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == stop, stopped)
    begun = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": text[:20]}]
    check("a beginning is gone on with", client.messages.create(**ask(messages=begun)).content[0].text.strip() != "")
    system = [{"type": "text", "text": "Tell of a dog.", "cache_control": {"type": "ephemeral"}}]
    counted = client.messages.count_tokens(model=MODEL, messages=ask()["messages"], system=system)
    used = client.messages.create(**ask(system=system)).usage
    check("tokens are counted", counted.input_tokens == used.input_tokens + used.cache_read_input_tokens, counted)


def tools() -> None:
    more = {"tools": [TOOL], "max_tokens": 200}
    for choice in [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"}]:
        made = client.messages.create(**ask(**more, tool_choice=choice))
        call = made.content[-1]
        check(f"a call is forced by {choice['type']}", made.stop_reason == "tool_use" and call.type == "tool_use", made)
        check("and valid", call.name == "weather" and is_city(call.input), call)
    with client.messages.stream(**ask(**more, tool_choice=choice)) as stream:
        partial = "".join(e.partial_json for e in stream if e.type == "input_json")
        last = stream.get_final_message()
    check("streamed, the same", last.content[-1].input == call.input and partial != "", (partial, last))
    turns = [*ask()["messages"], {"role": "assistant", "content": [c.model_dump() for c in made.content]},
             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Sun"}]}]
    after = client.messages.create(**ask(**more, messages=turns))
    check("its result is answered", len(after.content) > 0, after)
    free = client.messages.create(**ask(**more, tool_choice={"type": "auto"}))
    check("a model that may call need not", len(free.content) > 0, free)


def thinking_and_structure() -> None:
    made = client.messages.create(**ask(max_tokens=80, thinking=THINKING, extra_body={"ignore_eos": True}))
    check("thinking has a block of its own", [c.type for c in made.content] == ["thinking", "text"], made)
    with client.messages.stream(**ask(max_tokens=80, thinking=THINKING, extra_body={"ignore_eos": True})) as stream:
        thought = "".join(e.thinking for e in stream if e.type == "thinking")
    check("streamed, the same", thought == made.content[0].thinking, thought)
    turns = [*ask()["messages"], {"role": "assistant", "content": [c.model_dump() for c in made.content]},
             {"role": "user", "content": "And then?"}]
    check("it can be sent back", len(client.messages.create(**ask(messages=turns)).content) > 0)
    import json

    format_ = {"type": "json_schema", "schema": PERSON}
    text = client.messages.create(**ask(max_tokens=200, extra_body={"output_config": {"format": format_}})).content[0].text
    check("an answer has the schema", is_person(json.loads(text)), text)


def errors() -> None:
    bad = anthropic.BadRequestError
    error = raises("a wrong field is refused", bad, lambda: client.messages.create(**ask(extra_body={"temperature": 99})), 400)
    check("in the API's form", error.body["type"] == "error" and error.body["error"]["type"] == "invalid_request_error", error)
    raises("an unknown model is 404", anthropic.NotFoundError, lambda: client.messages.create(**ask(model="x")), 404)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    messages = [{"role": "user", "content": [image]}]
    raises("a picture is refused", bad, lambda: client.messages.create(**ask(messages=messages)), 400)


def cancel() -> None:
    stream = client.messages.create(**ask(max_tokens=900, stream=True, extra_body={"ignore_eos": True}))
    for _, _ in zip(range(5), stream):
        pass
    stream.close()
    idle("after a cancel mid-stream")


async def many() -> None:
    several = anthropic.AsyncAnthropic(base_url=BASE, api_key="none", max_retries=0, timeout=300)

    async def one(i: int) -> str:
        messages = [{"role": "user", "content": f"{PROMPT} number {i % 8}"}]
        if i % 2:
            return (await several.messages.create(**ask(messages=messages, max_tokens=24))).content[0].text
        async with several.messages.stream(**ask(messages=messages, max_tokens=24)) as stream:
            return "".join([text async for text in stream.text_stream])

    await at_once(one)


def main() -> None:
    print(f"anthropic {anthropic.__version__}, model {MODEL}")
    for part in [whole_and_streamed, tools, thinking_and_structure, errors, cancel]:
        part()
    asyncio.run(many())
    idle("in the end")


if __name__ == "__main__":
    main()
