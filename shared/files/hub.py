"""Models and data sets by their names on the Hugging Face Hub: taken from its cache, or downloaded into it.

`HF_HOME`, `HF_TOKEN` and `HF_HUB_OFFLINE` mean what they mean to every program that uses the Hub.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from shared.errors import DataError

MODEL_NAME = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?")
TOKENIZER_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")
WEIGHT_FILES = ("*.safetensors",)


def model_folder(path: Path) -> Path:
    """The folder of `OWNER/MODEL` or `OWNER/MODEL@REVISION`; any other path, and one that exists, as it is.

    Raises ValueError where neither cache nor Hub has it.
    """
    return _snapshot(path, (*TOKENIZER_FILES, *WEIGHT_FILES))


def tokenizer_folder(path: Path) -> Path:
    """The same without the weights."""
    return _snapshot(path, TOKENIZER_FILES)


ModelFolder = Annotated[Path, AfterValidator(model_folder)]
TokenizerFolder = Annotated[Path, AfterValidator(tokenizer_folder)]


def dataset_file(name: str) -> Path:
    """The file `OWNER/DATASET/PATH/FILE` of a data set. Raises DataError."""
    parts = name.split("/")
    if len(parts) < 3 or not all(parts):
        raise DataError(f"hub:{name}: expected hub:OWNER/DATASET/PATH/FILE.parquet")

    def fetch() -> str:
        from huggingface_hub import hf_hub_download

        return str(hf_hub_download("/".join(parts[:2]), "/".join(parts[2:]), repo_type="dataset"))

    return _fetched(f"hub:{name}", fetch)


def _snapshot(path: Path, files: tuple[str, ...]) -> Path:
    name = MODEL_NAME.fullmatch(str(path))
    if name is None or path.exists():
        return path

    def fetch() -> str:
        from huggingface_hub import snapshot_download

        return str(snapshot_download(name["repository"], revision=name["revision"], allow_patterns=list(files)))

    try:
        return _fetched("no such folder here, and the Hugging Face Hub does not give it", fetch)
    except DataError as exc:
        raise ValueError(str(exc)) from exc  # a validator's error, which names the setting


def _fetched(what: str, fetch: Callable[[], str]) -> Path:
    try:
        return Path(fetch())
    except Exception as exc:  # the Hub's client raises OSError, ValueError, httpx2's and its own errors: no common base
        raise DataError(f"{what}: {type(exc).__name__}: {next(iter(str(exc).splitlines()), '')}") from exc
