"""Drives a server with OpenAI's own Python client as agents do: tools, structures, reasoning, and the Responses API.

usage: openai_agent.py BASE_URL

Run by `cargo xtask clients`, which serves the demo model with a template that has tools and thinking.
"""
import json
import time

import openai
import pydantic
from checks import BASE, CITY, PERSON, PROMPT, check, idle, is_city, is_person, raises

client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="none", max_retries=0, timeout=120)
MODEL = client.models.list().data[0].id
TOOL = {"type": "function", "function": {"name": "weather", "description": "Says the weather.", "parameters": CITY}}
FLAT = {"type": "function", "name": "weather", "description": "Says the weather.", "parameters": CITY, "strict": True}


class Person(pydantic.BaseModel):
    name: str
    age: int


def chat(**more):
    messages = [{"role": "user", "content": PROMPT}]
    return client.chat.completions.create(**{"model": MODEL, "messages": messages, "max_tokens": 200, "seed": 7, **more})


def tools() -> None:
    for choice in ["required", {"type": "function", "function": {"name": "weather"}}]:
        made = chat(tools=[TOOL], tool_choice=choice, parallel_tool_calls=False).choices[0]
        check(f"a call is forced by {choice}", made.finish_reason == "tool_calls", made)
        call = made.message.tool_calls[0]
        check("it names the tool", call.function.name == "weather" and len(made.message.tool_calls) == 1, call)
        check("its arguments are valid", is_city(json.loads(call.function.arguments)), call)
    name, arguments, ids, reason = "", "", [], None
    for chunk in chat(tools=[TOOL], tool_choice="required", parallel_tool_calls=False, stream=True):
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
            for delta in choice.delta.tool_calls or []:
                ids += [delta.id] if delta.id else []
                name += delta.function.name or ""
                arguments += delta.function.arguments or ""
    check("a streamed call is whole", (name, len(ids), reason) == ("weather", 1, "tool_calls"), (name, ids, reason))
    check("and valid", is_city(json.loads(arguments)), arguments)
    back = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": None, "tool_calls": [
        {"id": ids[0], "type": "function", "function": {"name": name, "arguments": arguments}}]},
        {"role": "tool", "tool_call_id": ids[0], "content": "Sun"}]
    check("its result is answered", bool(chat(messages=back, tools=[TOOL]).choices[0].message.content))
    free = chat(tools=[TOOL], tool_choice="auto").choices[0]
    check("a model that may call need not", bool(free.message.content or free.message.tool_calls), free)
    none = chat(tools=[TOOL], tool_choice="none").choices[0]
    check("none is none", none.message.tool_calls is None, none)


def structures() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    text = chat(response_format=schema).choices[0].message.content
    check("an answer has the schema", is_person(json.loads(text)), text)
    pieces = [c.choices[0].delta.content or "" for c in chat(response_format=schema, stream=True) if c.choices]
    check("streamed, the same", "".join(pieces) == text, pieces)
    messages = [{"role": "user", "content": PROMPT}]
    parsed = client.chat.completions.parse(model=MODEL, messages=messages, response_format=Person, max_tokens=300)
    check("the client parses a model of its own", parsed.choices[0].message.parsed is not None
          or parsed.choices[0].finish_reason == "length", parsed)
    two = chat(response_format=schema, n=2, logprobs=True, top_logprobs=2)
    check("with n and logprobs", all(is_person(json.loads(c.message.content)) for c in two.choices), two)
    yes = chat(extra_body={"guided_choice": ["yes", "no"]}).choices[0].message.content
    check("a choice is one of them", yes in ["yes", "no"], yes)


def reasoning() -> None:
    # A model that tells stories may end one within its thinking.
    on = {"thinking": {"type": "enabled", "budget_tokens": 20}, "ignore_eos": True}
    message = chat(max_tokens=60, extra_body=on).choices[0].message
    check("thinking has a field of its own", bool(message.reasoning_content) and bool(message.content), message)
    usage = chat(max_tokens=60, extra_body=on).usage
    found = usage.completion_tokens_details.reasoning_tokens
    check("and its tokens are counted, within the budget", 20 <= found <= 20 + 12, usage)
    pieces = list(chat(max_tokens=60, extra_body=on, stream=True))
    texts = ["".join(getattr(c.choices[0].delta, name, None) or "" for c in pieces if c.choices)
             for name in ["reasoning_content", "content"]]
    check("streamed, the same", texts == [message.reasoning_content, message.content], texts)


