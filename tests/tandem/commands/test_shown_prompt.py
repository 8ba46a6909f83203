"""What `tandem show` says of a prompt is read off the stored ids: its text, and which tools it names."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from shared.documents import Record
from shared.documents.tool_schemas import ToolSchemas
from shared.episodes.images import EpisodeImages
from shared.episodes.state import EpisodeState
from tandem.commands.shown_prompt import Prompts
from tests.shared.episodes import CALCULATOR, make_dispatch

MODEL = Path(__file__).parents[3] / "assets" / "example" / "model"
TOKENIZER = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
OTHER = {"type": "function", "function": {"name": "other", "parameters": {"properties": {"key": {}}}}}
SCHEMAS = ToolSchemas.of([CALCULATOR, OTHER])
RECORD = "main:train:0:t0:0:1"


def prompts(text: str, *, spelled: bool = True) -> Prompts:
    """Of an episode of two turns: the prompt `text`, and what a result adds."""
    first = TOKENIZER.encode(text, add_special_tokens=False).ids
    added = TOKENIZER.encode("<|im_end|>\n[4]", add_special_tokens=False).ids
    turns = [
        make_dispatch(RECORD, 0, shared=0, parent=None, prompt=first, output=[5, 6]),
        make_dispatch(RECORD, 1, shared=len(first) + 2, parent=0, prompt=added, output=[7]),
    ]
    record = Record(
        id=RECORD,
        task="main:train:0:t0",
        traj_id=0,
        attempt=1,
        tid="t0",
        split="train",
        source="",
        policy="main",
        worker="w",
    )
    spell = {"main": lambda ids: TOKENIZER.decode(list(ids), skip_special_tokens=False)} if spelled else {}
    return Prompts(EpisodeState(record, turns), spell)


def test_a_turns_prompt_is_shown_with_special_tokens_without_what_it_shares() -> None:
    shown = prompts("<|im_start|>system\nYou are it.<|im_end|>")
    first, second = shown._state.turns
    assert shown.added(first, EpisodeImages()) == "<|im_start|>system\nYou are it.<|im_end|>"
    assert shown.added(second, EpisodeImages()) == "<|im_end|>\n[4]"


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        ("no tools", ["calculator", "other"]),
        (json.dumps(CALCULATOR), ["other"]),
        ("any other", ["calculator", "other"]),
        (json.dumps([CALCULATOR, OTHER]), []),
    ],
)
def test_a_tool_is_shown_only_where_the_prompt_has_it(text: str, unread: list[str]) -> None:
    shown = prompts(text)
    read = shown.tools(shown._state.turns[0], SCHEMAS)
    assert (read.unread, read.is_checked) == (unread, True)
    assert len(read.shown) == 2 - len(unread)


def test_without_a_tokenizer_nothing_is_claimed() -> None:
    shown = prompts("no tools", spelled=False)
    assert shown.added(shown._state.turns[0], EpisodeImages()) == ""
    read = shown.tools(shown._state.turns[0], SCHEMAS)
    assert (read.shown, read.unread, read.is_checked) == (SCHEMAS.tools, [], False)
