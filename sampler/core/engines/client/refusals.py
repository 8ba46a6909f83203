"""Maps an engine's error response to our errors. SGLang's messages distinguish cases with equal statuses."""

import json
import re

import httpx

from sampler.core.errors import (
    AdapterNotLoaded,
    CacheNotFlushed,
    ContextTooLong,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    KeyRefused,
)
from shared.outside_text import text_of

# 408 and 429 mean "retry later", not "wrong".
LATER = (408, 425, 429)
MAX_MESSAGE_CHARS = 500
_TOO_LONG = ("longer than the model's context length", "exceeds the model's maximum context length")
_CONTEXT = re.compile(r"context length (?:of |\()(\d{1,9}) tokens")
_NOT_FLUSHED = "the cache was not flushed"
_NO_ADAPTER = ("LoRA adapters are not loaded", "LoRA adapter that has never been loaded")
_KEY = (401, 403)


def refusal(where: str, response: httpx.Response) -> EngineError:
    """The error for a response other than 2xx; `where`: the requested address."""
    message = error_text(text_of(response.content))
    status = response.status_code
    if status >= 500 or status in LATER:
        return EngineUnavailable(f"{where}: HTTP {status}: {message}")
    if status in _KEY:
        return KeyRefused(
            f"{where}: HTTP {status}: {message}; expected its key in the variable that engine_api_key_var names"
        )
    if any(phrase in message for phrase in _TOO_LONG):
        context = _CONTEXT.search(message)
        return ContextTooLong(f"{where}: {message}", int(context[1]) if context else None)
    if any(phrase in message for phrase in _NO_ADAPTER):
        return AdapterNotLoaded(f"{where}: {message}")
    if _NOT_FLUSHED in message:
        return CacheNotFlushed(f"{where}: {message}")
    return EngineRefused(f"{where}: HTTP {status}: {message}")


def error_text(body: str) -> str:
    """The message in SGLang's error bodies: four JSON shapes, FastAPI's `detail`, or plain text."""
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError):
        return body.strip()[:MAX_MESSAGE_CHARS] or "no message"
    if isinstance(payload, dict):
        error = payload.get("error")
        if isinstance(error, dict):
            error = error.get("message")
        payload = error or payload.get("message") or payload.get("error_message") or payload.get("detail") or payload
    # Validation errors quote the whole request body after their first lines.
    return str(payload)[:MAX_MESSAGE_CHARS]
