# The model: random weights, before the warm-up. Worlds run in the Python that has the packages.
MODEL="$tasks/untrained"
[[ -f "$MODEL/preprocessor_config.json" ]] || .venv/bin/python -m assets.vision.untrained "$MODEL" 0.3 >&2
export ENVIRONMENT_PYTHON="$RECIPE_PYTHON"
