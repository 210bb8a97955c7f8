"""What llama.cpp's own program measures of the demo model: tests/goldens/imatrix/demo.json.

usage: imatrix.py LLAMA_IMATRIX COMMIT      (needs: pip install gguf)

The demo changes when it is trained again, and this file must then be made again. The text is that of the file there is.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf

ROOT = pathlib.Path(__file__).parents[2]
GOLDEN = ROOT / "tests/goldens/imatrix/demo.json"
# The tensor of which every number is kept.
WHOLE = "blk.3.attn_output.weight"


def main() -> None:
    program, commit = sys.argv[1:]
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    context = golden["context"]
    with tempfile.TemporaryDirectory() as folder:
        text, out = pathlib.Path(folder) / "text.txt", pathlib.Path(folder) / "imatrix.gguf"
        text.write_text(golden["text"], encoding="utf-8")
        how = ["-m", ROOT / "assets/demo.gguf", "-f", text, "-o", out, "-c", context, "--chunks", 1]
        subprocess.run([program, *map(str, how)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = {t.name: t.data.astype("float64").flatten() for t in gguf.GGUFReader(out).tensors}
    tensors = {}
    for name in sorted(n.removesuffix(".in_sum2") for n in found if n.endswith(".in_sum2")):
        squares = found[f"{name}.in_sum2"]
        tensors[name] = {"count": float(found[f"{name}.counts"][0]), "sum": float(squares.sum())}
        if name == WHOLE:
            tensors[name]["squares"] = squares.tolist()
    golden |= {"made_by": f"llama-imatrix (llama.cpp {commit}), -c {context} --chunks 1, of assets/demo.gguf", "tensors": tensors}
    GOLDEN.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
