"""Writes the tables that codes of GGUF's IQ formats number: which magnitudes go together.

They are facts of the file format. They are read from the package `gguf` (MIT), the reference's own for Python, which holds
them in its definitions of these formats:

    pip install gguf==0.19.0
    python tools/grids/make.py assets/grids

One file a grid; an entry is two bytes, low byte first: of each weight the number of its magnitude, two bits (three for
IQ3), the first weight's lowest.
"""

import sys
from pathlib import Path

from gguf import quants

GRIDS = ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]


def entries(grid):
    grid.init_grid()
    bits = 3 if len(grid.grid_map) == 8 else 2
    for row in grid.grid.reshape(grid.grid_shape):
        numbers = [grid.grid_map.index(int(value)) for value in row]
        yield sum(number << (bits * i) for i, number in enumerate(numbers))


def main(folder):
    for name in GRIDS:
        table = b"".join(entry.to_bytes(2, "little") for entry in entries(getattr(quants, name)))
        (Path(folder) / f"{name.lower()}.bin").write_bytes(table)


main(sys.argv[1])
