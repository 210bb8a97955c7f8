"""Makes golden cases of MTP layers (multi-token prediction, also called nextn) by the transformers library.

usage: mtp.py OUT_DIR [CASE...]  (needs what make.py needs, transformers in version 5.24 or newer)

Each case is a folder like those of make.py, with an MTP layer in its checkpoint that is named as the makers of the family
name it. The library's models skip that layer. Its own drafting knows only some of these families and shows the logits of
the last row only, so the layer is put together here from the library's parts: `MtpLayer`, with one more of the family's
decoder layers within.

For each prompt of T tokens there are, besides the main model's logits, `mtp` [T - 1, vocab]: row p is made from the hidden
state of token p, after the main model's last norm, and from token p + 1. It is at position p, sees the rows before it, and
predicts token p + 2. `mtp2` [1, vocab] is one more row at position T - 1, made from the hidden state that the row before it
left and from that row's best token, which is `mtp_token` in golden.json.
"""
import json
import pathlib
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import MtpLayer

from make import JOINT, PLAIN, wanted

MLA = dict(num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8)
ROUTED = dict(num_hidden_layers=2, moe_intermediate_size=16, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=1.5, num_nextn_predict_layers=1)
MIXED = dict(num_hidden_layers=3, full_attention_interval=3, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8)
SECTIONS = dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True))
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=24)

# For each: the library's name, the settings, and which embeddings and head the checkpoint has for the MTP layer: copies
# of the main model's as in makers' files, others (so that a reader that takes the main model's is found out), or none.
CASES = {
    "deepseek-v3": ("deepseek_v3", dict(**MLA, **ROUTED, n_group=4, topk_group=2), "copies"),
    "deepseek-v3-shared": ("deepseek_v3", dict(**MLA, **ROUTED, n_group=4, topk_group=2), None),
    "glm4-moe": ("glm4_moe", dict(**ROUTED, head_dim=16, attention_bias=True, use_qk_norm=True, partial_rotary_factor=0.5), "others"),
    "qwen3-next": ("qwen3_next", dict(**MIXED, **EXPERTS, partial_rotary_factor=0.5), None),
    # Small models of this family have one matrix for embeddings and head.
    "qwen3.5": ("qwen3_5_text", dict(**MIXED, **SECTIONS, mtp_num_hidden_layers=1, tie_word_embeddings=True), None),
    "qwen3.5-moe": ("qwen3_5_moe_text", dict(**MIXED, **EXPERTS, **SECTIONS, mtp_num_hidden_layers=1), None),
}
# What files call the parts of an MTP layer that is stored behind the last layer, and of one that is stored apart.
BEHIND = dict(enorm="enorm", hnorm="hnorm", eh_proj="eh_proj", post_norm="shared_head.norm", embed="embed_tokens", head="shared_head.head")
APART = dict(enorm="pre_fc_norm_embedding", hnorm="pre_fc_norm_hidden", eh_proj="fc", post_norm="norm")
# How far ahead the best token must be where it is fed back, so that rounding cannot choose another one.
CLEAR = 0.3


