"""Makes small golden cases for settings that `tests/goldens` does not cover, by the transformers library.

usage: make.py OUT_DIR [CASE...]  (needs: pip install torch transformers safetensors numpy)

Each case is a folder like those of `tests/goldens`: `config.json`, `model.safetensors` (random weights in bf16),
`golden.json`, `golden.safetensors` (logits of whole-prompt forwards in f32).
"""
import json
import pathlib
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

BASE = dict(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False,
    bos_token_id=1, eos_token_id=2, pad_token_id=0,
)
# What families call it if not like that.
CALLED = {
    "gpt2": dict(hidden_size="n_embd", num_hidden_layers="n_layer", num_attention_heads="n_head", intermediate_size="n_inner", max_position_embeddings="n_positions", rms_norm_eps="layer_norm_epsilon"),
    "starcoder2": dict(rms_norm_eps="norm_epsilon"),
    "nemotron": dict(rms_norm_eps="norm_eps"),
    **{kind: dict(rms_norm_eps="layer_norm_eps") for kind in ("phi", "gpt_neox", "stablelm", "cohere", "cohere2")},
}
# Of these, files keep all experts in one tensor, and the library's writer takes them apart.
JOINT = ("qwen3_5_moe_text",)
# By the plainest code that the library has.
PLAIN = dict(attn_implementation="eager", experts_implementation="eager")
YARN = dict(type="yarn", original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0)
LONG = dict(short_factor=[1.0, 1.1, 1.3, 2.0], long_factor=[1.0, 2.0, 5.0, 9.0])

# The library's PhiMoE took the long factors up to its version 4, as its makers do, and takes the short ones since.
ONE_LONG = dict(short_factor=LONG["long_factor"], long_factor=LONG["long_factor"])

SEES = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=28, patch_size=14)

