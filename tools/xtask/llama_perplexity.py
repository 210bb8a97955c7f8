"""How well llama.cpp predicts a text: the same tokens, in the same windows, as `tallow perplexity` scores.

    pip install numpy xllamacpp
    python llama_perplexity.py floats IN.gguf OUT.gguf      all weights as f32
    python llama_perplexity.py score TEXT CONTEXT MODEL...  a line of JSON for each model

xllamacpp holds a llama.cpp whose own functions are called here. Structures that they take by value are longer here than
there: what is not named keeps what llama.cpp itself puts there.
"""

import ctypes
import json
import sys

import numpy as np
import xllamacpp.xllamacpp as peer

lib = ctypes.CDLL(peer.__file__)


class ModelParams(ctypes.Structure):
    _fields_ = [("all", ctypes.c_uint64 * 32)]


class ContextParams(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in (
        "n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "n_outputs_max", "n_outputs_max_per_seq", "n_threads",
        "n_threads_batch", "ctx_type", "rope_scaling_type", "pooling_type", "attention_type", "flash_attn_type",
    )] + [("rope", ctypes.c_uint32 * 8), ("cb_eval", ctypes.c_void_p), ("cb_data", ctypes.c_void_p),
          ("type_k", ctypes.c_uint32), ("type_v", ctypes.c_uint32), ("rest", ctypes.c_uint64 * 32)]


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", ctypes.c_int32), ("token", ctypes.POINTER(ctypes.c_int32)), ("embd", ctypes.c_void_p),
                ("pos", ctypes.POINTER(ctypes.c_int32)), ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
                ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))), ("logits", ctypes.POINTER(ctypes.c_int8))]


def function(name, result, *arguments):
    found = getattr(lib, name)
    found.restype, found.argtypes = result, arguments
    return found


P, I, B = ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool
quiet = ctypes.CFUNCTYPE(None, I, ctypes.c_char_p, P)(lambda level, text, data: None)
function("llama_log_set", None, P, P)(ctypes.cast(quiet, P), None)
function("llama_backend_init", None)()
load = function("llama_model_load_from_file", P, ctypes.c_char_p, ModelParams)
new_context = function("llama_init_from_model", P, P, ContextParams)
vocab_of = function("llama_model_get_vocab", P, P)
tokenize = function("llama_tokenize", I, P, ctypes.c_char_p, I, ctypes.POINTER(I), I, B, B)
new_batch = function("llama_batch_init", Batch, I, I, I)
decode = function("llama_decode", I, P, Batch)
logits_of = function("llama_get_logits", ctypes.POINTER(ctypes.c_float), P)
memory_of = function("llama_get_memory", P, P)
clear = function("llama_memory_clear", None, P, B)
free_context, free_model = function("llama_free", None, P), function("llama_model_free", None, P)


def windows(vocab, text, context):
    data = text.encode()
    room = (I * (len(data) + 8))()
    count = tokenize(vocab, data, len(data), room, len(room), False, False)
    assert count > 0, count
    tokens = list(room[:count])
    begin = []
    if function("llama_vocab_get_add_bos", B, P)(vocab):
        begin = [function("llama_vocab_bos", I, P)(vocab)]
    step = context - len(begin)
    return [begin + tokens[i:i + step] for i in range(0, len(tokens), step)]


def score(path, text, context):
    model = load(path.encode(), function("llama_model_default_params", ModelParams)())
    assert model, f"{path}: llama.cpp does not load it"
    vocab = vocab_of(model)
    params = function("llama_context_default_params", ContextParams)()
    params.n_ctx = params.n_batch = params.n_ubatch = (context + 255) // 256 * 256
    params.n_seq_max = 1
    params.n_outputs_max = 0
    params.n_threads = params.n_threads_batch = 1  # several wait for each other in a busy loop
    params.flash_attn_type = 0
    params.type_k = params.type_v = 0  # F32
    ctx = new_context(model, params)
    assert ctx, f"{path}: llama.cpp makes no context"
    words = function("llama_vocab_n_tokens", I, P)(vocab)
    batch = new_batch(context, 0, 1)
    total, scored = 0.0, 0
    for window in windows(vocab, text, context):
        if len(window) < 2:
            continue
        clear(memory_of(ctx), True)
        for i, token in enumerate(window):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
            batch.seq_id[i][0] = 0
        batch.n_tokens = len(window)
        assert decode(ctx, batch) == 0
        rows = np.ctypeslib.as_array(logits_of(ctx), (len(window), words))[:-1].astype(np.float64)
        top = rows.max(1)
        wanted = rows[np.arange(len(rows)), window[1:]]
        total += float((top + np.log(np.exp(rows - top[:, None]).sum(1)) - wanted).sum())
        scored += len(rows)
    free_context(ctx)
    free_model(model)
    return {"model": path, "perplexity": float(np.exp(total / scored)), "tokens": scored}


def floats(source, target):
    """A file of the same settings whose weights are all f32, exactly what the blocks stand for."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, dequantize

    read = GGUFReader(source)
    write = GGUFWriter(target, read.fields["general.architecture"].contents())
    for name, field in read.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        part = field.types[-1] if kind == GGUFValueType.ARRAY else None
        write.add_key_value(name, field.contents(), kind, part)
    write.add_uint32("general.file_type", 0)
    for tensor in read.tensors:
        data = tensor.data
        if tensor.tensor_type != GGMLQuantizationType.F32:
            data = dequantize(data, tensor.tensor_type)
        write.add_tensor(tensor.name, np.ascontiguousarray(data, np.float32))
    write.write_header_to_file()
    write.write_kv_data_to_file()
    write.write_tensors_to_file()
    write.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["floats", source, target]:
            floats(source, target)
        case ["score", text, context, *models]:
            with open(text, encoding="utf-8") as file:
                text = file.read()
            for model in models:
                print(json.dumps(score(model, text, int(context))), flush=True)
        case _:
            sys.exit(__doc__)
