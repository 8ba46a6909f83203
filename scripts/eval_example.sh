#!/usr/bin/env bash
# Evaluate a model on held-out tasks, without training: scripts/eval_example.sh RUN_NAME   (-h explains everything)
#   MODEL=/models/Qwen3-4B EVAL_FILE=math.jsonl,lookups.jsonl EVAL_GENERATIONS=8 scripts/eval_example.sh my_eval
# The first call makes .venv; the same name again continues the run. Pass what you have; the rest is started locally.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ " $* " =~ " "(-h|--help)" " ]] && ! scripts/setup.sh is_done; then cat scripts/tandem/launch/guide.txt; exit 0; fi
scripts/setup.sh
wait_for_python=(); if env --block-signal=INT true 2>/dev/null; then wait_for_python=(env --block-signal=INT); fi
exec "${wait_for_python[@]}" .venv/bin/python -m tandem.launch --method eval --only_evaluate true "$@"  # a Ctrl-C while Python itself starts is held back until it can be answered