# For each: the library's name, the settings, and perhaps others of which some change the answer.
CASES = {
    "llama-linear": ("llama", dict(rope_scaling=dict(rope_type="linear", factor=2.5))),
    "llama-linear-old-key": ("llama", dict(rope_scaling=dict(type="linear", factor=4.0))),
    "llama-dynamic": ("llama", dict(max_position_embeddings=12, rope_scaling=dict(rope_type="dynamic", factor=2.0))),
    "llama-yarn": ("llama", dict(rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=8.0, beta_slow=0.5))),
    "llama-yarn-mscale": ("llama", dict(rope_scaling=dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=8, mscale=0.7, mscale_all_dim=1.3, truncate=False))),
    "llama-yarn-attention": ("llama", dict(rope_scaling=dict(rope_type="yarn", factor=2.0, attention_factor=1.5))),
    "llama-longrope": ("llama", dict(rope_scaling=dict(rope_type="longrope", factor=4.0, original_max_position_embeddings=10, **LONG))),
    "llama-longrope-top": ("llama", dict(original_max_position_embeddings=16, rope_scaling=dict(rope_type="longrope", **LONG))),
    "llama-biases": ("llama", dict(attention_bias=True, mlp_bias=True, hidden_act="gelu")),
    "llama-mha-tanh": ("llama", dict(num_key_value_heads=4, hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True)),
    "llama-mqa-head": ("llama", dict(num_key_value_heads=1, head_dim=20, rope_theta=1e6)),
    "mistral-no-window": ("mistral", dict(sliding_window=None)),
    "mistral-window-3": ("mistral", dict(sliding_window=3, head_dim=10)),
    "qwen2-window": ("qwen2", dict(num_hidden_layers=4, use_sliding_window=True, sliding_window=5, max_window_layers=2)),
    "qwen2-layer-types": ("qwen2", dict(num_hidden_layers=3, use_sliding_window=True, sliding_window=4, layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
    "qwen2-window-off": ("qwen2", dict(use_sliding_window=False, sliding_window=4, max_window_layers=0)),
    "qwen3-bias": ("qwen3", dict(attention_bias=True, head_dim=12)),
    "qwen3-window": ("qwen3", dict(head_dim=8, use_sliding_window=True, sliding_window=6, max_window_layers=1)),
    "smollm3-interval": ("smollm3", dict(num_hidden_layers=5, no_rope_layer_interval=2)),
    "smollm3-window": ("smollm3", dict(num_hidden_layers=4, use_sliding_window=True, sliding_window=4, no_rope_layers=[1, 0, 1, 0], attention_bias=True, mlp_bias=True)),
    "olmo2-bias": ("olmo2", dict(attention_bias=True, tie_word_embeddings=True)),
    "olmo3-yarn": ("olmo3", dict(num_hidden_layers=4, sliding_window=6, rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16))),
    "olmo3-layer-types": ("olmo3", dict(num_hidden_layers=3, sliding_window=5, layer_types=["full_attention", "sliding_attention", "full_attention"])),
    "granite-biases": ("granite", dict(attention_bias=True, mlp_bias=True, embedding_multiplier=12.0, attention_multiplier=0.125, residual_multiplier=0.22, logits_scaling=8.0, tie_word_embeddings=True)),
    "gemma-gelu": ("gemma", dict(hidden_act="gelu", head_dim=12, attention_bias=True, tie_word_embeddings=None, rms_norm_eps=None)),
    "gemma2-layer-types": ("gemma2", dict(num_hidden_layers=3, head_dim=8, sliding_window=5, query_pre_attn_scalar=20, attention_bias=True, layer_types=["full_attention", "sliding_attention", "sliding_attention"], tie_word_embeddings=None)),
    "gemma2-defaults": ("gemma2", dict(head_dim=8, tie_word_embeddings=None, rms_norm_eps=None)),
    "gemma3-scaled": ("gemma3_text", dict(num_hidden_layers=4, head_dim=12, sliding_window=6, sliding_window_pattern=3, query_pre_attn_scalar=10, final_logit_softcapping=9.0, rope_theta=20000.0, rope_local_base_freq=300.0, rope_scaling=dict(rope_type="linear", factor=8.0), tie_word_embeddings=True)),
    "gemma3-defaults": ("gemma3_text", dict(num_hidden_layers=7, head_dim=8, sliding_window=4, tie_word_embeddings=None)),
    "phi-qk-norm": ("phi", dict(qk_layernorm=True, partial_rotary_factor=0.75, hidden_act="relu")),
    "phi-defaults": ("phi", dict(num_key_value_heads=4, rms_norm_eps=None)),
    "phi3-longrope": ("phi3", dict(num_attention_heads=2, num_key_value_heads=1, partial_rotary_factor=0.5, original_max_position_embeddings=16, sliding_window=9, tie_word_embeddings=True, rope_scaling=dict(type="longrope", **LONG))),
    "cohere-qk-norm": ("cohere", dict(use_qk_norm=True, attention_bias=True, tie_word_embeddings=None)),
    "cohere2-every-second": ("cohere2", dict(num_hidden_layers=5, sliding_window=5, sliding_window_pattern=2, rope_theta=100.0, attention_bias=True)),
    "starcoder2-no-bias": ("starcoder2", dict(use_bias=False, sliding_window=None, hidden_act="gelu_new", tie_word_embeddings=None)),
    "stablelm-parallel": ("stablelm", dict(use_parallel_residual=True, qk_layernorm=True, use_qkv_bias=False, partial_rotary_factor=0.5)),
    "stablelm-defaults": ("stablelm", dict(qk_layernorm=True)),
    "neox-in-turn": ("gpt_neox", dict(use_parallel_residual=False, attention_bias=False, rotary_pct=0.8, rotary_emb_base=500, rope_theta=10000.0, hidden_act="gelu_fast", num_key_value_heads=None)),
    "neox-linear": ("gpt_neox", dict(rotary_pct=1.0, rope_scaling=dict(type="linear", factor=2.0), tie_word_embeddings=True, num_key_value_heads=None)),
    "glm4-no-bias": ("glm4", dict(attention_bias=False, head_dim=12, partial_rotary_factor=0.25, rms_norm_eps=None)),
    "glm4-defaults": ("glm4", dict(head_dim=6)),
    "gpt2-options": ("gpt2", dict(scale_attn_by_inverse_layer_idx=True, activation_function="gelu", tie_word_embeddings=False, num_key_value_heads=None)),
    "gpt2-unscaled": ("gpt2", dict(scale_attn_weights=False, intermediate_size=None, rms_norm_eps=None, tie_word_embeddings=None, num_key_value_heads=None)),
    "ministral3-window": ("ministral3", dict(num_hidden_layers=3, head_dim=8, sliding_window=7, rope_parameters=dict(rope_type="yarn", rope_theta=1000.0, factor=8.0, original_max_position_embeddings=8, mscale=0.7, mscale_all_dim=1.3, beta_fast=16.0, beta_slow=1.0, llama_4_scaling_beta=0.3))),
    "gpt-oss-odd": ("gpt_oss", dict(num_hidden_layers=3, intermediate_size=24, head_dim=8, num_local_experts=3, num_experts_per_tok=2, layer_types=["full_attention", "sliding_attention", "sliding_attention"], sliding_window=5, attention_bias=False, rope_theta=10000.0, rope_scaling=dict(**YARN, factor=4.0, truncate=True))),
    "gpt-oss-defaults": ("gpt_oss", dict(num_hidden_layers=3, head_dim=8, num_local_experts=6, rms_norm_eps=None, tie_word_embeddings=None, rope_scaling=dict(**YARN, factor=2.0, truncate=False))),
    "phimoe-longrope": ("phimoe", dict(num_local_experts=6, num_experts_per_tok=2, router_jitter_noise=0.2, sliding_window=9, lm_head_bias=True, original_max_position_embeddings=16, rope_scaling=dict(type="longrope", short_mscale=1.2, long_mscale=1.4, original_max_position_embeddings=16, **ONE_LONG))),
    "phimoe-defaults": ("phimoe", dict(attention_bias=True, num_local_experts=5, rms_norm_eps=None)),
    "llama4-options": ("llama4_text", dict(num_hidden_layers=5, head_dim=12, intermediate_size=24, intermediate_size_mlp=40, num_local_experts=5, num_experts_per_tok=2, attention_chunk_size=7, no_rope_layer_interval=2, interleave_moe_layer_step=2, use_qk_norm=False, floor_scale=4, attn_scale=0.4, attention_bias=True, rope_theta=1000.0, rope_scaling=dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16))),
    "llama4-layers": ("llama4_text", dict(num_hidden_layers=5, head_dim=8, intermediate_size_mlp=40, num_local_experts=3, attention_chunk_size=6, moe_layers=[0, 3], no_rope_layers=[0, 1, 1, 0, 1], layer_types=["chunked_attention", "full_attention", "chunked_attention", "full_attention", "full_attention"], floor_scale=8, attn_temperature_tuning=False)),
    "llama4-defaults": ("llama4_text", dict(num_hidden_layers=4, head_dim=8, intermediate_size_mlp=40, num_local_experts=3, rms_norm_eps=None, tie_word_embeddings=None)),
    "deepseek-v2-yarn": ("deepseek_v2", dict(num_hidden_layers=3, num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, moe_intermediate_size=20, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2, first_k_dense_replace=1, topk_method="group_limited_greedy", n_group=4, topk_group=2, routed_scaling_factor=1.5, rms_norm_eps=1e-2, rope_scaling=dict(**YARN, factor=8.0, mscale=0.8, mscale_all_dim=1.2))),
    "deepseek-v3-yarn": ("deepseek_v3", dict(num_hidden_layers=3, num_key_value_heads=4, q_lora_rank=20, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=12, moe_intermediate_size=16, n_routed_experts=12, num_experts_per_tok=4, n_group=3, topk_group=2, n_shared_experts=2, first_k_dense_replace=2, norm_topk_prob=False, routed_scaling_factor=1.7, rope_interleave=False, attention_bias=True, rope_scaling=dict(**YARN, factor=8.0, mscale=1.0, mscale_all_dim=1.0))),
    "deepseek-v3-defaults": ("deepseek_v3", dict(num_hidden_layers=4, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, moe_intermediate_size=16, n_routed_experts=16, rms_norm_eps=None)),
    "gemma4-plain": ("gemma4_text", dict(num_hidden_layers=4, head_dim=8, global_head_dim=12, sliding_window=5, hidden_size_per_layer_input=0, tie_word_embeddings=True, attention_bias=True, layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"], rope_parameters=dict(full_attention=dict(rope_type="proportional", partial_rotary_factor=0.5, rope_theta=1000.0), sliding_attention=dict(rope_type="default", rope_theta=100.0)))),
    "gemma4-defaults": ("gemma4_text", dict(num_hidden_layers=7, head_dim=8, global_head_dim=16, sliding_window=6, hidden_size_per_layer_input=4, vocab_size_per_layer_input=64, rms_norm_eps=None, tie_word_embeddings=None)),
    "qwen3-next-options": ("qwen3_next", dict(num_hidden_layers=5, head_dim=8, full_attention_interval=2, decoder_sparse_step=2, mlp_only_layers=[3], norm_topk_prob=False, attention_bias=True, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=20, shared_expert_intermediate_size=12, linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=12, linear_value_head_dim=10, linear_conv_kernel_dim=3, partial_rotary_factor=0.5, tie_word_embeddings=True, rope_scaling=dict(**YARN, factor=4.0))),
    "qwen3.5-defaults": ("qwen3_5_text", dict(num_hidden_layers=5, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=16, linear_value_head_dim=24, rms_norm_eps=None, tie_word_embeddings=None)),
    # The library keeps experts all in one tensor, and makers of this family so in files.
    "qwen3.5-moe-joint": ("qwen3_5_moe_text", dict(num_hidden_layers=3, head_dim=12, layer_types=["full_attention", "linear_attention", "linear_attention"], num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=20, linear_num_key_heads=1, linear_num_value_heads=4, linear_key_head_dim=6, linear_value_head_dim=14, linear_conv_kernel_dim=2, attention_bias=True, rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=0.5, mrope_section=[1, 1, 1], mrope_interleaved=True))),
    # Families of which nothing else is here.
    "arcee": ("arcee", dict(mlp_bias=True, head_dim=12), dict(act=dict(hidden_act="silu"))),
    "ernie4.5": ("ernie4_5", dict(use_bias=True, head_dim=12, rms_norm_eps=None, tie_word_embeddings=None), dict(theta=dict(rope_theta=50.0))),
    "exaone4": ("exaone4", dict(num_hidden_layers=3, sliding_window=5, sliding_window_pattern="LLG", layer_types=["sliding_attention", "sliding_attention", "full_attention"]), dict(window=dict(sliding_window=64), global_=dict(layer_types=["sliding_attention"] * 3))),
    "glm": ("glm", dict(head_dim=12, attention_bias=True), dict(part=dict(partial_rotary_factor=1.0))),
    "granitemoe": ("granitemoe", dict(intermediate_size=20, num_local_experts=5, num_experts_per_tok=3, embedding_multiplier=6.0, attention_multiplier=0.125, residual_multiplier=0.4, logits_scaling=4.0, attention_bias=True), dict(topk=dict(num_experts_per_tok=2), residual=dict(residual_multiplier=1.0))),
    "ministral": ("ministral", dict(num_hidden_layers=3, sliding_window=5, head_dim=12, layer_types=["sliding_attention", "full_attention", "sliding_attention"]), dict(window=dict(sliding_window=9), types=dict(layer_types=["full_attention", "full_attention", "sliding_attention"]))),
    "nemotron": ("nemotron", dict(head_dim=12, mlp_bias=True, attention_bias=True), dict(part=dict(partial_rotary_factor=1.0), act=dict(hidden_act="silu"))),
    "olmoe": ("olmoe", dict(intermediate_size=20, num_experts=5, num_experts_per_tok=3, norm_topk_prob=True, clip_qkv=None, rms_norm_eps=None), dict(norm=dict(norm_topk_prob=False))),
    "seed-oss": ("seed_oss", dict(head_dim=12, attention_out_bias=True, mlp_bias=True), dict(theta=dict(rope_theta=50.0))),
    # Layers without keys of their own, experts beside each block, values made of keys.
    "gemma4-shared": ("gemma4_text", dict(vocab_size=96, num_hidden_layers=5, intermediate_size=16, head_dim=8, global_head_dim=12, sliding_window=5, hidden_size_per_layer_input=4, vocab_size_per_layer_input=96, num_kv_shared_layers=2, use_double_wide_mlp=True, layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"], final_logit_softcapping=20.0, tie_word_embeddings=None), dict(window=dict(sliding_window=64))),
    "gemma4-experts": ("gemma4_text", dict(vocab_size=96, num_hidden_layers=3, intermediate_size=24, head_dim=8, global_head_dim=16, sliding_window=6, hidden_size_per_layer_input=0, attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=12, layer_types=["sliding_attention", "full_attention", "full_attention"], tie_word_embeddings=None), dict(topk=dict(top_k_experts=3))),
    # Text models within what sees pictures.
    "gemma3-within": ("gemma3", dict(text_config=dict(head_dim=8, num_attention_heads=8, num_key_value_heads=4, sliding_window=6, query_pre_attn_scalar=10, rope_scaling=dict(rope_type="linear", factor=8.0)), vision_config=dict(SEES, model_type="siglip_vision_model"), image_token_index=3)),
    "llama4-within": ("llama4", dict(text_config=dict(head_dim=8, intermediate_size=16, intermediate_size_mlp=24, num_local_experts=3, attention_chunk_size=6), vision_config=dict(SEES, model_type="llama4_vision_model", vision_output_dim=8, projector_input_dim=8, projector_output_dim=8), image_token_index=3)),
    "mistral3-within": ("mistral3", dict(tie_word_embeddings=False, text_config=dict(model_type="ministral3", head_dim=8, rope_parameters=dict(rope_type="yarn", rope_theta=1000.0, factor=8.0, original_max_position_embeddings=8, mscale=1.0, mscale_all_dim=1.0, beta_fast=16.0, beta_slow=1.0, llama_4_scaling_beta=0.3)), vision_config=dict(SEES, model_type="pixtral", head_dim=8), image_token_index=3)),
    "qwen2-moe-none": ("qwen2_moe", dict(num_experts=0, qkv_bias=False)),
    # As in all of the family that people use: scaled, and sharpened by as much as queries and keys get longer.
    "deepseek-v2-sharp": ("deepseek_v2", dict(rms_norm_eps=None, num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1, rope_scaling=dict(**YARN, factor=40.0, mscale=0.707, mscale_all_dim=0.707)), dict(sharp=dict(rope_scaling=dict(**YARN, factor=4.0, mscale=0.707, mscale_all_dim=0.707)))),
    "minimax-m2": ("minimax_m2", dict(intermediate_size=20, num_local_experts=6, num_experts_per_tok=3, head_dim=12, rotary_dim=8, scoring_func="sigmoid", use_routing_bias=True, use_qk_norm=True, qk_norm_type="per_layer", rope_theta=5000.0), dict(part=dict(rotary_dim=12), topk=dict(num_experts_per_tok=2), theta=dict(rope_theta=50.0))),
    "glm4-moe-lite": ("glm4_moe_lite", dict(num_hidden_layers=3, num_key_value_heads=4, q_lora_rank=20, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=12, moe_intermediate_size=16, n_routed_experts=8, num_experts_per_tok=3, first_k_dense_replace=2, mlp_layer_types=["dense", "dense", "sparse"], topk_method="noaux_tc", rms_norm_eps=None), dict(scale=dict(routed_scaling_factor=1.0), norm=dict(norm_topk_prob=False), pairs=dict(rope_interleave=False))),
    "dots1": ("dots1", dict(num_hidden_layers=3, moe_intermediate_size=16, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2, n_group=4, topk_group=2, first_k_dense_replace=1, moe_layer_freq=1, norm_topk_prob=True, routed_scaling_factor=2.5, scoring_func="sigmoid", sliding_window=None, rope_theta=5000.0), dict(topk=dict(num_experts_per_tok=2), groups=dict(topk_group=3), norm=dict(norm_topk_prob=False), scale=dict(routed_scaling_factor=1.0))),
    # llama.cpp has no windows there, and its converter does not take what makers' files have as scoring_func.
    "dots1-window": ("dots1", dict(num_hidden_layers=3, moe_intermediate_size=20, n_routed_experts=5, num_experts_per_tok=2, n_shared_experts=1, scoring_func="noaux_tc", attention_bias=True, head_dim=12, sliding_window=5, max_window_layers=1, rms_norm_eps=None), dict(window=dict(sliding_window=9), since=dict(max_window_layers=2), types=dict(layer_types=["sliding_attention", "full_attention", "full_attention"]))),
}


def wanted(kind: str, extra: dict) -> dict:
    """The settings as a person would have written them, not as the library normalises them."""
    if "text_config" in extra:
        text = {key: value for key, value in BASE.items() if not key.endswith("token_id") and key != "tie_word_embeddings"}
        return {**extra, "text_config": {**text, **extra["text_config"]}}
    # `None` leaves out what the family knows a default for.
    called = CALLED.get(kind, {})
    silent = {key for key, value in extra.items() if value is None and key in BASE}
    settings = {called.get(key, key): value for key, value in {**BASE, **extra}.items() if key not in silent}
    if kind == "smollm3" and "tie_word_embeddings" not in extra:
        settings.pop("tie_word_embeddings")
    return settings


def answer(folder: pathlib.Path, auto, ids: torch.Tensor, changed: dict | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a folder's model, in f32 and in f64, perhaps with some settings changed."""
    with tempfile.TemporaryDirectory() as other:
        if changed:
            config = json.loads((folder / "config.json").read_text())
            (pathlib.Path(other) / "config.json").write_text(json.dumps({**config, **changed}))
            (pathlib.Path(other) / "model.safetensors").symlink_to((folder / "model.safetensors").absolute())
            folder = other
        fresh = auto.from_pretrained(folder, dtype=torch.float32, **PLAIN).eval()
    with torch.no_grad():
        return fresh(ids[None]).logits[0], fresh.double()(ids[None]).logits[0]


def make(out: pathlib.Path, name: str, seed: int, kind: str, extra: dict, mutants: dict = {}) -> None:
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    settings, auto = wanted(kind, extra), AutoModelForImageTextToText if "text_config" in extra else AutoModelForCausalLM
    config = AutoConfig.for_model(kind, **json.loads(json.dumps(settings)))
    model = auto.from_config(config, dtype=torch.float32, **PLAIN).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "norm" in key or ".ln_" in key:
                p.copy_(1.0 + 0.2 * torch.randn_like(p))
            elif key.endswith("bias"):
                p.copy_(0.3 * torch.randn_like(p))
            else:
                p.copy_(torch.randn_like(p) * (1.0 if "embed" in key else 1.6 * p.shape[-1] ** -0.5))
            p.copy_(p.bfloat16().float())
        for key, p in model.named_buffers():
            if key.endswith(("e_score_correction_bias", "layer_scalar")):
                p.copy_((0.3 * torch.randn_like(p) + ("scalar" in key)).bfloat16().float())
    # By the library's own writer: in memory, names and experts are others than in files.
    with tempfile.TemporaryDirectory() as written:
        model.bfloat16().save_pretrained(written)
        state = load_file(pathlib.Path(written) / "model.safetensors")
    if kind in JOINT:
        state = {k: v.contiguous() for k, v in model.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    architecture = type(model).__name__
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture], "model_type": kind, **settings, "torch_dtype": "bfloat16"}, indent=1))
    generator = torch.Generator().manual_seed(seed)
    tensors, prompts, worst = {}, [], 0.0
    for i, length in enumerate((1, 7, 30)):
        ids = torch.randint(3, 64, (length,), generator=generator)
        logits, exact = answer(folder, auto, ids)
        tensors[f"prompt{i}.input_ids"], tensors[f"prompt{i}.logits"] = ids, logits.float().contiguous()
        prompts.append(ids.tolist())
        worst = max(worst, (logits - exact).abs().max().item())
        print(f"{name:24} prompt {i}: std {logits.std():.2f}, f32 against f64 {(logits - exact).abs().max():.1e}")
    save_file(tensors, folder / "golden.safetensors")
    facts = dict(name=name, reference="transformers, float32, eager attention", prompts=prompts, suggested_abs_tolerance_f32=max(1e-4, 5 * worst))
    # How far each moves the logits of the longest prompt.
    moved = {m: dict(change=change, max_abs_logit_change=(answer(folder, auto, ids, change)[0] - logits).abs().max().item()) for m, change in mutants.items()}
    if moved:
        facts["mutants"] = moved
    (folder / "golden.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    for seed, (name, case) in enumerate(CASES.items()):
        if name in sys.argv[2:] or len(sys.argv) == 2:
            make(pathlib.Path(sys.argv[1]), name, seed, *case)
