"""Makes small golden cases of encoders that `tests/goldens` does not cover, by the transformers library.

usage: encoders.py OUT_DIR [NAME...]        (needs: pip install torch transformers safetensors numpy)

Each case is a folder like those of `make.py`: `config.json`, `model.safetensors` (random weights in bf16), `golden.json`,
`golden.safetensors` (two texts, the second filled up with padding: hidden states, `logits` where there is a head, and
`pooler_output`). Cases with a changed setting say in `golden.json` how far it moves the logits or the pooler's output.
"""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

BASE = dict(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=48, pad_token_id=0,
)
DISTIL = dict(hidden_size="dim", intermediate_size="hidden_dim", num_hidden_layers="n_layers", num_attention_heads="n_heads")
ROBERTA = dict(pad_token_id=1, bos_token_id=0, eos_token_id=2, type_vocab_size=1, layer_norm_eps=1e-5)
MODERN = dict(num_hidden_layers=4, local_attention=6, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
NOMIC = dict(num_hidden_layers=3, rope_parameters=dict(rope_type="default", rope_theta=1000.0))

# For each: the library's name, the settings, and how many scores a text has, if any; "mask" for logits of tokens.
CASES = {
    "bert-rank": ("bert", dict(), 1),
    "bert-sort": ("bert", dict(hidden_act="gelu_new"), 3),
    "distilbert-rank": ("distilbert", dict(), 1),
    "roberta-rank": ("roberta", ROBERTA, 1),
    "xlm-roberta-rank": ("xlm-roberta", ROBERTA, 1),
    "modernbert-rank": ("modernbert", MODERN, 1),
    "modernbert-biases": ("modernbert", dict(MODERN, classifier_pooling="mean", classifier_bias=True, norm_bias=True, attention_bias=True, mlp_bias=True, global_attn_every_n_layers=2), 1),
    "nomic-bert": ("nomic_bert", NOMIC, None),
    "nomic-rank": ("nomic_bert", dict(hidden_act="gelu", num_hidden_layers=2, layer_norm_eps=1e-3), 1),
    "bert-mask": ("bert", dict(hidden_act="gelu_new"), "mask"),
    "distilbert-mask": ("distilbert", dict(), "mask"),
    "roberta-mask": ("roberta", ROBERTA, "mask"),
    "xlm-roberta-mask": ("xlm-roberta", ROBERTA, "mask"),
    "modernbert-mask": ("modernbert", dict(MODERN, classifier_bias=True, norm_bias=True, classifier_activation="silu"), "mask"),
    "modernbert-mask-untied": ("modernbert", dict(MODERN, num_hidden_layers=2, tie_word_embeddings=False, decoder_bias=False), "mask"),
    # Heads of 7 and 9 elements.
    "bert-odd-heads": ("bert", dict(hidden_size=28), None),
    "roberta-odd-heads": ("roberta", dict(ROBERTA, hidden_size=36), None),
    "modernbert-scaled": ("modernbert", dict(MODERN, local_attention=7, layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"], rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)), None),
}

# A setting of a case that is changed, to see that what comes out is told apart.
CHANGES = {
    "bert-mask": dict(hidden_act="relu"),
    "distilbert-mask": dict(activation="relu"),
    "roberta-mask": dict(hidden_act="relu"),
    "modernbert-mask": dict(classifier_activation="relu"),
    "bert-odd-heads": dict(num_attention_heads=2),
}

# What the hub's files call what the library calls otherwise.
NOMIC_NAMES = [
    ("layers.", "encoder.layers."), ("embeddings.LayerNorm", "emb_ln"), ("self_attn.o_proj", "attn.out_proj"),
    ("mlp.up_proj", "mlp.fc11"), ("mlp.gate_proj", "mlp.fc12"), ("mlp.down_proj", "mlp.fc2"),
    ("post_attention_layernorm", "norm1"), ("post_mlp_layernorm", "norm2"),
]


def nomic_hub(state: dict, settings: dict) -> tuple[dict, dict]:
    """The weights and settings as the hub has them."""
    hub = {}
    for key, value in state.items():
        if "self_attn.q_proj" in key:
            parts = [state[key.replace("q_proj", p)] for p in ("q_proj", "k_proj", "v_proj")]
            key, value = key.replace("self_attn.q_proj", "attn.Wqkv"), torch.cat(parts).contiguous()
        elif "self_attn.k_proj" in key or "self_attn.v_proj" in key or key.startswith("pooler."):
            continue
        for library, file in NOMIC_NAMES:
            key = key.replace(library, file)
        hub[key] = value
    config = dict(
        vocab_size=settings["vocab_size"], n_embd=settings["hidden_size"], n_inner=settings["intermediate_size"],
        n_layer=settings["num_hidden_layers"], n_head=settings["num_attention_heads"],
        n_positions=settings["max_position_embeddings"], rotary_emb_base=1000, rotary_emb_fraction=1.0,
        rotary_emb_interleaved=False, activation_function="swiglu", qkv_proj_bias=False, mlp_fc1_bias=False,
        mlp_fc2_bias=False, layer_norm_epsilon=1e-12, type_vocab_size=2, prenorm=False, causal=False,
        parallel_block=False, use_rms_norm=False, max_trained_positions=settings["max_position_embeddings"],
    )
    return hub, config


def make(out: pathlib.Path, name: str, kind: str, extra: dict, labels: int | str | None, seed: int) -> None:
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    called = DISTIL if kind == "distilbert" else {}
    settings = {called.get(key, key): value for key, value in {**BASE, **extra}.items()}
    config = AutoConfig.for_model(kind, **json.loads(json.dumps(settings)), **({"num_labels": labels} if isinstance(labels, int) else {}))
    auto = {None: AutoModel, "mask": AutoModelForMaskedLM}.get(labels, AutoModelForSequenceClassification)
    model = auto.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.dim() == 1 and key.endswith("weight"):
                p.copy_(1.0 + 0.2 * torch.randn_like(p))
            elif key.endswith("bias"):
                p.copy_(0.3 * torch.randn_like(p))
            else:
                p.copy_(torch.randn_like(p) * (1.0 if "embeddings" in key else 1.6 * p.shape[-1] ** -0.5))
            p.copy_(p.bfloat16().float())
    state = {k: v.bfloat16().contiguous() for k, v in model.state_dict().items() if v.is_floating_point()}
    if labels == "mask" and config.tie_word_embeddings and kind != "xlm-roberta":
        # As most files leave out what is tied; one case has it.
        tied = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "lm_head.decoder.weight", "lm_head.decoder.bias", "vocab_projector.weight", "decoder.weight")
        state = {key: value for key, value in state.items() if key not in tied}
    file = {"architectures": [type(model).__name__], "model_type": kind, **settings, "torch_dtype": "bfloat16"}
    if kind == "nomic_bert" and labels:
        state, _ = nomic_hub(state, settings)
    elif kind == "nomic_bert":
        (folder / "config.v5.json").write_text(json.dumps(file, indent=1))
        state, hub = nomic_hub(state, settings)
        file = {**file, **hub}
        for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings", "rope_parameters"):
            file.pop(key)
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(file, indent=1))

    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 64, (2, 20), generator=generator)
    mask = torch.ones_like(ids)
    ids[1, 13:], mask[1, 13:] = config.pad_token_id, 0
    given = dict(input_ids=ids, attention_mask=mask)
    if getattr(config, "type_vocab_size", 0) > 1 and kind != "distilbert":
        types = torch.zeros_like(ids)
        types[0, 8:], types[1, 5:13] = 1, 1
        given["token_type_ids"] = types
    with torch.no_grad():
        answer = model(**given, output_hidden_states=True)
        exact = model.double()(**given, output_hidden_states=True)
    last = lambda a: a.hidden_states[-1] if labels else a.last_hidden_state
    off = (last(answer) - last(exact)).abs()[mask.bool()].max()
    tensors = {**given, "last_hidden_state": last(answer).float().contiguous()}
    if labels:
        tensors["logits"] = answer.logits.float().contiguous()
        off = max(off, (answer.logits - exact.logits).abs().max())
    if not labels and getattr(answer, "pooler_output", None) is not None:
        tensors["pooler_output"] = answer.pooler_output.float().contiguous()
        off = max(off, (answer.pooler_output - exact.pooler_output).abs().max())
    changed = {}
    if name in CHANGES:
        other = auto.from_config(AutoConfig.for_model(kind, **{**json.loads(json.dumps(settings)), **CHANGES[name]}), attn_implementation="eager", dtype=torch.float32).eval()
        other.load_state_dict(model.float().state_dict())
        with torch.no_grad():
            got = other(**given)
        moved = (got.logits - answer.logits)[mask.bool()] if labels else got.pooler_output - answer.pooler_output
        changed = dict(changed=dict(change=CHANGES[name], max_abs_change=moved.abs().max().item()))
    print(f"{name:20} std {last(answer).std():.2f}, f32 against f64 {off:.1e}")
    save_file(tensors, folder / "golden.safetensors")
    facts = dict(name=name, reference="transformers, float32, eager attention", suggested_abs_tolerance_f32=1e-4, **changed)
    (folder / "golden.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    wanted = sys.argv[2:]
    for seed, (name, (kind, extra, labels)) in enumerate(CASES.items()):
        if not wanted or name in wanted:
            make(pathlib.Path(sys.argv[1]), name, kind, extra, labels, seed)
