#!/usr/bin/env bash
# Recreate the bundled model assets/example/model from random weights by SFT (about 10 minutes on one core).
#
#   scripts/train_example_model.sh [OUT]      OUT: folder of the finished model (default output/example_model/final)
#
# Random weights and tokenizer ─▶ 40,000 noisy demonstrations ─▶ 1,200 steps of 32 ─▶ a model that knows the format of an
# episode and solves about a third of the tasks. To ship it, copy the result to assets/example/model.
set -euo pipefail
[[ "${1:-}" =~ ^(-h|--help)$ ]] && { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh run
python=.venv/bin/python
work=output/example_model
$python scripts/make_example.py --sft 40000 --out "$work/demonstrations.jsonl"
$python scripts/make_example_model.py --out "$work/init"
OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" $python -m trainer.sft \
  --model_name_or_path "$work/init" --train_file "$work/demonstrations.jsonl" --output_dir "$work" \
  --max_steps 1200 --samples_per_step 32 --learning_rate 2e-3 --lr_schedule cosine --warmup_steps 50 \
  --adam_beta2 0.98 --weight_decay 0.01 --tokens_per_row 1024 --save_steps 200
if [[ -n "${1:-}" ]]; then cp -r "$work/final" "$1"; fi
echo "the model is in ${1:-$work/final}"
