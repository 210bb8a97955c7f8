"""Trains the demo model: a Llama-shaped story teller of about 7 M parameters.

usage: train.py CLEAN_DIR OUT_DIR [--steps N]

CLEAN_DIR is what `prepare.py` wrote. OUT_DIR gets `tokenizer.json`, `model.pt` (the averaged weights that
`export.py` reads), `state.pt` (to go on after an interruption) and `log.txt`. A few hours on two CPU cores,
minutes on a GPU.
"""
import argparse
import math
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

VOCAB, DIM, LAYERS, HEADS, KV_HEADS, FFN, CONTEXT = 4096, 256, 8, 8, 4, 768, 1024
ROPE_THETA, EPS = 10000.0, 1e-5
BOS, EOS = 0, 1
SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>"]
# Who speaks, in conversations: `tune.py` adds these behind the vocabulary.
ROLES = ["<|system|>", "<|user|>", "<|assistant|>"]


def make_tokenizer(path: pathlib.Path, text: str) -> Tokenizer:
    if path.exists():
        return Tokenizer.from_file(str(path))
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        text.split("\x00"),
        trainers.BpeTrainer(
            vocab_size=VOCAB,
            special_tokens=SPECIALS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tok.save(str(path))
    return tok


def encode(tok: Tokenizer, text: str) -> tuple[np.ndarray, np.ndarray]:
    """All stories in one row, each between BOS and EOS, and the places where a paragraph starts."""
    ids, starts = [], []
    for story in text.split("\x00"):
        ids.append(BOS)
        for i, paragraph in enumerate(story.split("\n\n")):
            starts.append(len(ids))
            ids.extend(tok.encode(("" if i == 0 else "\n\n") + paragraph).ids)
        ids.append(EOS)
    return np.array(ids, dtype=np.int64), np.array(starts, dtype=np.int64)


class SharedDropout(nn.Module):
    """Dropout whose mask is drawn once a step and shifted for each place that uses it: on a CPU, drawing is the cost."""

    def __init__(self, p: float):
        super().__init__()
        self.p, self.mask, self.uses = p, None, 0

    def draw(self, like):
        self.uses = 0
        keep = torch.rand(2 * like.shape[0], *like.shape[1:], device=like.device) >= self.p
        self.mask = keep.to(torch.bfloat16) / (1 - self.p)

    def forward(self, x):
        if not self.training or self.p == 0.0:
            return x
        at = self.uses % x.shape[0]
        self.uses += 1
        return x * self.mask[at : at + x.shape[0]]


class Norm(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, EPS)


def rope_table(length: int):
    half = DIM // HEADS // 2
    freq = ROPE_THETA ** (-torch.arange(half).float() / half)
    angle = torch.arange(length).float()[:, None] * freq
    return angle.cos(), angle.sin()


def rope(x, cos, sin):
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Layer(nn.Module):
    def __init__(self, drop: SharedDropout):
        super().__init__()
        head = DIM // HEADS
        self.norm1, self.norm2 = Norm(DIM), Norm(DIM)
        self.q = nn.Linear(DIM, DIM, bias=False)
        self.k = nn.Linear(DIM, KV_HEADS * head, bias=False)
        self.v = nn.Linear(DIM, KV_HEADS * head, bias=False)
        self.o = nn.Linear(DIM, DIM, bias=False)
        self.gate = nn.Linear(DIM, FFN, bias=False)
        self.up = nn.Linear(DIM, FFN, bias=False)
        self.down = nn.Linear(FFN, DIM, bias=False)
        self.drop = drop

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        h = self.norm1(x)
        q, k, v = (m(h).view(b, t, -1, DIM // HEADS).transpose(1, 2) for m in (self.q, self.k, self.v))
        q, k, v = rope(q, cos, sin), rope(k, cos, sin), v.float()
        with torch.autocast(x.device.type, enabled=False):  # on a CPU f32 is a third faster here than bf16
            h = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.drop(self.o(h.transpose(1, 2).reshape(b, t, DIM)))
        h = self.norm2(x)
        return x + self.drop(self.down(F.silu(self.gate(h)) * self.up(h)))


class Model(nn.Module):
    def __init__(self, dropout: float, vocab: int = VOCAB):
        super().__init__()
        self.embed = nn.Embedding(vocab, DIM)
        self.drop = SharedDropout(dropout)
        self.layers = nn.ModuleList(Layer(self.drop) for _ in range(LAYERS))
        self.norm = Norm(DIM)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                std = 0.02 if "embed" in name else p.shape[1] ** -0.5
                nn.init.normal_(p, std=std / math.sqrt(2 * LAYERS) if name.split(".")[-2] in ("o", "down") else std)

    def forward(self, ids):
        cos, sin = rope_table(ids.shape[1])
        cos, sin = cos.to(ids.device), sin.to(ids.device)
        x = self.embed(ids)
        if self.training:
            self.drop.draw(x)
        x = self.drop(x)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.linear(self.norm(x), self.embed.weight)


class Muon(torch.optim.Optimizer):
    """Momentum whose matrix update is orthogonalised (Newton-Schulz): learns more from each pass over few books."""

    def __init__(self, params, lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - group["momentum"])
                u = p.grad.lerp(m, group["momentum"]).bfloat16()
                wide = u.shape[0] <= u.shape[1]
                u = u if wide else u.T
                u = u / (u.norm() + 1e-7)
                for _ in range(5):
                    s = u @ u.T
                    u = 3.4445 * u + (-4.7750 * s + 2.0315 * s @ s) @ u
                u = (u if wide else u.T).float()
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(u, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


@torch.no_grad()
def perplexity(model, ids: np.ndarray, device, length: int = CONTEXT) -> float:
    model.eval()
    total, count = 0.0, 0
    for i in range(0, len(ids) - 1, length):
        x = torch.from_numpy(ids[i : i + length + 1]).to(device)
        logits = model(x[None, :-1])[0].float()
        total += F.cross_entropy(logits, x[1:], reduction="sum").item()
        count += len(x) - 1
    model.train()
    return math.exp(total / count)


def batch(ids, starts, size: int, length: int, rng, device):
    """Half the windows start with BOS at a paragraph, as a user's prompt does; half start anywhere."""
    rows = []
    for i in range(size):
        if i % 2 == 0:
            at = int(starts[rng.integers(len(starts))])
            at = min(at, len(ids) - length - 1)
            rows.append(np.concatenate([[BOS], ids[at : at + length]]))
        else:
            at = int(rng.integers(len(ids) - length - 1))
            rows.append(ids[at : at + length + 1])
    x = torch.from_numpy(np.stack(rows)).to(device)
    return x[:, :-1], x[:, 1:]


def main() -> None:
    args = argparse.ArgumentParser()
    args.add_argument("clean", type=pathlib.Path)
    args.add_argument("out", type=pathlib.Path)
    args.add_argument("--steps", type=int, default=6500)
    args.add_argument("--tokens", type=int, default=8192, help="tokens in a step")
    args.add_argument("--dropout", type=float, default=0.1)
    a = args.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)

    train_text = (a.clean / "train.txt").read_text(encoding="utf-8")
    valid_text = (a.clean / "valid.txt").read_text(encoding="utf-8")
    tok = make_tokenizer(a.out / "tokenizer.json", train_text)
    train, starts = encode(tok, train_text)
    valid, _ = encode(tok, valid_text)
    model = Model(a.dropout).to(device)
    average = Model(0.0).to(device)
    average.load_state_dict(model.state_dict())
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    optimizers = [
        Muon(matrices, lr=0.02, weight_decay=0.1),
        torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01),
    ]
    for o in optimizers:
        for g in o.param_groups:
            g["peak"] = g["lr"]
    first = 0
    state = a.out / "state.pt"
    if state.exists():
        s = torch.load(state, map_location=device)
        model.load_state_dict(s["model"])
        average.load_state_dict(s["average"])
        for o, d in zip(optimizers, s["optimizers"]):
            o.load_state_dict(d)
        first = s["step"]

    log = open(a.out / "log.txt", "a", buffering=1)

    def say(line: str) -> None:
        print(line, flush=True)
        log.write(line + "\n")

    say(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(train):,} training tokens, {len(valid):,} held out")
    begun, shown = time.time(), 0.0
    for step in range(first, a.steps):
        rng = np.random.default_rng(step)
        # The last sixth sees the full context, which costs more and is soon learnt.
        length = CONTEXT if step > a.steps * 5 // 6 else CONTEXT // (4 if step < a.steps // 2 else 2)
        x, y = batch(train, starts, a.tokens // length, length, rng, device)
        rate = min(1.0, (step + 1) / 100) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / a.steps)))
        for o in optimizers:
            for g in o.param_groups:
                g["lr"] = g["peak"] * rate
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(x)
        loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(others, 1.0)
        for o in optimizers:
            o.step()
            o.zero_grad(set_to_none=True)
        with torch.no_grad():
            keep = min(0.998, (step + 1) / (step + 10))
            for p, q in zip(average.parameters(), model.parameters()):
                p.lerp_(q, 1 - keep)
        shown = loss.item() if step == first else 0.95 * shown + 0.05 * loss.item()
        if (step + 1) % 50 == 0:
            say(f"step {step + 1} loss {shown:.4f} {(time.time() - begun) / (step + 1 - first):.2f} s a step")
        if (step + 1) % 500 == 0 or step + 1 == a.steps:
            say(f"step {step + 1} held-out perplexity {perplexity(average, valid, device):.2f}")
            torch.save(average.state_dict(), a.out / "model.pt")
            torch.save(
                dict(model=model.state_dict(), average=average.state_dict(), optimizers=[o.state_dict() for o in optimizers], step=step + 1),
                state,
            )


if __name__ == "__main__":
    main()
