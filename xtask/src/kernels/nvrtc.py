"""Compiles CUDA C++ to PTX by NVRTC: nvrtc.py LIBRARY FOLDER_OF_HEADERS OUTPUT ARCHITECTURE SOURCE..."""

import ctypes
import pathlib
import sys

library, headers, output, architecture, *sources = sys.argv[1:]
nvrtc = ctypes.CDLL(library)
options = [
    f"--gpu-architecture={architecture}",
    f"--include-path={headers}",
    "--std=c++17",
    "--device-as-default-execution-space",
    "--minimal",
    # The order and the rounding of sums is what the source says.
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
]


def text(program, size, get):
    """One of a program's texts: its log, or its PTX."""
    count = ctypes.c_size_t()
    size(program, ctypes.byref(count))
    buffer = ctypes.create_string_buffer(count.value)
    get(program, buffer)
    return buffer.value.decode()


for source in map(pathlib.Path, sources):
    program = ctypes.c_void_p()
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None):
        sys.exit(f"{source}: NVRTC does not start")
    arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = nvrtc.nvrtcCompileProgram(program, len(options), arguments)
    log = text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
    # A warning is an error too.
    if failed or log.strip():
        sys.exit(f"{source}:\n{log}")
    ptx = text(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    (pathlib.Path(output) / f"{source.stem}.ptx").write_text(ptx)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
