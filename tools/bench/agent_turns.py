#!/usr/bin/env python3
"""Plays an agent's conversation by each protocol's official client: how much of what a server has seen is computed again?

    python3 tools/bench/agent_turns.py TALLOW MODEL [--turns 20] [--chars 500] [--protocol NAME] [SERVE OPTION...]
    python3 tools/bench/agent_turns.py LLAMA-SERVER MODEL --llama [LLAMA-SERVER OPTION...]     # the protocols that it speaks

Needs the clients (`cargo xtask clients` installs them in target/clients) and a model whose chat template has tools, or
--chat-template tests/clients/agent.jinja. Each turn resends everything, as agents do: instructions and tools, results of tools,
and the answers; OpenAI's Responses are also gone on from by their ids. Every third answer is a forced call, whose result comes next.
What a turn has seen before is the prompt and the answer of the turn before it; how many tokens of a prompt were computed, the
server's own metrics say, and how many it has, its answers. Prints a table in Markdown."""

import argparse
import json
import pathlib
import random
import urllib.request
from statistics import median

from processes import program, running

SYSTEM = "You are an agent that looks after a house. " * 20
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"],
        "additionalProperties": False}
DESCRIPTION = "Says the weather of a city. " * 10
ANSWER = 48
# Keeps answers of random weights to their length.
MORE = {"ignore_eos": True}


# Tokens by the server's metrics, those of the second list to be taken off.
TALLOW = {"computed": (["vllm:prompt_tokens_total"], ["vllm:prefix_cache_hits_total"]),
          "answer": (["vllm:generation_tokens_total"], [])}
LLAMA = {"computed": (["llamacpp:prompt_tokens_total"], []), "answer": (["llamacpp:tokens_predicted_total"], [])}


def metrics(base: str, names: dict) -> dict[str, int]:
    with urllib.request.urlopen(f"{base}/metrics") as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#")]
    total = lambda names: sum(float(value) for name, value in lines if name.split("{")[0] in names)
    return {short: int(total(more) - total(less)) for short, (more, less) in names.items()}


