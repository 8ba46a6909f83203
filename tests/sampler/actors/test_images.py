"""Seats that see images: of the task's question, and of a world of several players; the trained model and an API model."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sampler.actors.rounds_sampler import RoundsSampler
from sampler.core.api_models import Agents
from sampler.core.api_models.config import AgentConfig
from sampler.core.api_models.player import Player
from sampler.core.episode.episode import play
from sampler.core.episode.resources import Resources
from sampler.core.rendering.template import ChatTemplate
from sampler.environments.game_sampler import GameSampler
from sampler.environments.pixels import image_file
from sampler.scorers import Score
from shared.documents import TaskPayload
from shared.documents.content import references_in
from shared.store import Store
from tests.sampler.agents.agents import QUICK, models
from tests.sampler.agents.endpoints import Service, endpoint
from tests.sampler.environments.pictures import shade
from tests.sampler.environments.playing import registered, task_of
from tests.sampler.environments.services import service
from tests.sampler.episodes import ended
from tests.sampler.pools import fields_of
from tests.sampler.seeing import seeing_template, seen_worlds
from tests.sampler.seeing_engine import SeeingEngine
from tests.shared.builders import claim, make_task

PICTURES = Path(__file__).parents[1] / "environments" / "pictures.py"
ACTORS = {"Bob": {"policy": "main"}, "Critic": {"model": "api"}}


class Talk(RoundsSampler):
    async def evaluate_record(self) -> Score:
        return Score(1.0)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    return seeing_template(tmp_path_factory.mktemp("model"))


@asynccontextmanager
async def seated(
    store: Store, template: ChatTemplate, api: Service, *, sees: bool, **config: Any
) -> AsyncIterator[tuple[Resources, SeeingEngine]]:
    async with seen_worlds(store, template, "reply {}".format, actors=ACTORS, **config) as (shared, engine):
        pool = [model.model_copy(update={"supports_vision": sees}) for model in models([api])]
        player = Player("api", AgentConfig.model_validate({**QUICK, "models": pool}), store.images.read)
        yield Resources(**{**fields_of(shared), "agents": Agents(players={"api": player})}), engine
        await player.close()


def content(text: str, number: int, *, sees: bool) -> Any:
    """What an API model is sent."""
    if not sees:
        return f"{text}\n[image: 56 x 56, not shown]"
    url = f"data:image/png;base64,{base64.b64encode(image_file(shade(number))).decode()}"
    return [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]


@pytest.mark.parametrize("sees", [True, False])
async def test_seats_read_the_images_of_the_question_and_texts_of_each_other(
    store: Store, template: ChatTemplate, sees: bool
) -> None:
    async with (
        endpoint("says well") as api,
        seated(store, template, api, sees=sees, rounds="Bob -> Critic") as (shared, engine),
    ):
        image = await shared.images.store(image_file(shade(1)), "the question")
        asked = TaskPayload(query="Which?", query_blocks=[{"type": "text", "text": "Which?"}, image])
        await store.tasks.insert_new([make_task(0).model_copy(update={"payload": asked})])
        sampler = Talk(shared, await claim(store))
        assert await play(sampler) == 1.0
        _, _, dispatches = await ended(store, sampler)
    assert [engine.files(number) for number in range(len(engine.bodies))] == [[image_file(shade(1))]]
    sent = api.requests[0][1]["messages"][-1]["content"]
    heard = {"type": "text", "text": "reply 0"}
    asked_api = content("Which?", 1, sees=sees)
    assert sent == (f"{asked_api}\nreply 0" if isinstance(asked_api, str) else [*asked_api, heard])
    assert references_in(dispatches[1].messages) == [image], "the document names it, whatever was sent"


@pytest.mark.parametrize("sees", [True, False])
async def test_a_world_shows_each_seat_its_own_image(store: Store, template: ChatTemplate, sees: bool) -> None:
    lineups = [{"X": "Bob", "O": "Critic"}]
    with service("--workers", "1", "--environments", f"table={PICTURES}:Table") as world:
        await registered(store, world.url, "table")
        await store.tasks.insert_new([task_of(store, 0, "table")])
        async with (
            endpoint("says well") as api,
            seated(store, template, api, sees=sees, lineups=lineups) as (shared, engine),
        ):
            sampler = GameSampler(shared, await claim(store))
            assert await play(sampler) == 1.0
            _, _, dispatches = await ended(store, sampler)
    assert [engine.files(number) for number in range(len(engine.bodies))] == [[image_file(shade(1))]]
    assert api.requests[0][1]["messages"][-1]["content"] == content("seat 1", 2, sees=sees)
    assert [len(references_in(one.messages)) for one in dispatches] == [1, 1]
