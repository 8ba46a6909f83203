"""Tells the model the form that a request demands of its answer, as vendors' models are told: in the system message.

    response_format, text.format, output_config.format, responseJsonSchema  ─▶  OutputFormat  ─▶  a text of `with_instruction`

The schema is in the prompt of every reply to such a request, so the policy learns what the form is. `constrain` also has the
engine sample under the schema's grammar (SGLang's `json_schema`): then the stored log-probs are those of the allowed tokens
alone.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from sampler.core.rendering.instructions import with_instruction
from sampler.core.rendering.template import ChatTemplate
from sampler.gateway.exchange import ChatRequest, GatewayError, OutputFormat, Problem

FormatRule = Literal["prompt", "constrain", "refuse"]
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_ALONE = "and nothing else: no explanation, no code fence."


def with_format(request: ChatRequest, rule: FormatRule, template: ChatTemplate) -> ChatRequest:
    """The request with the form of its answer among its instructions. Raises GatewayError."""
    demanded = request.output_format
    if demanded is None:
        return request
    if rule == "refuse":
        raise GatewayError(
            Problem.INVALID,
            f"{demanded.path}: refused; leave it out, or set agent_output_format to put it into the prompt",
        )
    instructed = with_instruction(request.messages, instruction_of(demanded), template)
    return replace(request, messages=[dict(message) for message in instructed])


def instruction_of(demanded: OutputFormat) -> str:
    if demanded.schema is None:
        return f"Answer with one JSON object, {_ALONE}"
    schema = json.dumps(demanded.schema, ensure_ascii=False)
    named = f' The schema is called "{demanded.name}".' if demanded.name else ""
    described = f" {demanded.description}" if demanded.description else ""
    return f"Answer with one JSON value that is valid under this JSON schema, {_ALONE}{named}{described}\n{schema}"


def grammar_of(request: ChatRequest, rule: FormatRule) -> dict[str, str]:
    """Parameters of the engine."""
    if request.output_format is None or rule != "constrain":
        return {}
    schema = ANY_OBJECT if request.output_format.schema is None else request.output_format.schema
    return {"json_schema": json.dumps(schema, ensure_ascii=False)}
