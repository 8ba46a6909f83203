# The agent is a command, in the Python that has the framework; a sampler loads the framework once.
export TANDEM_SAMPLER_AGENT_COMMAND="$RECIPE_PYTHON $PWD/assets/recipes/agent/agent.py"
export TANDEM_SAMPLER_AGENT_PRELOAD=pydantic_ai,pydantic_ai.models.openai
