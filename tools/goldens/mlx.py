"""Makes a golden case like a folder that MLX quantized: words of codes, a scale for each group and what is added to it.

usage: mlx.py OUT_DIR  (needs: pip install torch transformers safetensors numpy)

By what MLX documents: `weight = scale * code + bias` for each group of inputs, codes one after another from the lowest bit
of words of 32 bits.
"""
import json
import pathlib
import sys
import tempfile

import torch
from make import BASE, answer, wanted
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

GROUP = 32
# Bits of what has other than four.
OTHER = {
    "model.layers.0.self_attn.k_proj": 3, "model.layers.0.self_attn.v_proj": 2, "model.layers.0.self_attn.o_proj": 5,
    "model.layers.1.mlp.gate_proj": 6, "model.layers.1.mlp.down_proj": 8, "lm_head": 8,
}
PLAIN = "model.layers.1.self_attn.q_proj"


def quantized(weight: torch.Tensor, bits: int) -> tuple[torch.Tensor, ...]:
    """Codes in words, scales, biases, and the matrix that they stand for."""
    rows, cols = weight.shape
    groups = weight.reshape(rows, -1, GROUP)
    low, high = groups.amin(-1), groups.amax(-1)
    scales, biases = ((high - low) / (2**bits - 1)).bfloat16(), low.bfloat16()
    codes = ((groups - biases.float()[..., None]) / scales.float()[..., None]).round().clamp(0, 2**bits - 1)
    stands = codes * scales.float()[..., None] + biases.float()[..., None]
    each = (codes.reshape(rows, cols, 1).long() >> torch.arange(bits)) & 1
    words = (each.reshape(rows, -1, 32) << torch.arange(32)).sum(-1)
    return words.to(torch.uint32), scales, biases, stands.reshape(rows, cols)


def main(out: pathlib.Path) -> None:
    folder = out / "mlx"
    folder.mkdir(parents=True, exist_ok=True)
    settings = wanted("llama", dict(hidden_size=64, intermediate_size=96))
    assert settings.keys() >= BASE.keys()
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **settings), dtype=torch.float32)
    stored, plain, own = {}, {}, {}
    for name, p in model.state_dict().items():
        module = name.removesuffix(".weight")
        x = 1 + 0.2 * torch.randn_like(p) if "norm" in name else torch.randn_like(p) * (1.0 if "embed" in name else 1.6 * p.shape[-1] ** -0.5)
        x = x.bfloat16()
        if x.dim() == 1 or module == PLAIN:
            stored[name], plain[name] = x, x.float()
            continue
        bits = OTHER.get(module, 4)
        if bits != 4:
            own[module] = dict(group_size=GROUP, bits=bits)
        stored[name], stored[f"{module}.scales"], stored[f"{module}.biases"], plain[name] = quantized(x.float(), bits)
    own[PLAIN] = False
    save_file(stored, folder / "model.safetensors", {"format": "mlx"})
    how = dict(group_size=GROUP, bits=4, mode="affine", **own)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **settings, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps({**config, "quantization": how, "quantization_config": how}, indent=1))
    tensors, prompts, worst = {}, [], 0.0
    with tempfile.TemporaryDirectory() as whole:
        save_file(plain, pathlib.Path(whole) / "model.safetensors")
        (pathlib.Path(whole) / "config.json").write_text(json.dumps({**config, "torch_dtype": "float32"}))
        generator = torch.Generator().manual_seed(1)
        for i, length in enumerate((1, 7, 30)):
            ids = torch.randint(3, 64, (length,), generator=generator)
            logits, exact = answer(pathlib.Path(whole), AutoModelForCausalLM, ids)
            tensors[f"prompt{i}.input_ids"], tensors[f"prompt{i}.logits"] = ids, logits.float().contiguous()
            prompts.append(ids.tolist())
            worst = max(worst, (logits - exact).abs().max().item())
    save_file(tensors, folder / "golden.safetensors")
    facts = dict(name="mlx", reference="transformers, float32, of the matrices that the codes stand for", prompts=prompts,
                 suggested_abs_tolerance_f32=max(1e-4, 5 * worst))
    (folder / "golden.json").write_text(json.dumps(facts))
    print(f"f32 against f64 {worst:.1e}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