def responses() -> None:
    made = client.responses.create(model=MODEL, input=PROMPT, max_output_tokens=20)
    check("a response", made.status == "incomplete" and made.incomplete_details.reason == "max_output_tokens", made)
    check("with a text", len(made.output_text) > 10 and made.usage.output_tokens == 20, made)
    next_one = client.responses.create(model=MODEL, input="And then?", previous_response_id=made.id, max_output_tokens=20)
    check("is gone on from", next_one.previous_response_id == made.id
          and next_one.usage.input_tokens > made.usage.total_tokens, next_one.usage)
    check("is kept", client.responses.retrieve(made.id).output_text == made.output_text)
    check("with its input", client.responses.input_items.list(next_one.id).data[0].content[0].text == "And then?")
    events = list(client.responses.create(model=MODEL, input=PROMPT, max_output_tokens=20, temperature=0, stream=True))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    check("streams", events[-1].type == "response.incomplete" and events[-1].response.output_text == text, events[-1])
    with client.responses.stream(model=MODEL, input=PROMPT, max_output_tokens=20, temperature=0) as stream:
        helped = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    check("by the client's helper, too", helped == text, helped)
    called = client.responses.create(model=MODEL, input=PROMPT, tools=[FLAT], tool_choice="required", max_output_tokens=200)
    call = next(item for item in called.output if item.type == "function_call")
    check("calls", call.name == "weather" and is_city(json.loads(call.arguments)), called.output)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Sun"}
    after = client.responses.create(model=MODEL, input=[result], previous_response_id=called.id, max_output_tokens=10)
    check("and goes on from their results", bool(after.output_text), after)
    parsed = client.responses.parse(model=MODEL, input=PROMPT, text_format=Person, max_output_tokens=300, temperature=0)
    check("parses", isinstance(parsed.output_parsed, Person) or parsed.status == "incomplete", parsed)
    thought = client.responses.create(model=MODEL, input=PROMPT, max_output_tokens=60, reasoning={"effort": "high"},
                                      extra_body={"thinking_budget": 20, "ignore_eos": True})
    check("reasons", [item.type for item in thought.output] == ["reasoning", "message"], thought.output)
    slow = client.responses.create(model=MODEL, input=PROMPT, background=True, extra_body={"ignore_eos": True})
    check("works in the background", slow.status == "in_progress", slow)
    check("and is cancelled", client.responses.cancel(slow.id).status == "cancelled")
    idle("after that")
    quick = client.responses.create(model=MODEL, input=PROMPT, background=True, max_output_tokens=5)
    until = time.monotonic() + 20
    while quick.status == "in_progress" and time.monotonic() < until:
        time.sleep(0.05)
        quick = client.responses.retrieve(quick.id)
    check("or is complete", quick.status == "incomplete" and bool(quick.output_text), quick)
    client.responses.delete(made.id)
    raises("what is deleted is gone", openai.NotFoundError, lambda: client.responses.retrieve(made.id), 404)
    raises("and not gone on from", openai.NotFoundError,
           lambda: client.responses.create(model=MODEL, input="x", previous_response_id=made.id), 404)


def errors() -> None:
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "uniqueItems": True}}}
    error = raises("what cannot be enforced is refused", openai.BadRequestError, lambda: chat(response_format=bad), 400)
    check("by its place", error.param == "response_format" and "/uniqueItems" in error.message, error)
    raises("a tool that is not there is refused", openai.BadRequestError,
           lambda: chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "other"}}), 400)


def main() -> None:
    print(f"openai {openai.__version__} as an agent, model {MODEL}")
    for part in [tools, structures, reasoning, responses, errors]:
        part()
    idle("in the end")


if __name__ == "__main__":
    main()
