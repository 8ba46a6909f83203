"""Images in requests to API models, over real HTTP: files for models that see, lines of text for the others, both bounded."""

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

import pytest

from sampler.core.api_models import images
from sampler.core.api_models.config import ScorerAgentConfig
from sampler.core.api_models.images import MOST_SENT
from sampler.core.api_models.judge import Judge
from sampler.core.errors import AgentFailed
from shared.errors import DataError
from shared.images.png import png
from tests.sampler.agents.agents import QUICK, models
from tests.sampler.agents.endpoints import Service, endpoint

FILES = {
    hashlib.sha256(data).hexdigest(): data
    for data in (png(bytes([number]), 1, 1, 1) for number in range(MOST_SENT + 4))
}
DIGESTS = list(FILES)


def reference(sha256: str, num_bytes: int | None = None) -> dict[str, Any]:
    num_bytes = len(FILES.get(sha256, b"")) if num_bytes is None else num_bytes
    return {"type": "image", "sha256": sha256, "width": 64, "height": 48, "num_bytes": num_bytes}


def shown(*blocks: Any) -> list[dict[str, Any]]:
    content = [{"type": "text", "text": one} if isinstance(one, str) else one for one in blocks]
    return [{"role": "system", "content": "You judge."}, {"role": "user", "content": content}]


async def read(sha256: str) -> bytes:
    if sha256 not in FILES:
        raise DataError(f"image {sha256}: not in the store")
    return FILES[sha256]


def seeing(services: Sequence[Service], sees: Sequence[bool]) -> Judge:
    pool = [model.model_copy(update={"supports_vision": on}) for model, on in zip(models(services), sees, strict=True)]
    return Judge(ScorerAgentConfig.model_validate(QUICK | {"models": pool, "max_retries": 0}), read)


def url_of(sha256: str) -> dict[str, Any]:
    data = base64.b64encode(FILES[sha256]).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


async def test_a_model_that_sees_is_sent_the_files_and_another_one_lines() -> None:
    asked = shown("Look:", reference(DIGESTS[0]), "And?", reference(DIGESTS[1]))
    async with endpoint("status 500") as blind, endpoint("says yes") as eyes:
        judge = seeing([blind, eyes], [False, True])
        assert await judge.ask(asked) == "yes"
        await judge.close()
    sent, seen = (service.requests[0][1]["messages"] for service in (blind, eyes))
    assert sent == [
        asked[0],
        {"role": "user", "content": "Look:\n[image: 64 x 48, not shown]\nAnd?\n[image: 64 x 48, not shown]"},
    ]
    text = {"type": "text", "text": "Look:"}
    assert seen[1]["content"] == [text, url_of(DIGESTS[0]), {"type": "text", "text": "And?"}, url_of(DIGESTS[1])]


async def test_no_model_sees_unless_it_is_declared() -> None:
    async with endpoint("says yes") as service:
        judge = Judge(ScorerAgentConfig.model_validate(QUICK | {"models": models([service])}), read)
        await judge.ask(shown(reference(DIGESTS[0])))
        await judge.close()
    assert service.prompts() == ["[image: 64 x 48, not shown]"]


async def test_the_newest_images_are_sent_as_many_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with endpoint("says yes") as service:
        judge = seeing([service], [True])
        await judge.ask(shown(*map(reference, DIGESTS)))
        monkeypatch.setattr(images, "MOST_SENT_BYTES", 25)
        await judge.ask(shown(reference(DIGESTS[0], 15), reference(DIGESTS[1], 10), reference(DIGESTS[2], 15)))
        await judge.close()
    many, large = (body["messages"][1]["content"] for _, body in service.requests)
    line = {"type": "text", "text": "[image: 64 x 48, not shown]"}
    assert many == [line] * 4 + [url_of(sha256) for sha256 in DIGESTS[4:]]
    assert large == [line, url_of(DIGESTS[1]), url_of(DIGESTS[2])]


async def test_an_image_twice_is_read_and_counted_once() -> None:
    async with endpoint("says yes") as service:
        judge = seeing([service], [True])
        await judge.ask(shown(*map(reference, DIGESTS[:MOST_SENT]), *map(reference, DIGESTS[:MOST_SENT])))
        await judge.close()
    assert service.requests[0][1]["messages"][1]["content"] == [url_of(sha256) for sha256 in DIGESTS[:MOST_SENT]] * 2


async def test_a_format_that_no_api_takes_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FILES, "b" * 64, b"BM" + bytes(60))
    async with endpoint("says yes") as service:
        judge = seeing([service], [True])
        await judge.ask(shown(reference("b" * 64)))
        await judge.close()
    assert service.prompts() == ["[image: 64 x 48, not shown]"]


async def test_an_image_that_is_not_in_the_store_is_a_failure_and_no_answer() -> None:
    async with endpoint("says yes") as service:
        judge = seeing([service], [True])
        with pytest.raises(AgentFailed, match=r"scorer_agent: image 0+: not in the store"):
            await judge.ask(shown(reference("0" * 64)))
        await judge.close()
    assert service.requests == []
