"""Makes small golden cases of embedding models that are decoders, by the sentence-transformers and transformers libraries.

usage: embedders.py OUT_DIR [NAME...]        (needs: pip install sentence-transformers torch transformers safetensors numpy)

Each case is a folder as sentence-transformers saves it, with random weights in bf16. `golden.safetensors` has the tokens
of some texts, filled up with padding (`input_ids`, `attention_mask`), their `last_hidden_state`, and their `vectors`
(pooled, through the dense layers, of length 1). `golden.json` has the texts, and for settings that are changed how far that
moves the vectors.
"""
import json
import pathlib
import shutil
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

BASE = dict(
    vocab_size=264, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, bos_token_id=256, eos_token_id=257, pad_token_id=258,
)
GEMMA = dict(
    num_hidden_layers=4, head_dim=12, query_pre_attn_scalar=12, sliding_window=7, use_bidirectional_attention=True, rope_theta=20000.0,
    rope_local_base_freq=300.0, layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
)

# For each: the library's name, the settings, the pooling, the dense layers (outputs and activation), the special tokens
# around a text, and changes of the settings.
CASES = {
    "qwen3": ("qwen3", dict(head_dim=12, tie_word_embeddings=True), "lasttoken", [], (False, True), [dict(rope_theta=500.0)]),
    "mistral": ("mistral", dict(sliding_window=5), "lasttoken", [], (True, True), [dict(sliding_window=4)]),
    "llama": ("llama", dict(tie_word_embeddings=False), "weightedmean", [], (True, False), [dict(rms_norm_eps=0.1)]),
    "qwen2-bidirectional": ("qwen2", dict(is_causal=False), "mean", [], (False, True), [dict(is_causal=True)]),
    "gemma3": ("gemma3_text", GEMMA, "mean", [(48, torch.nn.Identity()), (24, torch.nn.Identity())], (True, True), [dict(use_bidirectional_attention=False), dict(sliding_window=8), dict(sliding_window=5)]),
}
# The architecture in `config.json` where it is not the bare model.
CALLED = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}
TEXTS = ["a", "The cat sat on the mat.", "Übermut tut selten gut: 12 + 30 = 42!"]


def tokenizer(adds: tuple[bool, bool]) -> PreTrainedTokenizerFast:
    """A tokenizer of single bytes, with special tokens before and after a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<bos>", "<eos>", "<pad>", "<|endoftext|>"] + [f"<unused{i}>" for i in range(4)]
    vocab = {token: i for i, token in enumerate(alphabet + special)}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    inner.add_special_tokens(special)
    single = ("<bos> " if adds[0] else "") + "$A" + (" <eos>" if adds[1] else "")
    around = processors.TemplateProcessing(single=single, special_tokens=[(token, vocab[token]) for token in special[:2]])
    inner.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), around])
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>")


def drawn(model: torch.nn.Module) -> None:
    """Weights at a useful scale, rounded to bf16. Gemma's norms store one less."""
    gemma = "Gemma" in type(model).__name__
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.dim() == 1 and key.endswith("norm.weight"):
                p.copy_((0.0 if gemma else 1.0) + 0.2 * torch.randn_like(p))
            elif key.endswith("bias"):
                p.copy_(0.3 * torch.randn_like(p))
            else:
                p.copy_(torch.randn_like(p) * (1.0 if "embed" in key else 1.6 * p.shape[-1] ** -0.5))
            p.copy_(p.bfloat16().float())


def opened(kind: str, settings: dict, state: dict | None = None) -> torch.nn.Module:
    config = AutoConfig.for_model(kind, **json.loads(json.dumps({**BASE, **settings})))
    model = AutoModel.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    if state is not None:
        model.load_state_dict(state)
    return model


def make(out: pathlib.Path, name: str, case: tuple, seed: int) -> None:
    kind, extra, by, layers, adds, changes = case
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(seed)
    model = opened(kind, extra)
    drawn(model)
    behind = [Pooling(BASE["hidden_size"], pooling_mode=by)]
    for width, act in layers:
        dense = Dense(behind[-1].out_features if isinstance(behind[-1], Dense) else BASE["hidden_size"], width, bias=False, activation_function=act)
        drawn(dense)
        behind.append(dense)
    behind.append(Normalize())

    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(tmp)
        tokenizer(adds).save_pretrained(tmp)
        first = Transformer(tmp, model_kwargs=dict(attn_implementation="eager", dtype=torch.float32))
        whole = SentenceTransformer(modules=[first, *behind], device="cpu")
        whole.save(str(folder), create_model_card=False)
    # As the hub has it: in bf16, and the settings that were given.
    state = {key: value.bfloat16().contiguous() for key, value in model.state_dict().items()}
    if name == "llama":
        # A head that is not used.
        state = {f"model.{key}": value for key, value in state.items()}
        state["lm_head.weight"] = torch.randn(BASE["vocab_size"], BASE["hidden_size"]).bfloat16()
    save_file(state, folder / "model.safetensors")
    for file in folder.glob("*_Dense/model.safetensors"):
        save_file({key: value.bfloat16().contiguous() for key, value in load_file(file).items()}, file)
    called = CALLED.get(name, type(model).__name__)
    config = {"architectures": [called], "model_type": kind, **BASE, **extra, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config, indent=1))

    given = whole.preprocess(TEXTS)
    given = {key: given[key] for key in ("input_ids", "attention_mask")}

    def vectors(model: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
        features = {**given, "token_embeddings": model(**given).last_hidden_state}
        for module in behind:
            features = module(features)
        return features["token_embeddings"], features["sentence_embedding"]

    with torch.no_grad():
        (hidden, pooled), encoded = vectors(model), torch.tensor(whole.encode(TEXTS))
        moved = [(change, (vectors(opened(kind, {**extra, **change}, model.state_dict()))[1] - pooled).abs().max().item()) for change in changes]
        # Each text alone, without padding.
        plain = opened(kind, extra, model.state_dict()).double()
        alone = [plain(input_ids=ids[None, : mask.sum()]).last_hidden_state[0] for ids, mask in zip(given["input_ids"], given["attention_mask"])]
    assert (encoded - pooled).abs().max() < 1e-5, "the library's own call gives other vectors"
    off = max((padded[: len(exact)] - exact).abs().max().item() for padded, exact in zip(hidden, alone))
    print(f"{name:20} std {hidden.std():.2f}, f32 against f64 {off:.1e}, moved {[f'{far:.3f}' for _, far in moved]}")
    save_file({**given, "last_hidden_state": hidden.contiguous(), "vectors": pooled.contiguous()}, folder / "golden.safetensors")
    facts = dict(
        name=name, reference="sentence-transformers and transformers, float32, eager attention", texts=TEXTS,
        suggested_abs_tolerance_f32=1e-4, changed=[dict(change=change, max_abs_change=far) for change, far in moved],
    )
    (folder / "golden.json").write_text(json.dumps(facts, ensure_ascii=False))


if __name__ == "__main__":
    wanted = sys.argv[2:]
    for seed, (name, case) in enumerate(CASES.items()):
        if not wanted or name in wanted:
            make(pathlib.Path(sys.argv[1]), name, case, seed)
