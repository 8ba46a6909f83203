"""Tasks of the recipe: GSM8K, as the recipe `gsm8k` writes it, for a model that has a calculator.

python -m assets.recipes.gsm8k_tools.make FOLDER    in a Python that has `datasets`: writes train.jsonl and eval.jsonl
"""

from assets.recipes.gsm8k.make import main

if __name__ == "__main__":
    main()
