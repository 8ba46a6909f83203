"""Tasks of the recipe: GSM8K, the school problems of OpenAI (MIT), from the Hub.

python -m assets.recipes.gsm8k.make FOLDER          in a Python that has `datasets`: writes train (7,473) and eval.jsonl (1,319)
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from assets.jsonl import write

SPLITS = {"train": "train", "eval": "test"}  # {ours: theirs}
MARK = "####"  # before the answer, on the last line of a solution


def main() -> None:
    from datasets import load_dataset

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for split, theirs in SPLITS.items():
        write(folder / f"{split}.jsonl", tasks(split, load_dataset("openai/gsm8k", "main", split=theirs)))


def tasks(split: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """ValueError for a solution without an answer."""
    for number, row in enumerate(rows):
        _, mark, answer = row["answer"].rpartition(MARK)
        if not mark:
            raise ValueError(f"row {number} of {split}: the solution has no {MARK}")
        figure = answer.strip().replace(",", "")
        yield {
            "id": f"{split}-{number}",
            "query": row["question"],
            "answer": figure,
            "scorer": "math",
            "source": "gsm8k",
        }


if __name__ == "__main__":
    main()
