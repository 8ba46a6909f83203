"""What `tandem show` says of seats and of API models."""

from shared.documents.actors import Seated
from shared.documents.agent_use import AgentUse, FailedRequest
from tandem.commands.seats import player_text, seat_text


def test_a_seat_says_who_took_it_and_whether_it_is_ever_trained() -> None:
    assert seat_text("X", Seated(actor="Me", policy="main", turns=2, score=0.5)) == (
        "X, taken by Me (main): turns 2, score 0.5"
    )
    assert (
        seat_text("Rival", Seated(actor="Rival", policy="main@40", turns=1))
        == "Rival (main@40): turns 1, never trained"
    )
    assert seat_text("C", Seated(actor="C", policy="model:api", turns=1)).endswith(", never trained")


def test_an_api_models_turn_says_who_answered_and_who_failed_before() -> None:
    failed = FailedRequest(model="m1", service="http://a/v1", error="status 401")
    use = AgentUse(agent="player api", model="m2", service="http://b/v1", failures=[failed], prompt_tokens=11)
    told = player_text(use)
    assert told.startswith("m2 at http://b/v1: 11 prompt and 0 written tokens, never trained")
    assert told.endswith("; before that m1 at http://a/v1: status 401")
