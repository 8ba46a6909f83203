"""Seats and API models of an episode, as `tandem show` prints them."""

from shared.documents.actors import Seated, trains
from shared.documents.agent_use import AgentUse


def seat_text(name: str, seated: Seated) -> str:
    who = name if name == seated.actor else f"{name}, taken by {seated.actor}"
    score = "" if seated.score is None else f", score {seated.score:.4g}"
    return f"{who} ({seated.policy}): turns {seated.turns}{score}{'' if trains(seated.policy) else ', never trained'}"


def player_text(use: AgentUse) -> str:
    """The API model that took a turn, and what failed before."""
    failures = "".join(f"; before that {f.model} at {f.service}: {f.error}" for f in use.failures)
    counts = f"{use.prompt_tokens or 0} prompt and {use.completion_tokens or 0} written tokens"
    return f"{use.model} at {use.service}: {counts}, never trained [{use.duration_s:.2f} s]{failures}"
