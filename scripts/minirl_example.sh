#!/usr/bin/env bash
# Train with MINIRL, the bundled example or your own model and tasks: scripts/minirl_example.sh RUN_NAME   (-h explains everything)
# The first call makes .venv; the same name again continues the run. Pass what you have; the rest is started locally.
# `real` as the name trains a real pretrained model that calls a real tool: the recipe `calculator` (scripts/recipe.sh).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ "${1:-}" == real && -z "${RECIPE:-}" ]]; then shift; RUN_NAME=real exec scripts/recipe.sh calculator "$@"; fi
if [[ " $* " =~ " "(-h|--help)" " ]] && ! scripts/setup.sh is_done; then cat scripts/tandem/launch/guide.txt; exit 0; fi
scripts/setup.sh
wait_for_python=(); if env --block-signal=INT true 2>/dev/null; then wait_for_python=(env --block-signal=INT); fi
exec "${wait_for_python[@]}" .venv/bin/python -m tandem.launch --method minirl "$@"  # a Ctrl-C while Python itself starts is held back until it can be answered
