"""Writes the demo model as a GGUF file of Q8_0 blocks.

usage: export.py OUT_DIR FILE.gguf

OUT_DIR is what `train.py` or `tune.py` wrote: `tokenizer.json` and `model.pt`. Nothing is drawn by lot: the same weights give
the same file. What `tune.py` wrote has tokens for who speaks, and gets a chat template.
"""
import json
import pathlib
import struct
import sys

import numpy as np
import torch

import train

F32, Q8_0 = 0, 8
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + eos_token }}"
    "{% elif message['role'] in ['system', 'developer'] %}{{ '<|system|>' + message['content'] }}"
    "{% else %}{{ '<|user|>' + message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
ALIGN = 32
U32, I32, FLOAT, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
NORMAL, CONTROL = 1, 3


def text(s: str) -> bytes:
    data = s.encode()
    return struct.pack("<Q", len(data)) + data


def value(v) -> bytes:
    """A metadata value with its type in front."""
    if isinstance(v, bool):
        return struct.pack("<I?", BOOL, v)
    if isinstance(v, int):
        return struct.pack("<II", U32, v)
    if isinstance(v, float):
        return struct.pack("<If", FLOAT, v)
    if isinstance(v, str):
        return struct.pack("<I", STRING) + text(v)
    head = struct.pack("<I", ARRAY)
    if isinstance(v[0], str):
        return head + struct.pack("<IQ", STRING, len(v)) + b"".join(text(s) for s in v)
    return head + struct.pack("<IQ", I32, len(v)) + struct.pack(f"<{len(v)}i", *v)


def q8_0(x: np.ndarray) -> bytes:
    """Blocks of 32: an f16 scale, then 32 signed bytes."""
    blocks = x.reshape(-1, 32).astype(np.float32)
    scale = np.abs(blocks).max(axis=1) / 127
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    codes = np.rint(blocks * inverse[:, None]).astype(np.int8)
    return b"".join(np.float16(s).tobytes() + c.tobytes() for s, c in zip(scale, codes))


def neighbours(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows from rope over halves, as trained, to rope over neighbours, as GGUF files of this architecture have it."""
    return w.reshape(heads, 2, -1, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def tensors(model: dict[str, torch.Tensor]):
    """Names, values and types, in the file's order."""
    w = {name: t.float().numpy() for name, t in model.items()}
    yield "token_embd.weight", w["embed.weight"], Q8_0
    for i in range(train.LAYERS):
        here, there = f"layers.{i}.", f"blk.{i}."
        yield there + "attn_norm.weight", w[here + "norm1.weight"], F32
        yield there + "attn_q.weight", neighbours(w[here + "q.weight"], train.HEADS), Q8_0
        yield there + "attn_k.weight", neighbours(w[here + "k.weight"], train.KV_HEADS), Q8_0
        yield there + "attn_v.weight", w[here + "v.weight"], Q8_0
        yield there + "attn_output.weight", w[here + "o.weight"], Q8_0
        yield there + "ffn_norm.weight", w[here + "norm2.weight"], F32
        yield there + "ffn_gate.weight", w[here + "gate.weight"], Q8_0
        yield there + "ffn_up.weight", w[here + "up.weight"], Q8_0
        yield there + "ffn_down.weight", w[here + "down.weight"], Q8_0
    yield "output_norm.weight", w["norm.weight"], F32


def metadata(tokenizer: dict) -> dict:
    ids = tokenizer["model"]["vocab"] | {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    vocab, control = sorted(ids, key=ids.get), train.SPECIALS + train.ROLES
    talks = {"tokenizer.chat_template": CHAT_TEMPLATE} if train.ROLES[0] in ids else {}
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    return {
        "general.architecture": "llama",
        "general.name": "Tallow demo",
        "general.description": "A small story teller, trained on children's books of the nineteenth and early twentieth century",
        "general.license": "mit OR apache-2.0",
        "general.file_type": 7,
        "general.quantization_version": 2,
        # So small a model tells the same again and again unless it is held back.
        "general.sampling.temp": 0.8,
        "general.sampling.penalty_repeat": 1.15,
        "llama.vocab_size": len(vocab),
        "llama.context_length": train.CONTEXT,
        "llama.embedding_length": train.DIM,
        "llama.block_count": train.LAYERS,
        "llama.feed_forward_length": train.FFN,
        "llama.attention.head_count": train.HEADS,
        "llama.attention.head_count_kv": train.KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": train.EPS,
        "llama.rope.dimension_count": train.DIM // train.HEADS,
        "llama.rope.freq_base": train.ROPE_THETA,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocab,
        "tokenizer.ggml.token_type": [CONTROL if t in control else NORMAL for t in vocab],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": train.BOS,
        "tokenizer.ggml.eos_token_id": train.EOS,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        **talks,
    }


def main() -> None:
    source, target = map(pathlib.Path, sys.argv[1:3])
    keys = metadata(json.loads((source / "tokenizer.json").read_text(encoding="utf-8")))
    listed = list(tensors(torch.load(source / "model.pt", map_location="cpu")))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(keys))
    for key, v in keys.items():
        head += text(key) + value(v)
    data = b""
    for name, x, kind in listed:
        shape = x.shape[::-1]
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", kind, len(data))
        data += x.astype("<f4").tobytes() if kind == F32 else q8_0(x)
        data += bytes(-len(data) % ALIGN)
    target.write_bytes(head + bytes(-len(head) % ALIGN) + data)
    print(f"{target}: {target.stat().st_size:,} bytes, {len(listed)} tensors")


if __name__ == "__main__":
    main()
