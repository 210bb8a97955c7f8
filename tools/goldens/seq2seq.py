"""Makes small golden cases of encoders with decoders that `tests/goldens` does not cover, by the transformers library.

usage: seq2seq.py OUT_DIR        (needs: pip install torch transformers safetensors numpy)

Each case is a folder like those of `make.py`: `config.json` as the hub has it, `config.v5.json` as the library writes it,
`model.safetensors` (random weights in bf16), `golden.json`, `golden.safetensors` (what is taken in and written, the
encoder's last hidden states, logits).
"""
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

# For each: the library's class, the settings, and whether its head is another matrix than its embedding.
CASES = {
    "mt5-untied": ("MT5", dict(vocab_size=60, d_model=32, d_kv=10, d_ff=24, num_layers=1, num_decoder_layers=3, num_heads=3, relative_attention_num_buckets=9, relative_attention_max_distance=20, tie_word_embeddings=False), True),
    "t5-tied": ("T5", dict(vocab_size=60, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu_pytorch_tanh", layer_norm_epsilon=0.1), False),
    "whisper-uneven": ("Whisper", dict(vocab_size=70, d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=11, max_target_positions=16, decoder_start_token_id=1, eos_token_id=2, bos_token_id=1, pad_token_id=0, activation_function="gelu_new", scale_embedding=True), False),
}


def make(out: pathlib.Path, name: str, kind: str, settings: dict, untied: bool, seed: int) -> None:
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    config = getattr(transformers, f"{kind}Config")(**settings)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    torch.manual_seed(seed)
    if untied:
        model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.dim() == 1:
                p.copy_(1.0 + 0.2 * torch.randn_like(p) if key.endswith("weight") else 0.3 * torch.randn_like(p))
            else:
                embeds = "embed" in key or "shared" in key
                p.copy_(torch.randn_like(p) * (1.0 if embeds else 1.4 * p[0].numel() ** -0.5))
            p.copy_(p.bfloat16().float())
    generator = torch.Generator().manual_seed(seed)
    given = dict(decoder_input_ids=torch.randint(3, settings["vocab_size"], (1, 9), generator=generator))
    if kind == "Whisper":
        frames = 2 * settings["max_source_positions"]
        given["input_features"] = torch.randn(1, settings["num_mel_bins"], frames, generator=generator)
    else:
        given["input_ids"] = torch.randint(3, settings["vocab_size"], (1, 30), generator=generator)
    with torch.no_grad():
        answer = model(**given)
        wide = {k: v.double() if v.is_floating_point() else v for k, v in given.items()}
        exact = model.double()(**wide)
        model.float()
    off = (answer.logits - exact.logits).abs().max()
    print(f"{name:20} std {answer.logits.std():.2f}, f32 against f64 {off:.1e}")
    model.bfloat16().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "config.json").rename(folder / "config.v5.json")
    file = {"architectures": [type(model).__name__], "model_type": kind.lower(), "is_encoder_decoder": True}
    (folder / "config.json").write_text(json.dumps({**file, **settings, "torch_dtype": "bfloat16"}, indent=1))
    tensors = dict(encoder_last_hidden=answer.encoder_last_hidden_state, logits=answer.logits)
    save_file({**given, **{k: v.contiguous() for k, v in tensors.items()}}, folder / "golden.safetensors")
    facts = dict(name=name, reference="transformers, float32, eager attention", suggested_abs_tolerance_f32=1e-4)
    (folder / "golden.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    for seed, (name, (kind, settings, untied)) in enumerate(CASES.items()):
        make(pathlib.Path(sys.argv[1]), name, kind, settings, untied, seed)
