"""Makes golden cases of adapters for models that `tests/goldens` has, by the PEFT library.

usage: adapters.py GOLDENS_DIR        (needs: pip install torch transformers safetensors numpy peft gguf)

Each case is a folder `GOLDENS_DIR/adapters/NAME`: `adapter_config.json` and `adapter_model.safetensors` as PEFT saves
them, `adapter.gguf` as llama.cpp's converter writes it where a GGUF twin of the model is there, `golden.json` and
`golden.safetensors` (logits of the model's own prompts in f32). PEFT's answers are compared with those of weights that are
merged by hand.
"""
import json
import pathlib
import sys

import gguf
import numpy
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

PLAIN = dict(attn_implementation="eager", experts_implementation="eager", dtype=torch.float32)
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL = ATTENTION + ["gate_proj", "up_proj", "down_proj"]
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}

# Name: the model, the type of the tensors, whether a GGUF file is made, PEFT's settings.
CASES = {
    "llama": ("llama", "bf16", True, dict(r=4, lora_alpha=8, target_modules=ALL)),
    "llama-some": ("llama", "f16", True, dict(r=3, lora_alpha=12, target_modules=["q_proj", "k_proj", "up_proj"], layers_to_transform=[1], layers_pattern="layers")),
    "qwen3": ("qwen3", "f16", True, dict(r=16, lora_alpha=16, target_modules=ALL)),
    "qwen3-patterns": ("qwen3", "f32", False, dict(r=4, lora_alpha=6, use_rslora=True, target_modules=r".*\.(self_attn\.[qkv]_proj|mlp\.(up|down)_proj)", rank_pattern={"q_proj": 3, r"layers\.1\.mlp\.up_proj": 7}, alpha_pattern={r"model.layers.0.self_attn.v_proj": 20, "down_proj": 2})),
    "phi3": ("phi3", "f16", True, dict(r=6, lora_alpha=9, target_modules="all-linear")),
    "gemma": ("gemma", "f32", True, dict(r=4, lora_alpha=4, target_modules=ALL, exclude_modules=["k_proj"])),
    "gpt2": ("gpt2", "bf16", True, dict(r=5, lora_alpha=10, fan_in_fan_out=True, target_modules=["c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"])),
    "gpt-neox": ("gpt-neox", "f32", False, dict(r=4, lora_alpha=8, target_modules=["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"])),
    "gemma4-text": ("gemma4-text", "f16", False, dict(r=4, lora_alpha=8, target_modules=ALL + ["per_layer_input_gate", "per_layer_projection", "per_layer_model_projection"])),
    "qwen3-moe": ("qwen3-moe", "bf16", True, dict(r=4, lora_alpha=8, target_modules=ATTENTION)),
    "deepseek-v3": ("deepseek-v3", "bf16", False, dict(r=4, lora_alpha=8, target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"])),
    "qwen3-next": ("qwen3-next", "bf16", False, dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "in_proj_qkvz", "in_proj_ba", "out_proj"])),
}

# What layers are called in GGUF files.
GGUF = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}
ARCH = {"qwen3-moe": "qwen3moe"}


def logits(model, prompts):
    with torch.no_grad():
        return [model(torch.tensor([ids])).logits[0].float().contiguous() for ids in prompts]


def most(some, others):
    return max((a - b).abs().max().item() for a, b in zip(some, others))


