"""Checks a task's `metadata` against the sampler's pydantic model.

Promise: an error names its field, with the same message at import and when the task is played.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from shared.user_code.frames import told
from shared.user_code.loading import load_class


def load_payload_model(path: str) -> type[BaseModel]:
    """Load the pydantic model that `package.module:Class` names. Raises ConfigError."""
    return load_class("payload_model", path, BaseModel)


def own_payload_problems(model: type[BaseModel], metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield one text for each error in `metadata`."""
    try:
        model.model_validate(dict(metadata))
    except ValidationError as exc:
        for error in exc.errors(include_url=False):
            where = ".".join(map(str, ("metadata", *error["loc"])))
            if error["type"] == "missing":
                yield f'"{where}" is missing; {model.__name__} expects it'
            else:
                yield f'"{where}" is {shown(error["input"])}; {error["msg"]}'
    except Exception as exc:  # noqa: BLE001  # a validator is the user's code: what it raises is a problem of this metadata
        yield f'"metadata" cannot be checked by {model.__name__}: {told(exc, model)}'


def shown(value: Any) -> str:
    """A wrong value as shortened JSON, for messages."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
