# The model: random weights, before the warm-up. The tools: a browser, which ends with the run.
MODEL="$tasks/untrained"
[[ -f "$MODEL/preprocessor_config.json" ]] || .venv/bin/python -m assets.vision.untrained "$MODEL" --wide >&2
source assets/vision/start_server.sh
start_server assets.recipes.web.server .venv/bin/python
