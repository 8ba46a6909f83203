"""Tasks of the recipe: questions about files and changes of them, for a model that has a shell.

python -m assets.recipes.shell.make FOLDER          writes train.jsonl and eval.jsonl

The bundled environment makes each task from its seed. The held-out ones are of kinds that do not occur in training.
"""

import sys
from pathlib import Path

from assets.jsonl import write

COUNTS = {"train": 2000, "eval": 100}


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in COUNTS.items():
        write(folder / f"{split}.jsonl", [task(split, seed) for seed in range(count)])


def task(split: str, seed: int) -> dict[str, object]:
    metadata = {"environment": f"{split}_shell", "index": seed}
    name = f"{split}-{seed}"
    return {"id": name, "query": name, "source": "shell", "sampler": "environment", "metadata": metadata}


if __name__ == "__main__":
    main()