class Chat:
    """OpenAI's chat completions."""

    def __init__(self, base: str, model: str):
        import openai

        self.client, self.model = openai.OpenAI(base_url=f"{base}/v1", api_key="none", timeout=600), model
        self.messages = [{"role": "system", "content": SYSTEM}]
        self.tools = [{"type": "function", "function": {"name": "weather", "description": DESCRIPTION, "parameters": CITY}}]
        self.call = None

    def turn(self, text: str, calls: bool) -> int:
        if self.call:
            self.messages.append({"role": "tool", "tool_call_id": self.call, "content": text})
        else:
            self.messages.append({"role": "user", "content": text})
        more = {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200} if calls else {
            "max_tokens": ANSWER, "extra_body": MORE}
        reply = self.client.chat.completions.create(model=self.model, messages=self.messages, tools=self.tools,
                                                    temperature=0, **more)
        made = reply.choices[0].message
        self.messages.append(made.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
        self.call = made.tool_calls[0].id if made.tool_calls else None
        return reply.usage.prompt_tokens


class Responses:
    """OpenAI's Responses, with all items each time."""

    stateful = False

    def __init__(self, base: str, model: str):
        import openai

        self.client, self.model = openai.OpenAI(base_url=f"{base}/v1", api_key="none", timeout=600), model
        self.tools = [{"type": "function", "name": "weather", "description": DESCRIPTION, "parameters": CITY, "strict": False}]
        self.items, self.call, self.previous = [], None, None

    def turn(self, text: str, calls: bool) -> int:
        new = {"type": "function_call_output", "call_id": self.call, "output": text} if self.call else {
            "role": "user", "content": text}
        self.items.append(new)
        more = {"tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 200} if calls else {
            "max_output_tokens": ANSWER, "extra_body": MORE, "tool_choice": "auto"}
        given = {"input": [new], "previous_response_id": self.previous} if self.stateful else {"input": self.items}
        made = self.client.responses.create(model=self.model, instructions=SYSTEM, tools=self.tools, temperature=0,
                                            **given, **more)
        self.items += [item.model_dump(exclude_none=True) for item in made.output]
        called = [item.call_id for item in made.output if item.type == "function_call"]
        self.call, self.previous = (called[0] if called else None), made.id
        return made.usage.input_tokens


class Stateful(Responses):
    """OpenAI's Responses, gone on from by their ids."""

    stateful = True


class Messages:
    """Anthropic's messages."""

    def __init__(self, base: str, model: str):
        import anthropic

        self.client, self.model = anthropic.Anthropic(base_url=base, api_key="none", timeout=600), model
        self.tools = [{"name": "weather", "description": DESCRIPTION, "input_schema": CITY}]
        self.messages, self.call = [], None

    def turn(self, text: str, calls: bool) -> int:
        content = [{"type": "tool_result", "tool_use_id": self.call, "content": text}] if self.call else text
        self.messages.append({"role": "user", "content": content})
        extra = {"temperature": 0} if calls else {"temperature": 0, **MORE}
        choice = {"type": "any", "disable_parallel_tool_use": True} if calls else {"type": "auto"}
        made = self.client.messages.create(model=self.model, messages=self.messages, system=SYSTEM, tools=self.tools,
                                           tool_choice=choice, max_tokens=200 if calls else ANSWER, extra_body=extra)
        self.messages.append({"role": "assistant", "content": [block.model_dump() for block in made.content]})
        called = [block.id for block in made.content if block.type == "tool_use"]
        self.call = called[0] if called else None
        return made.usage.input_tokens + (made.usage.cache_read_input_tokens or 0)


class Ollama:
    """Ollama's chats, which force no calls."""

    def __init__(self, base: str, model: str):
        import ollama

        self.client, self.model = ollama.Client(host=base, timeout=600), model
        self.messages = [{"role": "system", "content": SYSTEM}]
        self.tools = [{"type": "function", "function": {"name": "weather", "description": DESCRIPTION, "parameters": CITY}}]

    def turn(self, text: str, _calls: bool) -> int:
        self.messages.append({"role": "user", "content": text})
        options = {"temperature": 0, "num_predict": ANSWER, **MORE}
        made = self.client.chat(model=self.model, messages=self.messages, tools=self.tools, options=options)
        self.messages.append(made.message.model_dump(exclude_none=True))
        return made.prompt_eval_count


PROTOCOLS = [Chat, Responses, Stateful, Messages, Ollama]
LLAMA_PROTOCOLS = [Chat, Responses, Messages]


def play(base: str, model: str, protocol: type, options: argparse.Namespace) -> str:
    # Another beginning for each protocol: they share a server, and should share nothing of its cache.
    chance = random.Random(protocol.__name__)
    word = lambda: "".join(chance.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(chance.randrange(2, 9)))
    agent = protocol(base, model)
    names = LLAMA if options.llama else TALLOW
    before, known, again, computed, shares = metrics(base, names), 0, 0, 0, []
    for turn in range(options.turns):
        text = ""
        while len(text) < options.chars:
            text += word() + " "
        prompt = agent.turn(text, turn % 3 == 2)
        after = metrics(base, names)
        new, answer = (after[name] - before[name] for name in ["computed", "answer"])
        if turn:
            again += max(0, known - (prompt - new))
            shares.append(1 - new / prompt)
        computed += new
        known, before = prompt + answer, after
    share = 100 * again / known
    return f"| {protocol.__doc__.rstrip('.')} | {known} | {computed} | {again} | {share:.2f} | {100 * median(shares):.1f} |"


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tallow", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--chars", type=int, default=500)
    parser.add_argument("--protocol", choices=[kind.__name__ for kind in PROTOCOLS], help="this one alone")
    parser.add_argument("--llama", action="store_true", help="the program is llama.cpp's llama-server")
    options, more = parser.parse_known_args(args)
    server, model, models = str(options.tallow), str(options.model), "/api/tags"
    command, protocols = [server, "serve", model, "--offline", *more], PROTOCOLS
    if options.llama:
        command, protocols = [server, "-m", model, "--jinja", "--metrics", *more], LLAMA_PROTOCOLS
        models = "/v1/models"
    with running(command) as (port, _):
        base = f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(base + models) as answer:
            first = json.load(answer)["models"][0]
        print(f"{options.turns} turns. Computed again: tokens of the turn before that were not in the prefix cache.\n")
        print("| protocol | tokens in the end | prompt tokens computed | computed again | % of all | cached, median % |")
        print("|---|---:|---:|---:|---:|---:|")
        for protocol in [kind for kind in protocols if options.protocol in (None, kind.__name__)]:
            print(play(base, first["model"], protocol, options), flush=True)
    return 0


if __name__ == "__main__":
    program(main)
