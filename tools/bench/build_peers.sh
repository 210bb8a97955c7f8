#!/usr/bin/env bash
# Builds llama.cpp and ik_llama.cpp for this very machine, and says how to measure Tallow against them:
#
#     tools/bench/build_peers.sh DIR
#
# It needs a C++ compiler (CC and CXX name another than clang or cc), Python 3.9 with venv, and git. llama.cpp's sources come from
# PyPI, in the source package of llama-cpp-python; ik_llama.cpp's from GitHub, or from the checkout that IK_LLAMA names.
set -euo pipefail

LLAMA_CPP_PYTHON=0.3.36
IK_COMMIT=8337e4cd3

[ $# -eq 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
if [ -z "${CXX:-}" ] && command -v clang++ >/dev/null; then
    export CC=clang CXX=clang++
fi

python3 -m venv "$dir/venv"
# The last two describe the package to pip, which asks even if it only downloads.
"$dir/venv/bin/pip" install --quiet cmake ninja scikit-build-core pathspec
export PATH="$dir/venv/bin:$PATH"

package=llama_cpp_python-$LLAMA_CPP_PYTHON
if [ ! -d "$dir/$package" ]; then
    pip download --quiet --no-deps --no-build-isolation --no-binary llama-cpp-python --dest "$dir" \
        "llama-cpp-python==$LLAMA_CPP_PYTHON"
    tar -xzf "$dir/$package.tar.gz" -C "$dir"
fi
ik=${IK_LLAMA:-$dir/ik_llama.cpp}
if [ ! -d "$ik" ]; then
    git clone --quiet https://github.com/ikawrakow/ik_llama.cpp "$ik"
    git -C "$ik" checkout --quiet "$IK_COMMIT"
fi

build() { # sources, name, options
    cmake -S "$1" -B "$dir/$2" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_UI=OFF "${@:3}" >"$dir/$2.log"
    cmake --build "$dir/$2" --target llama-bench llama-batched-bench llama-server llama-quantize
}
commit=$(sed -n 's/.*llama\.cpp@\([0-9a-f]*\).*/\1/p' "$dir/$package/CHANGELOG.md" | head -1)
build "$dir/$package/vendor/llama.cpp" llama.cpp-build -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
    -DLLAMA_BUILD_NUMBER=1 -DLLAMA_BUILD_COMMIT="${commit:-unknown}"
# Flash attention for all pairs of cache types takes half an hour to compile; the measurements use one.
build "$ik" ik_llama.cpp-build -DGGML_IQK_FA_ALL_QUANTS=OFF

echo
echo "Now, with a folder of models (bench_peers.py --help):"
echo "python3 tools/bench/bench_peers.py --llama $dir/llama.cpp-build/bin --ik-llama $dir/ik_llama.cpp-build/bin --models MODELS"
