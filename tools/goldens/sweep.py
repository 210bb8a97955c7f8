"""Makes golden cases of settings drawn by chance, to look for those that we read otherwise than the transformers library.

usage: sweep.py OUT_DIR SEED COUNT [KIND...]     (needs what make.py needs)
then:  cargo xtask parity OUT_DIR

COUNT cases for each kind of decoder, of other shapes and options each; the same seed makes the same cases. Settings that
the library itself does not take are left out. A case that is off belongs into `CASES` of make.py once it is understood.
"""
import pathlib
import random
import shutil
import sys

import transformers
from transformers import AutoConfig

import make
from make import LONG, YARN

BOTH = [True, False]
ACTS = ["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "gelu_fast", "quick_gelu", "swish", "relu2"]
PARTS = [0.25, 0.5, 0.75, 1.0]
BIASES = dict(attention_bias=BOTH, mlp_bias=BOTH)
WINDOWS = dict(use_sliding_window=BOTH, sliding_window=[3, 7], max_window_layers=[0, 1, 2, 9])

# What a kind may have beside what all have: each is set or left out by chance.
MAY = {
    "arcee": dict(BIASES, hidden_act=ACTS),
    "cohere": dict(attention_bias=BOTH, logit_scale=[0.25, 1.0], use_qk_norm=BOTH),
    "cohere2": dict(attention_bias=BOTH, logit_scale=[0.25, 1.0], sliding_window=[3, 6], sliding_window_pattern=[2, 3]),
    "deepseek_v2": dict(topk_method=["greedy", "group_limited_greedy"], attention_bias=BOTH, routed_scaling_factor=[1.0, 1.7]),
    "deepseek_v3": dict(norm_topk_prob=BOTH, attention_bias=BOTH, rope_interleave=BOTH, routed_scaling_factor=[1.0, 1.7]),
    "dots1": dict(norm_topk_prob=BOTH, attention_bias=BOTH, routed_scaling_factor=[1.0, 1.7], hidden_act=ACTS, sliding_window=[3, 7], max_window_layers=[0, 1, 2, 9], num_experts_per_tok=[1, 3]),
    "ernie4_5": dict(use_bias=BOTH),
    "exaone4": dict(),
    "gemma": dict(hidden_activation=ACTS, attention_bias=BOTH),
    "gemma2": dict(query_pre_attn_scalar=[7, 20], attention_bias=BOTH, attn_logit_softcapping=[5.0, None], final_logit_softcapping=[6.0, None], hidden_activation=ACTS),
    "gemma3_text": dict(query_pre_attn_scalar=[7, 20], attention_bias=BOTH, attn_logit_softcapping=[7.0], final_logit_softcapping=[6.0], rope_local_base_freq=[50.0, 10000.0], sliding_window_pattern=[2, 3]),
    "gemma4_text": dict(final_logit_softcapping=[6.0], attention_bias=BOTH),
    "glm": dict(attention_bias=BOTH, partial_rotary_factor=[0.5, 1.0]),
    "glm4": dict(attention_bias=BOTH, partial_rotary_factor=[0.5, 1.0]),
    "glm4_moe": dict(norm_topk_prob=BOTH, routed_scaling_factor=[1.0, 1.5], use_qk_norm=BOTH, attention_bias=BOTH, partial_rotary_factor=[0.5, 1.0]),
    "glm4_moe_lite": dict(norm_topk_prob=BOTH, attention_bias=BOTH, rope_interleave=BOTH, routed_scaling_factor=[1.0, 1.7]),
    "gpt2": dict(scale_attn_by_inverse_layer_idx=BOTH, scale_attn_weights=BOTH, activation_function=ACTS),
    "gpt_neox": dict(use_parallel_residual=BOTH, attention_bias=BOTH, rotary_pct=PARTS, hidden_act=ACTS),
    "gpt_oss": dict(attention_bias=BOTH),
    "granite": dict(BIASES, embedding_multiplier=[6.0], attention_multiplier=[0.2], residual_multiplier=[0.3], logits_scaling=[5.0]),
    "granitemoe": dict(embedding_multiplier=[6.0], attention_multiplier=[0.2], residual_multiplier=[0.3], logits_scaling=[5.0], attention_bias=BOTH, num_local_experts=[3, 5], num_experts_per_tok=[1, 2]),
    "llama": dict(BIASES, hidden_act=ACTS),
    "llama4_text": dict(use_qk_norm=BOTH, interleave_moe_layer_step=[1, 2], attn_temperature_tuning=BOTH, floor_scale=[4, 8], attn_scale=[0.3], attention_bias=BOTH, no_rope_layer_interval=[2, 3], num_experts_per_tok=[1, 2]),
    "minimax_m2": dict(rotary_dim=[2, 6], partial_rotary_factor=PARTS, hidden_act=ACTS, num_local_experts=[3, 5], num_experts_per_tok=[1, 2]),
    "ministral": dict(hidden_act=ACTS),
    "ministral3": dict(sliding_window=[None, 7]),
    "mistral": dict(hidden_act=ACTS, sliding_window=[None, 1, 4, 9]),
    "mixtral": dict(sliding_window=[None, 5], hidden_act=ACTS, router_jitter_noise=[0.1], num_local_experts=[3, 4], num_experts_per_tok=[1, 2]),
    "nemotron": dict(BIASES, partial_rotary_factor=[0.5, 1.0], hidden_act=ACTS),
    "olmo2": dict(attention_bias=BOTH, hidden_act=ACTS),
    "olmo3": dict(attention_bias=BOTH, sliding_window=[3, 6]),
    "olmoe": dict(norm_topk_prob=BOTH, attention_bias=BOTH, num_experts=[3, 5], num_experts_per_tok=[1, 3]),
    "phi": dict(qk_layernorm=BOTH, partial_rotary_factor=PARTS, hidden_act=ACTS),
    "phi3": dict(partial_rotary_factor=PARTS, sliding_window=[None, 5, 9], hidden_act=ACTS),
    "phimoe": dict(attention_bias=BOTH, lm_head_bias=BOTH, sliding_window=[None, 5], router_jitter_noise=[0.01, 0.3], num_local_experts=[3, 6]),
    "qwen2": dict(WINDOWS, hidden_act=ACTS),
    "qwen2_moe": dict(WINDOWS, norm_topk_prob=BOTH, qkv_bias=BOTH, decoder_sparse_step=[1, 2], mlp_only_layers=[[0]]),
    "qwen3": dict(WINDOWS, hidden_act=ACTS, attention_bias=BOTH),
    "qwen3_moe": dict(WINDOWS, norm_topk_prob=BOTH, attention_bias=BOTH, decoder_sparse_step=[1, 2], mlp_only_layers=[[0]]),
    "qwen3_next": dict(norm_topk_prob=BOTH, attention_bias=BOTH, decoder_sparse_step=[1, 2], mlp_only_layers=[[0]], partial_rotary_factor=PARTS),
    "qwen3_5_text": dict(attention_bias=BOTH),
    "qwen3_5_moe_text": dict(attention_bias=BOTH),
    "seed_oss": dict(BIASES, attention_out_bias=BOTH),
    "smollm3": dict(BIASES, no_rope_layer_interval=[1, 2, 3]),
    "stablelm": dict(use_parallel_residual=BOTH, qk_layernorm=BOTH, use_qkv_bias=BOTH, partial_rotary_factor=PARTS, hidden_act=ACTS),
    "starcoder2": dict(use_bias=BOTH, sliding_window=[None, 5], hidden_act=ACTS),
}
# What has layers of two kinds, in any order, and what the other kind is called.
TYPES = {kind: "sliding_attention" for kind in ("cohere2", "dots1", "exaone4", "gemma2", "gemma3_text", "gemma4_text", "gpt_oss", "ministral", "mistral", "olmo3", "qwen2", "qwen3")}
TYPES |= {kind: "linear_attention" for kind in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")}
# What never has heads of another size than follows from the others.
SHARED = ("cohere", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "gpt2", "gpt_neox", "granite", "granitemoe", "olmo2", "olmo3", "olmoe", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "stablelm", "starcoder2")
# What turns in a way of its own, or not at all. OLMo 3's base is read in two ways by two versions of the library.
OWN_ROPE = ("gemma4_text", "gpt2", "ministral3", "olmo3", "phi3", "phimoe", "qwen3_5_text", "qwen3_5_moe_text")
EXPERTS = dict(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=20)
LATENT = dict(kv_lora_rank=16, qk_nope_head_dim=8, v_head_dim=12, moe_intermediate_size=16, n_routed_experts=8, num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1)
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12, linear_conv_kernel_dim=3)
# What a kind must have.
MUST = {
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "dots1": dict(moe_intermediate_size=20, n_routed_experts=8, n_shared_experts=2, n_group=2, topk_group=1, num_experts_per_tok=2, first_k_dense_replace=1),
    "exaone4": dict(sliding_window=5),
    "gemma2": dict(sliding_window=5),
    "gemma3_text": dict(sliding_window=5),
    "gemma4_text": dict(sliding_window=5, global_head_dim=16, hidden_size_per_layer_input=0),
    "glm4_moe": dict(moe_intermediate_size=20, n_routed_experts=8, n_group=2, topk_group=1, num_experts_per_tok=2, first_k_dense_replace=1),
    "glm4_moe_lite": LATENT,
    "gpt_oss": dict(num_local_experts=6, num_experts_per_tok=2, sliding_window=5, rope_scaling=dict(**YARN, factor=4.0, truncate=False)),
    "llama4_text": dict(intermediate_size_mlp=40, num_local_experts=3, attention_chunk_size=6),
    "minimax_m2": dict(num_local_experts=4, num_experts_per_tok=2),
    "ministral": dict(sliding_window=5),
    "ministral3": dict(rope_parameters=dict(**YARN, rope_type="yarn", rope_theta=1000.0, factor=8.0, mscale=1.0, mscale_all_dim=0.7, llama_4_scaling_beta=0.3)),
    "phimoe": dict(num_local_experts=4, num_experts_per_tok=2),
    "qwen2_moe": dict(EXPERTS, shared_expert_intermediate_size=24),
    "qwen3_moe": EXPERTS,
    "qwen3_next": dict(EXPERTS, **DELTA, shared_expert_intermediate_size=16),
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": dict(EXPERTS, **DELTA, shared_expert_intermediate_size=16),
}


def scaling(r: random.Random) -> dict | None:
    """Some way to scale a rotation."""
    original = dict(original_max_position_embeddings=r.choice([8, 16, 32]))
    return r.choice([
        None,
        dict(rope_type="linear", factor=r.choice([2.0, 3.5])),
        dict(rope_type="dynamic", factor=r.choice([2.0, 4.0])),
        dict(rope_type="yarn", factor=r.choice([2.0, 8.0]), beta_fast=r.choice([8.0, 32.0]), truncate=r.choice(BOTH), **original),
        dict(rope_type="yarn", factor=4.0, attention_factor=r.choice([0.8, 1.4]), **original),
        dict(rope_type="llama3", factor=r.choice([4.0, 8.0]), low_freq_factor=1.0, high_freq_factor=r.choice([2.0, 4.0]), **original),
        dict(rope_type="longrope", factor=4.0, original_max_position_embeddings=10, **LONG),
    ])


def draw(r: random.Random, kind: str) -> dict:
    """Settings of that kind."""
    heads, layers = r.choice([1, 2, 3, 4, 6]), r.choice([1, 2, 3, 5])
    head = r.choice([8, 16])
    settings = dict(
        vocab_size=r.choice([64, 65, 96]), hidden_size=heads * head, intermediate_size=r.choice([20, 33, 64]),
        num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=r.choice([n for n in range(1, heads + 1) if heads % n == 0]),
        max_position_embeddings=r.choice([40, 64]), rms_norm_eps=r.choice([1e-6, 1e-3, None]),
        tie_word_embeddings=r.choice([True, False, None]),
    )
    if kind not in SHARED:
        settings |= dict(hidden_size=heads * r.choice([6, 8, 12]), head_dim=head)
    if MUST.get(kind, {}).get("kv_lora_rank"):
        # Heads share no keys but have a part in common, which turns.
        settings |= dict(num_key_value_heads=heads, qk_rope_head_dim=8, q_lora_rank=r.choice([None, 20]))
    if kind not in OWN_ROPE:
        settings |= dict(rope_theta=r.choice([100.0, 10000.0, 1e6]))
        if scaled := scaling(r):
            settings |= dict(rope_scaling=scaled)
    settings |= MUST.get(kind, {})
    settings |= {key: r.choice(values) for key, values in MAY[kind].items() if r.random() < 0.5}
    if kind in TYPES and r.random() < 0.5:
        types = [r.choice([TYPES[kind], "full_attention"]) for _ in range(layers - 1)] + ["full_attention"]
        settings |= dict(layer_types=types)
    if kind in ("qwen2", "qwen3") and not settings.get("use_sliding_window"):
        settings.pop("layer_types", None)
    return settings


def main(out: pathlib.Path, seed: int, count: int, kinds: list[str]) -> None:
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for kind in kinds or MAY:
        for i in range(count):
            r, name = random.Random(f"{kind} {seed} {i}"), f"{kind}-{seed}-{i}"
            try:
                make.make(out, name, 1000 * seed + i, kind, draw(r, kind))
                if r.random() < 0.5:
                    # As the library writes it.
                    AutoConfig.from_pretrained(out / name).save_pretrained(out / name)
            except Exception as why:
                shutil.rmtree(out / name, ignore_errors=True)
                print(f"{name:24} is not taken: {str(why).splitlines()[0][:100]}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
