"""Blocks of formats that `tests/goldens/gguf-blocks` does not have, by llama.cpp's own functions.

    pip install numpy safetensors xllamacpp
    python tools/goldens/blocks.py tests/goldens/gguf-blocks-more

For each format: numbers, the blocks that llama.cpp makes of them, and the numbers that it makes of those
(`NAME.quant.src/.raw/.f32`); and numbers of random bytes (`NAME.fuzz.raw/.f32`).
"""

import ctypes
import json
import sys
from pathlib import Path

import numpy as np
import xllamacpp.xllamacpp as peer
from safetensors.numpy import save_file

SEED = 1
BLOCKS = 12
# Name, type in GGUF files, weights and bytes of a block.
FORMATS = [("Q1_0", 41, 128, 18), ("Q2_0", 42, 64, 18)]

lib = ctypes.CDLL(peer.__file__)


def unpack(name, raw, weights):
    out = np.zeros(weights, np.float32)
    call = getattr(lib, f"dequantize_row_{name.lower()}")
    call(raw.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(weights))
    return out


def pack(name, src, size):
    raw = np.zeros(size, np.uint8)
    call = getattr(lib, f"quantize_{name.lower()}")
    call.restype = ctypes.c_size_t
    count = call(
        src.ctypes.data_as(ctypes.c_void_p), raw.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_int64(1), ctypes.c_int64(len(src)), None,
    )
    assert count == size, (name, count, size)
    return raw


def main(out):
    rng = np.random.default_rng(SEED)
    tensors, types = {}, {}
    for name, number, block, size in FORMATS:
        src = rng.standard_normal(BLOCKS * block).astype(np.float32)
        src[block:2 * block] *= 1e-3
        src[2 * block:3 * block] = 0.0
        src[3 * block:4 * block] = np.sign(src[3 * block:4 * block]) * np.float32(0.25)
        raw = pack(name, src, BLOCKS * size)
        back = unpack(name, raw, len(src))
        fuzz = rng.integers(0, 256, (BLOCKS, size), np.uint8)
        # A scale that is no number has no answer.
        fuzz[:, 1] &= 0xBB
        fuzz = fuzz.reshape(-1)
        tensors |= {
            f"{name}.quant.src": src, f"{name}.quant.raw": raw, f"{name}.quant.f32": back,
            f"{name}.fuzz.raw": fuzz, f"{name}.fuzz.f32": unpack(name, fuzz, len(src)),
        }
        error = float(np.sqrt(np.sum((back - src) ** 2, dtype=np.float64) / np.sum(src**2, dtype=np.float64)))
        types[name] = {"ggml_type": number, "block": block, "bytes": size, "rms_relative_error": error}
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "blocks.safetensors")
    version = peer.__dict__.get("__version__") or __import__("xllamacpp").__version__
    about = {"seed": SEED, "versions": {"xllamacpp": version}, "types": types}
    (out / "blocks.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
