"""What the model read, from the stored ids: a turn's prompt as text, and which tools it names."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.documents.tool_schemas import ToolSchemas
from shared.episodes.images import EpisodeImages, placed
from shared.episodes.state import EpisodeState, TurnState
from shared.store import Store
from tandem.what_if.sampled import Spell, speller


@dataclass(frozen=True, slots=True)
class ReadTools:
    """Lines of schemas: `shown` are in the prompt, the names `unread` are not. `is_checked`: whether the prompt could be read."""

    shown: list[str]
    unread: list[str]
    is_checked: bool


class Prompts:
    """The prompts of an episode. Without the model's tokenizer on this machine their text is empty."""

    def __init__(self, state: EpisodeState, spell: Mapping[str, Spell]) -> None:
        self._state = state
        self._spell = spell

    @classmethod
    async def of(cls, store: Store, state: EpisodeState) -> "Prompts":
        policies = {turn.policy for turn in state.turns if turn.dispatch.played_by is None}
        return cls(state, {policy: await speller(store, policy) for policy in policies})

    def added(self, turn: TurnState, images: EpisodeImages) -> str:
        """The part of the turn's prompt that it does not share with its parent, special tokens included. An image is one line in
        place of its tokens."""
        spell = self._spell.get(turn.policy)
        if spell is None:
            return ""
        ids = self._state.prompt_of(turn.number)[turn.shared :]
        text, behind = "", 0
        for start, stop, image in placed(turn.dispatch.images, ids):
            text += spell(ids[behind:start]) + images.image(image.sha256).line
            behind = stop
        rest = spell(ids[behind:])
        return text + rest if rest or not ids[behind:] else ""

    def tools(self, turn: TurnState, schemas: ToolSchemas) -> ReadTools:
        """A tool was read if its name and those of its parameters are in the prompt."""
        text = self._text(turn, 0)
        shown, unread = [], []
        for line in schemas.tools:
            function = _function(line)
            if all(word in text for word in _words(function)):
                shown.append(line)
            else:
                unread.append(str(function.get("name", "")))
        return ReadTools(shown, unread, True) if text else ReadTools(list(schemas.tools), [], False)

    def _text(self, turn: TurnState, start: int) -> str:
        spell = self._spell.get(turn.policy)
        return "" if spell is None else spell(self._state.prompt_of(turn.number)[start:])


def _function(line: str) -> dict[str, Any]:
    schema = json.loads(line)
    function = schema.get("function", schema) if isinstance(schema, dict) else {}
    return function if isinstance(function, dict) else {}


def _words(function: Mapping[str, Any]) -> list[str]:
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return [str(function.get("name", "")), *(properties if isinstance(properties, Mapping) else ())]
