"""The scorer `json_schema`: whether the answer is JSON that satisfies the task's schema."""

import json
import re
from typing import Any, NoReturn

from sampler.core.errors import UnusableTask
from sampler.core.scorers.details import LONGEST_REASON
from sampler.core.scorers.registry import Score, ScoringRequest, register_scorer
from shared.outside_text import clipped
from shared.tasks.scorer_names import SCHEMA_KEY

_FENCE = re.compile(r"\A```\w*\s*\n(.*)\n\s*```\Z", re.DOTALL)


@register_scorer("json_schema")
async def json_schema(request: ScoringRequest) -> Score:
    """1 if the answer, without a surrounding code fence, is JSON that satisfies `metadata.json_schema`; else 0, with the
    reason.

    Drafts 3 to 2020-12, by `$schema`; default: the newest. A missing or invalid schema is the task's mistake: UnusableTask.
    """
    from referencing.exceptions import Unresolvable

    validator = _validator(request)
    sought = {"expected": f"JSON that satisfies metadata.{SCHEMA_KEY}"}
    try:
        value = json.loads(_bare(request.answer or ""), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        return Score(0.0, sought | {"reason": clipped(f"not JSON: {exc}", LONGEST_REASON)})
    try:
        error = next(validator.iter_errors(value), None)
    except Unresolvable as exc:
        raise UnusableTask(f"json_schema: metadata.{SCHEMA_KEY} names a schema that is not in it: {exc}") from exc
    except RecursionError:
        return Score(0.0, sought | {"reason": "nested too deeply"})
    if error is None:
        return Score(1.0, sought | {"reason": "satisfies the schema"})
    return Score(0.0, sought | {"reason": clipped(f"{error.json_path}: {error.message}", LONGEST_REASON)})


def _validator(request: ScoringRequest) -> Any:
    import jsonschema  # takes 0.25 s; only tasks with this scorer pay it
    import referencing

    schema = (request.payload.get("metadata") or {}).get(SCHEMA_KEY)
    if not isinstance(schema, dict):
        raise UnusableTask(f"json_schema: the task has no schema; expected an object in metadata.{SCHEMA_KEY}")
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as exc:
        raise UnusableTask(
            f"json_schema: metadata.{SCHEMA_KEY} is not a schema: {exc.json_path}: {exc.message}"
        ) from exc
    return kind(schema, registry=referencing.Registry())  # a separate registry: nothing is fetched from the network


def _bare(answer: str) -> str:
    text = answer.strip()
    match = _FENCE.match(text)
    return match[1] if match else text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
