#!/usr/bin/env bash
# Train the bundled example with MINIRL on this machine: scripts/minirl_example.sh RUN_NAME   (-h explains everything)
# The first call makes .venv; the same name again continues the run. What is given is used, the rest is started here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ " $* " =~ " "(-h|--help)" " && ! -x .venv/bin/python ]]; then cat scripts/launch/guide.txt; exit 0; fi
scripts/setup.sh
export CONFIG="${CONFIG:-assets/minirl.yml}"
exec .venv/bin/python -m scripts.launch "$@"
