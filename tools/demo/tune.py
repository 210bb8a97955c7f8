"""Teaches the demo model to talk: goes on from a trained model with conversations beside the books.

usage: tune.py FROM.gguf CLEAN_DIR TALKS.jsonl OUT_DIR [--steps N]

FROM is what `export.py` wrote after `train.py`, CLEAN_DIR what `prepare.py` wrote, TALKS what `talks.py` wrote. OUT_DIR gets
`tokenizer.json`, `model.pt` (averaged weights, for `export.py`), `state.pt` (to go on after an interruption) and `log.txt`.

Half of each batch are windows of the books, so that the model still writes prose of its own; of the conversations only
what the assistant says is learnt. An hour or two on one CPU core.
"""
import argparse
import json
import math
import pathlib
import time

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn

import train

LENGTH = 512
NOT_LEARNT = -100


def from_gguf(path: pathlib.Path) -> tuple[Tokenizer, dict[str, torch.Tensor]]:
    """The tokenizer and the weights of an exported model, under the names that `train.py` has for them."""
    reader = gguf.GGUFReader(path)
    tokens, merges = (reader.fields[f"tokenizer.ggml.{what}"].contents() for what in ("tokens", "merges"))
    vocab = {token: i for i, token in enumerate(tokens) if token not in train.ROLES}
    tok = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split(" ")) for m in merges]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens(train.SPECIALS + train.ROLES)
    names = {"attn_norm": "norm1", "attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "o", "ffn_norm": "norm2", "ffn_gate": "gate", "ffn_up": "up", "ffn_down": "down"}
    weights = {}
    for t in reader.tensors:
        x = torch.from_numpy(gguf.dequantize(t.data, t.tensor_type).reshape(tuple(reversed(t.shape.tolist()))).copy())
        if t.name.startswith("blk."):
            _, layer, what, _ = t.name.split(".")
            if what in ("attn_q", "attn_k"):
                heads = train.HEADS if what == "attn_q" else train.KV_HEADS
                # From rope over neighbours back to rope over halves.
                x = x.reshape(heads, -1, 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
            weights[f"layers.{layer}.{names[what]}.weight"] = x
        else:
            weights[{"token_embd": "embed.weight", "output_norm": "norm.weight"}[t.name.removesuffix(".weight")]] = x
    # New tokens begin as the mean of the others, so that they say nothing yet.
    known = weights["embed.weight"]
    missing = train.VOCAB + len(train.ROLES) - known.shape[0]
    weights["embed.weight"] = torch.cat([known, known.mean(0, keepdim=True).repeat(missing, 1)])
    return tok, weights


def conversations(tok: Tokenizer, path: pathlib.Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All conversations in one row of tokens, what of it is learnt, and where each begins."""
    ids, learnt, starts = [], [], []
    role = {name: tok.token_to_id(f"<|{name}|>") for name in ("system", "user", "assistant")}
    for line in path.open(encoding="utf-8"):
        starts.append(len(ids))
        ids.append(train.BOS)
        learnt.append(False)
        for who, text in json.loads(line):
            said = tok.encode(text, add_special_tokens=False).ids
            mine = who == "assistant"
            said = [role[who], *said] + ([train.EOS] if mine else [])
            ids += said
            learnt += [False] + [mine] * (len(said) - 1)
    return np.array(ids), np.array(learnt), np.array(starts)


def talk_rows(talks, size: int, rng):
    """Windows that begin where a conversation does."""
    ids, learnt, starts = talks
    xs, ys = [], []
    for _ in range(size):
        at = min(int(starts[rng.integers(len(starts))]), len(ids) - LENGTH - 1)
        xs.append(ids[at : at + LENGTH])
        ys.append(np.where(learnt[at + 1 : at + LENGTH + 1], ids[at + 1 : at + LENGTH + 1], NOT_LEARNT))
    return torch.from_numpy(np.stack(xs)), torch.from_numpy(np.stack(ys))


def main() -> None:
    args = argparse.ArgumentParser()
    args.add_argument("source", type=pathlib.Path)
    args.add_argument("clean", type=pathlib.Path)
    args.add_argument("talks", type=pathlib.Path)
    args.add_argument("out", type=pathlib.Path)
    args.add_argument("--steps", type=int, default=1500)
    args.add_argument("--rows", type=int, default=8, help="windows in a step, half of them conversations")
    a = args.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    tok, weights = from_gguf(a.source)
    tok.save(str(a.out / "tokenizer.json"))
    train_text, valid_text = ((a.clean / f"{name}.txt").read_text(encoding="utf-8") for name in ("train", "valid"))
    books, starts = train.encode(tok, train_text)
    valid, _ = train.encode(tok, valid_text)
    talks = conversations(tok, a.talks)
    model, average = (train.Model(0.05, vocab=train.VOCAB + len(train.ROLES)) for _ in range(2))
    model.load_state_dict(weights)
    average.load_state_dict(weights)
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    optimizers = [train.Muon(matrices, lr=0.008, weight_decay=0.05), torch.optim.AdamW(others, lr=1.5e-3, betas=(0.9, 0.95), weight_decay=0.01)]
    for group in (g for o in optimizers for g in o.param_groups):
        group["peak"] = group["lr"]
    first, state = 0, a.out / "state.pt"
    if state.exists():
        s = torch.load(state)
        model.load_state_dict(s["model"])
        average.load_state_dict(s["average"])
        for o, d in zip(optimizers, s["optimizers"]):
            o.load_state_dict(d)
        first = s["step"]
    log = open(a.out / "log.txt", "a", buffering=1)

    def say(line: str) -> None:
        print(line, flush=True)
        log.write(line + "\n")

    say(f"{len(books):,} tokens of books, {len(talks[0]):,} of conversations; held-out perplexity {train.perplexity(average, valid, 'cpu'):.2f}")
    begun, shown = time.time(), [0.0, 0.0]
    for step in range(first, a.steps):
        rng = np.random.default_rng(step)
        half = a.rows // 2
        pages = train.batch(books, starts, a.rows - half, LENGTH, rng, "cpu")
        rate = min(1.0, (step + 1) / 50) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / a.steps)))
        for group in (g for o in optimizers for g in o.param_groups):
            group["lr"] = group["peak"] * rate
        losses = []
        for x, y in (pages, talk_rows(talks, half, rng)):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(x)
            loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten(), ignore_index=NOT_LEARNT)
            (0.5 * loss).backward()
            losses.append(loss.item())
        nn.utils.clip_grad_norm_(others, 1.0)
        for o in optimizers:
            o.step()
            o.zero_grad(set_to_none=True)
        with torch.no_grad():
            keep = min(0.99, (step - first + 1) / (step - first + 10))
            for p, q in zip(average.parameters(), model.parameters()):
                p.lerp_(q, 1 - keep)
        shown = losses if step == first else [0.95 * s + 0.05 * l for s, l in zip(shown, losses)]
        if (step + 1) % 25 == 0:
            say(f"step {step + 1} loss of books {shown[0]:.3f}, of conversations {shown[1]:.3f}; {(time.time() - begun) / (step + 1 - first):.2f} s a step")
        if (step + 1) % 250 == 0 or step + 1 == a.steps:
            say(f"step {step + 1} held-out perplexity {train.perplexity(average, valid, 'cpu'):.2f}")
            torch.save(average.state_dict(), a.out / "model.pt")
            torch.save(dict(model=model.state_dict(), average=average.state_dict(), optimizers=[o.state_dict() for o in optimizers], step=step + 1), state)


if __name__ == "__main__":
    main()
