"""What a world draws, as text for the model."""

import io

from sampler.environments.adapters.observed import drawing


def test_colors_of_a_drawing_become_brackets_of_their_own_and_no_escape_is_left() -> None:
    """As Taxi draws: the taxi on the place where its passenger waits, and beside the destination."""
    taxi = "|\x1b[43m\x1b[34;1mR\x1b[0m\x1b[0m:\x1b[42m_\x1b[0m:\x1b[35mG\x1b[0m| \x1b[41mS\x1b[0m\n\n"
    assert drawing(taxi) == "|[(R)]:{_}:<G>| [S]"
    assert drawing(["a", "\x1b[31mb\x1b[0m", None]).split("\n") == ["a", "red[b]", ""]
    assert drawing(io.StringIO("c\n")) == "c"
    assert drawing(None) == ""
    assert drawing("\x1b[34mnever closed") == "(never closed)"
