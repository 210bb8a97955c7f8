#!/usr/bin/env bash
# digest.sh TALLOW GOLDENS: one digest over the logits and hidden states that a program computes of every golden model,
# from folders, GGUF files and quantized weights, with each instruction set of this CPU. A change that must change
# nothing gives the same digest before and after.
set -euo pipefail
tallow=$1 goldens=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
isas=$("$tallow" doctor 2>/dev/null | sed -n 's/^cpu .*instructions: //p' | tr -d ,)
[ "$isas" ] || { echo "$tallow doctor names no instruction sets" >&2; exit 1; }

# dump NAME MODEL INPUTS: a line with the digest of all that comes out.
dump() {
  for isa in $isas; do
    if "$tallow" dump "$2" --in "$3" --out "$work/out" --force --device cpu --isa "$isa" >"$work/said" 2>&1; then
      echo "$1 $isa $(sha256sum <"$work/out" | cut -c 1-16)"
    else
      echo "$1 $isa refused"
      cat "$work/said" >&2
    fi
  done
}

for folder in "$goldens"/*/ "$goldens"/quant/*/; do
  name=$(basename "$folder")
  if [ -f "$folder/golden.safetensors" ]; then
    dump "$name" "$folder" "$folder/golden.safetensors"
    for gguf in "$goldens/gguf-models/$name"-*.gguf; do
      [ ! -f "$gguf" ] || dump "$(basename "$gguf")" "$gguf" "$folder/golden.safetensors"
    done
  fi
done >"$work/lines"
for gguf in "$goldens"/gguf-mix/*.gguf; do
  dump "$(basename "$gguf")" "$gguf" "${gguf%.gguf}.golden.safetensors"
done >>"$work/lines"
cat "$work/lines"
echo "$(grep -vc refused "$work/lines") dumps, $(grep -c refused "$work/lines") refused: $(sha256sum <"$work/lines")"