def write_gguf(path, name, config, tensors, alpha):
    writer = gguf.GGUFWriter(path, ARCH.get(name, name))
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(alpha))
    for key, tensor in sorted(tensors.items()):
        parts = key.removeprefix("base_model.model.").split(".")
        layer = next(part for part in parts if part.isdigit())
        module = ".".join(parts[parts.index(layer) + 1 : -2])
        half = {"lora_A": "lora_a", "lora_B": "lora_b"}[parts[-2]]
        if name == "llama" and half == "lora_b" and module[-6:] in ("q_proj", "k_proj"):
            heads = config["num_attention_heads" if module[-6:] == "q_proj" else "num_key_value_heads"]
            rows, cols = tensor.shape
            tensor = tensor.reshape(heads, 2, rows // heads // 2, cols).swapaxes(1, 2).reshape(rows, cols)
        called, tensor = f"blk.{layer}.{GGUF[module]}.weight.{half}", tensor.contiguous()
        if tensor.dtype == torch.bfloat16:
            raw = tensor.view(torch.uint8).numpy()
            writer.add_tensor(called, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(called, tensor.numpy().astype({torch.float16: numpy.float16, torch.float32: numpy.float32}[tensor.dtype]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(goldens, name, base, kind, with_gguf, settings, seed):
    folder, model_folder = goldens / "adapters" / name, goldens / base
    folder.mkdir(parents=True, exist_ok=True)
    prompts = json.loads((model_folder / "golden.json").read_text())["prompts"]
    model = AutoModelForCausalLM.from_pretrained(model_folder, **PLAIN).eval()
    plain = logits(model, prompts)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings), autocast_adapter_dtype=False).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for key, p in adapted.named_parameters():
            if "lora_" in key:
                # As large as weights, and exact in the type of the file.
                p.copy_((0.5 * torch.randn_like(p) / p.shape[1] ** 0.5).to(TYPES[kind]).float())
    answers = logits(adapted, prompts)
    adapted.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    file = folder / "adapter_model.safetensors"
    tensors = {key: tensor.to(TYPES[kind]) for key, tensor in load_file(file).items()}
    save_file(tensors, file)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = base
    config["target_modules"] = sorted(config["target_modules"]) if isinstance(config["target_modules"], list) else config["target_modules"]
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")
    # The same by hand.
    scales = {key: module.scaling["default"] for key, module in adapted.named_modules() if hasattr(module, "lora_A") and "default" in module.lora_A}
    merged = AutoModelForCausalLM.from_pretrained(model_folder, **PLAIN).eval()
    weights = dict(merged.named_parameters())

    def move(times):
        with torch.no_grad():
            for key, scale in scales.items():
                down, up = (tensors[f"{key}.lora_{half}.weight"].float() for half in "AB")
                weight = weights[key.removeprefix("base_model.model.") + ".weight"]
                more = scale * times * (up @ down)
                weight += more if weight.shape == more.shape and not settings.get("fan_in_fan_out") else more.T

    move(1.0)
    by_hand = most(answers, logits(merged, prompts))
    move(0.5)
    stronger = most(answers, logits(merged, prompts))
    if with_gguf:
        model_config = json.loads((model_folder / "config.json").read_text())
        write_gguf(folder / "adapter.gguf", base, model_config, tensors, settings["lora_alpha"])
    facts = {
        "base": base,
        "reference": "PEFT " + __import__("peft").__version__ + ", transformers " + __import__("transformers").__version__ + ", torch " + torch.__version__ + ", float32, eager attention, CPU",
        "stored_dtype": kind,
        "layers": len(scales),
        "merged_by_hand": by_hand,
        "suggested_abs_tolerance_f32": max(1e-4, 4 * by_hand),
        # How far logits are if there is no adapter, and if it counts half as much again.
        "mutants": {"without": most(answers, plain), "half_as_much_again": stronger},
    }
    (folder / "golden.json").write_text(json.dumps(facts, indent=1) + "\n")
    save_file({f"prompt{i}.logits": x for i, x in enumerate(answers)} | {f"prompt{i}.input_ids": torch.tensor(ids) for i, ids in enumerate(prompts)}, folder / "golden.safetensors")
    print(f"{name:<16} {len(scales)} layers, by hand {by_hand:.1e}, without {facts['mutants']['without']:.2f}, stronger {stronger:.2f}")


if __name__ == "__main__":
    goldens = pathlib.Path(sys.argv[1])
    for seed, (name, case) in enumerate(CASES.items()):
        make(goldens, name, *case, seed=100 + seed)
