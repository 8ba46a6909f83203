# The model: random weights that a first training has taught where green is, before the warm-up. The tools: a browser, which ends with the run.
MODEL="$tasks/untrained"
[[ -f "$MODEL/preprocessor_config.json" ]] || .venv/bin/python -m assets.vision.untrained "$MODEL" --wide >&2
looks="$tasks/looks_$(cat "$folder/looks.yml" "$tasks/looks.jsonl" | sha256sum | cut -c1-12)"
if [[ ! -d "$looks/final" ]]; then
  say "before the warm-up: where green is"
  rm -rf "$tasks"/looks_*
  .venv/bin/python -m trainer.sft --config "$folder/looks.yml" --model_name_or_path "$MODEL" \
    --train_file "$tasks/looks.jsonl" --output_dir "$looks" || die "it did not learn where green is"
fi
MODEL="$looks/final"
source assets/vision/start_server.sh
start_server assets.recipes.web.server .venv/bin/python
