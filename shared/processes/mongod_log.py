"""What a MongoDB server died of, by its log (a JSON object a line)."""

import json

from shared.outside_text import clipped

MAX_CHARS = 400
FATAL = ("F", "E")  # severities in MongoDB's log
FULL = "no space left on device"


def database_error(log: str) -> str:
    """The first full disk in its log, else its last fatal message, else its last error; empty without one."""
    errors = [(severity, text) for severity, text in map(_severe, log.splitlines()) if severity]
    errors = [
        (severity, text) for severity, text in errors if not text.strip().startswith("***")
    ]  # "aborting", of any cause
    full = [text for _, text in errors if FULL in text.lower()]
    last = [text for severity in FATAL for text in [t for s, t in errors if s == severity][-1:]]
    text = next(iter([*full, *last]), "")
    return clipped(" ".join(text.split()), MAX_CHARS)


def _severe(line: str) -> tuple[str, str]:
    """(severity, message with the error in it) of a line of a MongoDB server's log; nothing of one that is no error."""
    try:
        entry = json.loads(line)
    except ValueError:
        return "", ""
    if not isinstance(entry, dict) or entry.get("s") not in FATAL:
        return "", ""
    attributes = entry.get("attr")
    error = _error_in(attributes) if isinstance(attributes, dict) else ""
    return str(entry["s"]), f"{entry.get('msg')}{f' ({error})' if error else ''}"


def _error_in(attributes: dict[str, object]) -> str:
    message, error = attributes.get("message"), attributes.get("error")
    if isinstance(message, dict):  # of the storage engine
        return f"{message.get('msg')}: {message.get('error_str')}"
    if isinstance(error, dict):  # of the network
        return str(error.get("errmsg") or error)
    return str(message or error or attributes.get("reason") or "")