class Drafting:
    """A model and its MTP layer."""

    def __init__(self, kind: str, settings: dict, weights: pathlib.Path | None = None):
        """With weights from a folder in which the MTP layer's block is stored as one more layer of the model."""
        settings = json.loads(json.dumps(settings))
        self.layers = settings["num_hidden_layers"]
        # Told of one layer more, the library builds that block too. `answer` sets the count back so that it is not run.
        longer = {**settings, "num_hidden_layers": self.layers + 1}
        if types := getattr(AutoConfig.for_model(kind, **settings), "layer_types", None):
            longer["layer_types"] = [*types, "full_attention"]
        config = AutoConfig.for_model(kind, **longer)
        if weights:
            config.save_pretrained(weights)
            self.model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32, **PLAIN).eval()
        else:
            self.model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **PLAIN).eval()
        self.main, block = self.model.model, self.model.model.layers[-1]
        self.mtp = MtpLayer(self.model.config, type(block), type(self.main.norm), self.layers).eval()
        self.mtp.mtp_block = block
        self.mtp.embed, self.mtp.head = self.main.embed_tokens, self.model.lm_head

    def with_own(self) -> None:
        """Gives the MTP layer its own embeddings and head, with the same weights for now."""
        shape = self.main.embed_tokens.weight.shape
        self.mtp.embed, self.mtp.head = torch.nn.Embedding(*shape), torch.nn.Linear(shape[1], shape[0], bias=False)
        self.mtp.embed.weight.copy_(self.main.embed_tokens.weight)
        self.mtp.head.weight.copy_(self.model.lm_head.weight)

    def rows(self, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """What the MTP layer makes of tokens and of the hidden states one token earlier, before its own last norm."""
        x, positions = self.mtp.embed(tokens)[None], torch.arange(len(tokens))[None]
        mask = create_causal_mask(config=self.model.config, inputs_embeds=x, attention_mask=None, cache=None, position_ids=positions)
        self.mtp.use_post_norm = False
        return self.mtp(x, hidden[None], self.main.rotary_emb(x, positions), mask, positions, None)[0]

    def answer(self, ids: torch.Tensor, raw: bool = False, early: bool = False, swapped: bool = False, token: int | None = None) -> dict:
        """Logits of the main model, of the MTP layer, and of its second row. That one is fed `token`, or else the best.

        Two mistakes can be made on purpose. `early`: hidden states from before the main model's last norm; `swapped`:
        hidden states ahead of embeddings in what is joined."""
        seen = []
        self.model.config.num_hidden_layers = self.layers
        self.model.config.mtp_hidden_states_first = swapped
        hook = self.main.norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
        hidden = self.main(ids[None]).last_hidden_state[0]
        hook.remove()
        logits = self.model.lm_head(hidden)
        hidden = (seen[0] if early else hidden)[:-1]
        left = self.rows(ids[1:], hidden)
        normed = self.mtp.post_norm(left)
        mtp = self.mtp.head(normed)
        best = mtp[-1].topk(2)
        token = best.indices[0].item() if token is None else token
        # No row sees a later one, so the prompt's rows can be computed again instead of being kept in a cache.
        again = self.rows(torch.cat([ids[1:], torch.tensor([token])]), torch.cat([hidden, (left if raw else normed)[-1:]]))
        mtp2 = self.mtp.head(self.mtp.post_norm(again[-1:]))
        return dict(logits=logits, mtp=mtp, mtp2=mtp2, token=token, margin=(best.values[0] - best.values[1]).item())


def draw(module: torch.nn.Module) -> None:
    """Draws weights as make.py does. They are rounded when they are written."""
    for key, p in module.named_parameters():
        if "norm" in key:
            p.copy_(1.0 + 0.2 * torch.randn_like(p))
        elif key.endswith("bias"):
            p.copy_(0.3 * torch.randn_like(p))
        else:
            p.copy_(torch.randn_like(p) * (1.0 if "embed" in key else 1.6 * p.shape[-1] ** -0.5))
    for key, p in module.named_buffers():
        if key.endswith("e_score_correction_bias"):
            p.copy_(0.3 * torch.randn_like(p))


def names(kind: str, settings: dict) -> tuple[str, str, dict]:
    """Of the MTP layer in files: its block's prefix, the other parts' prefix, and what those are called."""
    behind = f"model.layers.{settings['num_hidden_layers']}."
    return (behind, behind, BEHIND) if "num_nextn_predict_layers" in settings else ("mtp.layers.0.", "mtp.", APART)


def write(path: pathlib.Path, kind: str, settings: dict, own: str | None, seed: int) -> None:
    """Writes a checkpoint of random weights in the form that the family's makers use."""
    torch.manual_seed(seed)
    it = Drafting(kind, settings)
    draw(it.model)
    if own:
        it.with_own()
    for part in ("enorm", "hnorm", "eh_proj", "post_norm", *(("embed", "head") if own == "others" else ())):
        draw(torch.nn.ModuleDict({part: getattr(it.mtp, part)}))
    it.model.bfloat16()
    it.mtp.bfloat16()
    # By the library's own writer: in memory, names and experts are others than in files.
    with tempfile.TemporaryDirectory() as written:
        it.model.save_pretrained(written)
        state = load_file(pathlib.Path(written) / "model.safetensors")
    if kind in JOINT:
        state = it.model.state_dict()
    block, prefix, called = names(kind, settings)
    state = {k.replace(f"model.layers.{it.layers}.", block): v for k, v in state.items()}
    for part, name in called.items():
        if own or part not in ("embed", "head"):
            state[f"{prefix}{name}.weight"] = getattr(it.mtp, part).weight.detach()
    save_file({k: v.contiguous() for k, v in state.items()}, path)


def read(path: pathlib.Path, kind: str, settings: dict) -> Drafting:
    """Reads it back, in f32: the reference is computed from the file."""
    state = load_file(path)
    block, prefix, called = names(kind, settings)
    parts = {part: state.pop(f"{prefix}{name}.weight") for part, name in called.items() if f"{prefix}{name}.weight" in state}
    with tempfile.TemporaryDirectory() as other:
        behind = f"model.layers.{settings['num_hidden_layers']}."
        save_file({k.replace(block, behind): v for k, v in state.items()}, pathlib.Path(other) / "model.safetensors", metadata=dict(format="pt"))
        it = Drafting(kind, settings, pathlib.Path(other))
    if "embed" in parts:
        it.with_own()
    for part, weight in parts.items():
        getattr(it.mtp, part).weight.copy_(weight.float())
    return it


def far(some: dict, other: dict, key: str) -> float:
    return (some[key] - other[key]).abs().max().item()


def make(out: pathlib.Path, name: str, seed: int, kind: str, extra: dict, own: str | None) -> bool:
    """Makes a case, or returns false if this seed's best tokens are not clear enough."""
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    settings = wanted(kind, extra)
    write(folder / "model.safetensors", kind, settings, own, seed)
    it, exact = read(folder / "model.safetensors", kind, settings), read(folder / "model.safetensors", kind, settings)
    exact.model.double()
    exact.mtp.double()
    config = {"architectures": [type(it.model).__name__], "model_type": kind, **settings, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    generator = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(3, 64, (length,), generator=generator) for length in (2, 7, 30)]
    answers = [it.answer(ids) for ids in prompts]
    if min(answer["margin"] for answer in answers) < CLEAR:
        return False
    # The folder as anyone would load it: the main model must be the same with the MTP layer skipped.
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **PLAIN).eval()
    tensors, worst = {}, 0.0
    for i, (ids, answer) in enumerate(zip(prompts, answers)):
        assert torch.equal(plain(ids[None]).logits[0], answer["logits"]), name
        other = exact.answer(ids, token=answer["token"])
        apart = {key: far(answer, other, key) for key in ("logits", "mtp", "mtp2")}
        worst = max(worst, *apart.values())
        tensors[f"prompt{i}.input_ids"] = ids
        tensors |= {f"prompt{i}.{key}": answer[key].contiguous() for key in apart}
        print(f"{name:20} prompt {i}: std {answer['mtp'].std():.2f}, best token ahead by {answer['margin']:.2f}, f32 against f64", {k: f"{v:.1e}" for k, v in apart.items()})
    save_file(tensors, folder / "golden.safetensors")
    # How far mistakes move the longest prompt's logits: those of `mtp`, or, where the wrong hidden state is fed back
    # (`recursion`), those of `mtp2`.
    moved = dict(before_norm=far(it.answer(ids, early=True), answer, "mtp"), swapped=far(it.answer(ids, swapped=True), answer, "mtp"))
    moved["recursion"] = far(it.answer(ids, raw=True, token=answer["token"]), answer, "mtp2")
    if own == "others":
        it.mtp.embed, it.mtp.head = it.main.embed_tokens, it.model.lm_head
        moved["shared"] = far(it.answer(ids), answer, "mtp")
    print(f"{name:20} moved", {k: f"{v:.2f}" for k, v in moved.items()})
    facts = dict(
        name=name, reference=f"transformers {transformers.__version__}, torch {torch.__version__}, float32, eager attention", seed=seed,
        notes=f"embeddings and head of the MTP layer: {own or 'those of the main model'}; its second row is fed its hidden state from after its last norm",
        prompts=[ids.tolist() for ids in prompts], mtp_token=[answer["token"] for answer in answers], min_mtp_margin=min(answer["margin"] for answer in answers),
        reference_f32_vs_f64=worst, suggested_abs_tolerance_f32=max(1e-4, 5 * worst), moved=moved,
    )
    (folder / "golden.json").write_text(json.dumps(facts))
    return True


if __name__ == "__main__":
    # It would warn about every tensor that it skips, and those are what these cases are about.
    transformers.logging.set_verbosity_error()
    with torch.no_grad():
        for first, (name, case) in enumerate(CASES.items()):
            if name in sys.argv[2:] or len(sys.argv) == 2:
                seeds = range(first, 1000, len(CASES))
                assert any(make(pathlib.Path(sys.argv[1]), name, seed, *case) for seed in seeds), name
