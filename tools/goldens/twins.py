"""Makes GGUF twins of golden cases by llama.cpp's own converter: the same weights, without a vocabulary.

usage: twins.py LLAMA_CPP OUT_DIR CASE_DIR...  (needs what make.py needs, and llama.cpp's sources at LLAMA_CPP)

Each is written to OUT_DIR/CASE-bf16.gguf, where `gguf_twins` of the tests looks for it.
"""
import pathlib
import sys

sys.path[1:1] = [sys.argv[1], sys.argv[1] + "/gguf-py"]

import gguf
import torch
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class


def twin(case: pathlib.Path, out: pathlib.Path) -> None:
    settings = ModelBase.load_hparams(case, False)
    kind = get_model_class(get_model_architecture(settings, ModelType.TEXT))
    kind.set_vocab = kind._set_vocab_none
    kind(case, gguf.LlamaFileType.MOSTLY_BF16, out / f"{case.name}-bf16.gguf").write()


if __name__ == "__main__":
    with torch.inference_mode():
        for case in sys.argv[3:]:
            twin(pathlib.Path(case), pathlib.Path(sys.argv[2]))
