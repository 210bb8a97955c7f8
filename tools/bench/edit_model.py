#!/usr/bin/env python3
"""Makes a model that writes texts it knows by heart, however they were edited in its prompt: for measuring speculative decoding.

    python3 tools/bench/edit_model.py FOLDER [--layers 28] [--dim 1024] [--ffn 3072]
    tallow convert FOLDER edits.gguf --quant Q4_K_M
    python3 tools/bench/speculative.py TALLOW edits.gguf --edits

Random weights answer nothing that could be guessed, and a trained model that edits code is not always at hand. This one has
the shapes of a Qwen3 of 0.6B, and costs what that costs. Its layers change nothing (their last products are zero), and its
head has learned by heart which token follows which: each of some texts (TEXTS of TEXT tokens) goes round in a circle. A prompt with
such a text in which some tokens are changed is answered by the text as it was: like the old version of a file, of which the
answer is the new one.

Writes a Hugging Face folder. Needs nothing but Python."""

import argparse
import json
import pathlib
import random
import struct
from array import array

FIRST, TEXT, TEXTS = 300, 160, 11
VOCAB = 151936
END = VOCAB - 1
HEADS, KV_HEADS, HEAD_DIM = 16, 8, 128


def token(text: int, place: int) -> int:
    """The token at a place of a text; after the last one comes the first."""
    return FIRST + text * TEXT + place % TEXT


def bf16(numbers: array) -> bytes:
    halves = bytearray(2 * len(numbers))
    halves[::2], halves[1::2] = numbers.tobytes()[2::4], numbers.tobytes()[3::4]
    return bytes(halves)


class Weights:
    """Random weights: pieces of the same few, since making them one by one would take minutes."""

    def __init__(self, seed: int):
        self.chance = random.Random(seed)
        self.some = self.drawn(1 << 20)

    def drawn(self, count: int) -> bytes:
        return bf16(array("f", [self.chance.gauss(0, 0.02) for _ in range(count)]))

    def pieces(self, count: int):
        while count > 0:
            start = self.chance.randrange(len(self.some) // 4) * 2
            piece = self.some[start:start + 2 * count]
            yield piece
            count -= len(piece) // 2


def tensors(layers: int, dim: int, ffn: int) -> list[tuple]:
    """Name, shape and pieces of each tensor."""
    weights = Weights(1)
    zeros = lambda count: [bytes(2 * count)]
    ones = lambda count: [bf16(array("f", [1.0])) * count]
    known = [weights.drawn(dim) for _ in range(TEXTS * TEXT)]
    before = [known[text * TEXT + (place - 1) % TEXT] for text in range(TEXTS) for place in range(TEXT)]

    def table(rows: list[bytes], others):
        """A row for each token: these for those of the texts."""
        yield from others(FIRST * dim)
        yield from rows
        yield from others((VOCAB - FIRST - len(rows)) * dim)

    found = [("model.embed_tokens.weight", (VOCAB, dim), lambda: table(known, weights.pieces)),
             # Other tokens have zeros: they are never the most likely.
             ("lm_head.weight", (VOCAB, dim), lambda: table(before, zeros)),
             ("model.norm.weight", (dim,), lambda: ones(dim))]
    for layer in range(layers):
        made = lambda rows, cols: ((rows, cols), lambda: weights.pieces(rows * cols))
        silent = lambda rows, cols: ((rows, cols), lambda: zeros(rows * cols))
        norm = lambda count: ((count,), lambda: ones(count))
        parts = {
            "input_layernorm": norm(dim), "post_attention_layernorm": norm(dim),
            "self_attn.q_norm": norm(HEAD_DIM), "self_attn.k_norm": norm(HEAD_DIM),
            "self_attn.q_proj": made(HEADS * HEAD_DIM, dim), "self_attn.k_proj": made(KV_HEADS * HEAD_DIM, dim),
            "self_attn.v_proj": made(KV_HEADS * HEAD_DIM, dim), "self_attn.o_proj": silent(dim, HEADS * HEAD_DIM),
            "mlp.gate_proj": made(ffn, dim), "mlp.up_proj": made(ffn, dim), "mlp.down_proj": silent(dim, ffn)}
        found += [(f"model.layers.{layer}.{name}.weight", *part) for name, part in parts.items()]
    return found


def write_model(folder: pathlib.Path, layers: int, dim: int, ffn: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    parts = tensors(layers, dim, ffn)
    header, end = {}, 0
    for name, shape, _ in parts:
        start, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for _, _, made in parts:
            file.writelines(made())

    def write(name: str, value: dict) -> None:
        (folder / name).write_text(json.dumps(value))

    write("config.json", {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": dim, "intermediate_size": ffn,
        "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "vocab_size": VOCAB, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu", "max_position_embeddings": 4096,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": END, "eos_token_id": END, "attention_bias": False})
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    characters = {byte: chr(byte) for byte in visible} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    names = [characters[byte] for byte in range(256)] + [f"t{number}." for number in range(256, END)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    last = {"id": END, "content": "<|end|>", "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    write("tokenizer.json", {
        "version": "1.0", "added_tokens": [last], "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "vocab": {name: number for number, name in enumerate(names)}, "merges": []}})
    write("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--ffn", type=int, default=3072)
    options = parser.parse_args()
    write_model(options.folder, options.layers, options.dim, options.ffn)


if __name__ == "__main__":
    main()
