"""Drives a server with LiteLLM, which translates between the protocols itself.

usage: litellm_client.py BASE_URL [BASE_URL OF AN EMBEDDING MODEL]

Run by `cargo xtask clients`, which serves the demo model with a template that has tools and thinking.
"""
import asyncio
import json
import os
import sys

# Its table of prices comes with it.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from checks import BASE, CITY, PERSON, PROMPT, at_once, check, idle, is_city, is_person, post, raises

MODEL = json.load(__import__("urllib.request").request.urlopen(f"{BASE}/v1/models"))["data"][0]["id"]
MESSAGES = [{"role": "user", "content": PROMPT}]
TOOL = {"type": "function", "function": {"name": "weather", "description": "Says the weather.", "parameters": CITY}}
# The same server by three protocols.
ROUTES = {
    "openai": {"model": f"openai/{MODEL}", "api_base": f"{BASE}/v1", "api_key": "none"},
    "anthropic": {"model": f"anthropic/{MODEL}", "api_base": BASE, "api_key": "none"},
    "ollama": {"model": f"ollama_chat/{MODEL}", "api_base": BASE},
}


def ask(route: str, **more):
    return {"messages": MESSAGES, "max_tokens": 24, "temperature": 0, "num_retries": 0, **ROUTES[route], **more}


def every_protocol() -> None:
    texts = {}
    for route in ROUTES:
        made = litellm.completion(**ask(route))
        texts[route] = made.choices[0].message.content
        check(f"{route}: a chat", made.choices[0].finish_reason == "length" and made.usage.completion_tokens == 24, made)
        streamed = "".join(c.choices[0].delta.content or "" for c in litellm.completion(**ask(route, stream=True)))
        check(f"{route}: streamed = whole", streamed == texts[route], streamed)
    check("all say the same", len(set(texts.values())) == 1, texts)


def tools() -> None:
    for route in ["openai", "anthropic"]:
        made = litellm.completion(**ask(route, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=200))
        call = made.choices[0].message.tool_calls[0]
        check(f"{route}: a call is forced", made.choices[0].finish_reason == "tool_calls", made)
        check(f"{route}: and valid", call.function.name == "weather" and is_city(json.loads(call.function.arguments)), call)
        pieces = litellm.completion(**ask(route, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=200, stream=True))
        built = litellm.stream_chunk_builder(list(pieces))
        check(f"{route}: streamed, the same",
              json.loads(built.choices[0].message.tool_calls[0].function.arguments) == json.loads(call.function.arguments))


def structures() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    for route in ["openai", "ollama"]:
        text = litellm.completion(**ask(route, response_format=schema, max_tokens=200)).choices[0].message.content
        check(f"{route}: an answer has the schema", is_person(json.loads(text)), text)


def reasoning() -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    made = litellm.completion(**ask("anthropic", thinking=thinking, temperature=1, max_tokens=1500, allowed_openai_params=["thinking"])).choices[0].message
    check("anthropic: thinking has a field of its own", bool(made.reasoning_content), made)


def errors() -> None:
    for route in ROUTES:
        def call():
            litellm.completion(**ask(route, messages=[{"role": "user", "content": "word " * 5000}]))

        try:
            call()
        except litellm.exceptions.APIError as e:
            check(f"{route}: a long prompt is refused", "context" in str(e) or "tokens" in str(e), e)
        except Exception as e:
            check(f"{route}: a long prompt is refused", "context" in str(e) or "tokens" in str(e), e)
        else:
            sys.exit(f"FAILED {route}: a long prompt was taken")


def embeddings(base: str) -> None:
    made = litellm.embedding(model="openai/minilm", input=["a cat", "a dog"], api_base=f"{base}/v1", api_key="none")
    check("openai: embeddings", len(made.data) == 2 and len(made.data[0]["embedding"]) == 384, made)


async def many() -> None:
    async def one(i: int) -> str:
        messages = [{"role": "user", "content": f"{PROMPT} number {i % 8}"}]
        route = ["openai", "anthropic"][i // 8 % 2]
        return (await litellm.acompletion(**ask(route, messages=messages))).choices[0].message.content

    await at_once(one)


def main() -> None:
    print(f"litellm, model {MODEL}")
    for part in [every_protocol, tools, structures, reasoning, errors]:
        part()
    if len(sys.argv) > 2:
        embeddings(sys.argv[2])
    asyncio.run(many())
    idle("in the end")


if __name__ == "__main__":
    main()
