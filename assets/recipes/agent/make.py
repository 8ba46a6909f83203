"""Tasks of the recipe: those of the recipe `calculator`, for an agent that brings its own calculator.

python -m assets.recipes.agent.make FOLDER          writes train.jsonl, eval.jsonl and warmup.jsonl
"""

from assets.recipes.calculator.make import main

if __name__ == "__main__":
    main()
