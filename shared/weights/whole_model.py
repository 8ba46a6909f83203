"""Whether a model is whole: each of its tensors comes from its files, and its head is what its configuration says. Torch-free.

transformers fills a missing tensor with random numbers, others in every process, and loads a head of its own although
`tie_word_embeddings` is true, which an engine does not.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from shared.errors import ConfigError, DataError
from shared.weights.tensor_file import FileTensor, tensors_of

EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
HEADS = ("lm_head.weight", "embed_out.weight", "output.weight")
SHOWN = 4  # names in a message
CHUNK_BYTES = 1 << 24


def check_loaded(folder: Path, loading: Mapping[str, Any]) -> None:
    """`loading`: transformers' loading info (`missing_keys`, `mismatched_keys`). Raises ConfigError for a model with tensors that
    come from no file, or with another shape than its configuration says.
    """
    missing = sorted(loading.get("missing_keys", ()))
    if missing:
        raise ConfigError(
            f"{folder}: {len(missing)} tensors of the model are in none of its files: {some(missing)}; expected every tensor: "
            "copy the folder again, or set tie_word_embeddings true in config.json if the missing one is the head of a tied model"
        )
    differing = sorted(loading.get("mismatched_keys", ()))
    if differing:
        name, actual, expected = differing[0]
        raise ConfigError(
            f"{folder}: {len(differing)} tensors have another shape than config.json says, such as {name}: {tuple(actual)}; "
            f"expected {tuple(expected)}: the config.json that belongs to these weights"
        )


def check_tied(folder: Path, files: Collection[Path]) -> None:
    """Raises ConfigError for a head of its own in `files` of a model whose config.json ties the head to the embedding."""
    head = own_head(folder, files)
    if head is not None:
        raise ConfigError(
            f"{folder}: tie_word_embeddings is true, but {head} differs from the embedding, so trainer and engine would compute "
            "with different heads; expected false in config.json if the head is the model's own, or files without it"
        )


def own_head(folder: Path, files: Collection[Path]) -> str | None:
    """The name of a head that is not the embedding, of a model that ties the two; None: there is none."""
    if not is_tied(folder):
        return None
    by_name = {tensor.name: (file, tensor) for file in files for tensor in tensors_of(file)}
    head = next((name for name in by_name if name.endswith(HEADS)), None)
    embedding = next((name for name in by_name if name.endswith(EMBEDDINGS)), None)
    if head is None or embedding is None or _equal(by_name[head], by_name[embedding]):
        return None
    return head


def is_tied(folder: Path) -> bool:
    """Whether config.json says so. Raises DataError for a file that is no JSON object."""
    file = folder / "config.json"
    try:
        config = json.loads(file.read_bytes()) if file.is_file() else {}
        text: Any = config.get("text_config")
    except (ValueError, AttributeError) as exc:
        raise DataError(f"{file} is not a JSON object: {exc}") from exc
    inner = text.get("tie_word_embeddings") if isinstance(text, dict) else None
    return bool(config.get("tie_word_embeddings", inner))


def some(names: Collection[str]) -> str:
    """The first names, for a message."""
    return ", ".join(list(names)[:SHOWN]) + (", …" if len(names) > SHOWN else "")


def _equal(one: tuple[Path, FileTensor], other: tuple[Path, FileTensor]) -> bool:
    """By their bytes."""
    (file, tensor), (other_file, other_tensor) = one, other
    if (tensor.dtype, tensor.shape) != (other_tensor.dtype, other_tensor.shape):
        return False
    with file.open("rb") as first, other_file.open("rb") as right:
        first.seek(tensor.start)
        right.seek(other_tensor.start)
        remaining = tensor.end - tensor.start
        while remaining:
            size = min(CHUNK_BYTES, remaining)
            if first.read(size) != right.read(size):
                return False
            remaining -= size
    return True
