"""Makes `lengths.safetensors` beside a golden case of dynamic NTK: logits of prompts below its trained length, as long as
that, and beyond, by the transformers library.

usage: dynamic.py CASE_DIR        (needs: pip install torch transformers safetensors)

Each prompt is one forward pass, so all of it is rotated by the frequencies of its own length.
"""
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

folder = pathlib.Path(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
trained = model.config.max_position_embeddings
longest = int(trained * model.config.rope_parameters["factor"])
tensors = {}
for name, length in dict(below=trained - 4, trained=trained, beyond=trained + 5, longest=longest).items():
    ids = torch.randint(3, model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(length))
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    tensors[f"{name}.input_ids"], tensors[f"{name}.logits"] = ids[0].contiguous(), logits[0].contiguous()
    print(f"{name}: {length} tokens, std {logits.std():.2f}")
save_file(tensors, folder / "lengths.safetensors")
