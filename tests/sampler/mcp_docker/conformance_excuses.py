"""Which checks of the MCP conformance suite may fail through the gateway alone, and why."""

from collections.abc import Mapping
from dataclasses import dataclass

REVISIONS = ("2025-06-18", "2025-11-25", "2026-07-28")
MODERN = "modern_"
WAYS = ("process", "url", f"{MODERN}process", f"{MODERN}url")
SUITE_START_S = 5.0  # how long the suite waits for some answers to `initialize`
Check = tuple[str, str]  # scenario, and the check's id


@dataclass(frozen=True)
class Excuse:
    """`always`: the check fails or vanishes every time; else it depends on how fast the machine is."""

    why: str
    always: bool = True


def _of(scenario: str, why: str, *checks: str, always: bool = True) -> dict[Check, Excuse]:
    return {(scenario, check): Excuse(why, always) for check in checks}


_STATELESS = "server-stateless"
_UNKNOWN_TOOL = _of(
    _STATELESS,
    "a call of an unknown tool is a JSON-RPC error here, as the schema says, which the suite takes for a missing tool of its own",
    "sep-2575-http-server-no-independent-requests-on-stream",
    "sep-2575-server-no-log-without-loglevel",
)
_LATE_STREAM = _of(
    _STATELESS,
    "the suite waits 0.8 s for a listening stream, and the session's process starts with it",
    "sep-2575-server-honors-notification-filter",
    "sep-2575-server-sends-prompts-list-changed-on-subscription",
    "sep-2575-server-sends-subscription-ack",
    "sep-2575-server-sends-tools-list-changed-on-subscription",
    "sep-2575-server-tags-subscription-id",
    always=False,
)
_NOT_RESUMED = _of(
    "server-sse-polling",
    "event streams are not resumed: a broken connection cancels its request",
    "server-sse-disconnect-resume",
    "server-sse-priming-event",
    "server-sse-retry-field",
) | _of(
    "server-sse-multiple-streams",
    "an answer that comes at once is JSON here, so there is no event stream to check",
    "server-sse-streams-functional",
)
_NO_WORDS = "the gateway has the handshake with this server, which has no words for a result that asks for input"
_INPUT_CHECKS = {  # of the scenarios `input-required-result-…`: those that need such a result
    "basic-elicitation": ("elicitation-complete", "elicitation-incomplete"),
    "basic-list-roots": ("list-roots-complete", "list-roots-incomplete"),
    "basic-sampling": ("sampling-complete", "sampling-incomplete"),
    "capability-check": ("respect-client-capabilities",),
    "missing-input-response": ("missing-response-rerequests",),
    "multi-round": ("multi-round-r1", "multi-round-r2", "multi-round-r3"),
    "multiple-input-requests": ("multiple-inputs-complete", "multiple-inputs-incomplete"),
    "non-tool-request": ("non-tool-complete", "non-tool-incomplete"),
    "request-state": ("request-state-complete", "request-state-incomplete"),
    "result-type": ("result-type-included",),
    "tampered-state": ("reject-tampered-state",),
}
_INPUT = {
    check: excuse
    for scenario, checks in _INPUT_CHECKS.items()
    for check, excuse in _of(
        f"input-required-result-{scenario}", _NO_WORDS, *(f"sep-2322-{check}" for check in checks)
    ).items()
}
_NO_CHANGES = _of(
    _STATELESS,
    "with the handshake this server announces no changes of its lists",
    "sep-2575-server-sends-prompts-list-changed-on-subscription",
    "sep-2575-server-sends-tools-list-changed-on-subscription",
)
_MIDDLE, _NEWEST = REVISIONS[1:]
EXCUSES: dict[tuple[str, str], dict[Check, Excuse]] = {  # by way and revision
    ("process", _MIDDLE): _NOT_RESUMED,
    ("url", _MIDDLE): _NOT_RESUMED,
    ("process", _NEWEST): _UNKNOWN_TOOL | _LATE_STREAM | _INPUT | _NO_CHANGES,
    ("url", _NEWEST): _UNKNOWN_TOOL | _INPUT | _NO_CHANGES,
    (f"{MODERN}process", _NEWEST): _UNKNOWN_TOOL | _LATE_STREAM,
    (f"{MODERN}url", _NEWEST): _UNKNOWN_TOOL,
}
_SLOW_START = (
    f"the suite waits {SUITE_START_S:g} s for `initialize`, and a new server takes longer to start on this machine"
)


def excuses(way: str, revision: str, is_slow: bool = False) -> dict[Check, Excuse]:
    """`is_slow`: new servers take longer than SUITE_START_S."""
    slow = _of("server-initialize", _SLOW_START, "server-initialize", always=False) if is_slow else {}
    return EXCUSES.get((way, revision), {}) | slow


def differences(
    direct: Mapping[Check, bool], through: Mapping[Check, bool], known: Mapping[Check, Excuse]
) -> list[tuple[Check, str]]:
    """What nothing explains: checks that fail or vanish through the gateway alone, and excuses for what passes."""
    found = []
    for check, passed in sorted(direct.items()):
        is_lost = passed and not through.get(check, False)
        if is_lost and check not in known:
            found.append((check, "fails" if check in through else "vanishes"))
        elif not is_lost and check in known and known[check].always:
            found.append((check, f"passes, or fails without the gateway too, but is excused: {known[check].why}"))
    run = {scenario for scenario, _ in direct}
    found += [
        (check, "is excused, and no longer a check") for check in known if check not in direct and check[0] in run
    ]
    found += [
        (check, "fails, and is not checked without the gateway")
        for check, passed in sorted(through.items())
        if not passed and check not in direct
    ]
    return found
