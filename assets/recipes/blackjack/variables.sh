# Worlds run in the Python that has the package.
export ENVIRONMENT_PYTHON="$RECIPE_PYTHON"
