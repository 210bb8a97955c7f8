"""Ids that the `sentencepiece` library gives with T5's vocabulary: tests/goldens/sentencepiece/t5.json.

    pip install sentencepiece protobuf
    python tools/goldens/sentencepiece.py ../shared/data/tokenizer-t5 tests/goldens/sentencepiece

The vocabulary is taken out of `tokenizer.json`, and so are the texts out of the golden beside it.
"""

import base64
import importlib
import json
import sys
from pathlib import Path

# This file's own folder would be found before the library.
sys.path.pop(0)
spm = importlib.import_module("sentencepiece")
proto = importlib.import_module("sentencepiece.sentencepiece_model_pb2")

source, target = Path(sys.argv[1]), Path(sys.argv[2])
file = json.loads((source / "tokenizer.json").read_text())
kinds = {"<unk>": 2, "<pad>": 3, "</s>": 3}
model = proto.ModelProto()
for text, score in file["model"]["vocab"][:32000]:
    model.pieces.add(piece=text, score=score, type=kinds.get(text, 1))
model.trainer_spec.model_type = 1
model.trainer_spec.unk_id, model.trainer_spec.bos_id, model.trainer_spec.eos_id = 2, -1, 1
model.trainer_spec.pad_id = 0
model.normalizer_spec.precompiled_charsmap = base64.b64decode(file["normalizer"]["precompiled_charsmap"])
model.normalizer_spec.add_dummy_prefix = model.normalizer_spec.remove_extra_whitespaces = True
processor = spm.SentencePieceProcessor(model_proto=model.SerializeToString())
texts = [case["text"] for case in json.loads((source / "golden.json").read_text())["cases"]]
# Where a token is written in a text, the library knows none.
cases = [{"text": text, "ids": processor.encode(text)} for text in texts if "<" not in text]
lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
library = f"sentencepiece {spm.__version__}"
(target / "t5.json").write_text(f'{{"library": {json.dumps(library)}, "cases": [\n{lines}\n]}}\n')
