"""The recipe `web`: its site in a real Chromium, behind its MCP server, and its tasks."""

import asyncio
import base64
import io
import itertools
import json
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import Client
from PIL import Image
from transformers import AutoTokenizer

from assets.recipes.web import make
from assets.recipes.web.site import CLICKS, LOST, PAINTS, RIGHT, ROUTE, Link, Site
from assets.vision.drawing import EDGE
from assets.vision.untrained import write_untrained
from sampler.core.parsers.hermes import parse_hermes
from scripts.chromium import chromium_path
from shared.images.families import family_of
from tests.conftest import ROOT
from trainer.sft.conversations import read_conversations, rendered

START_S = 120.0


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["make", str(folder)])
        patch.setattr(make, "FIRST_LOOKS", 30)
        patch.setattr(make, "LOOKS", 20)
        patch.setattr(make, "CONVERSATIONS", 60)
        make.main()
    return folder


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_no_page_is_both_trained_and_held_out_and_each_answer_is_the_code_of_its_page(written: Path) -> None:
    train, held_out = read(written / "train.jsonl"), read(written / "eval.jsonl")
    assert len(train) > len(held_out) > 0
    assert len({task["query"] for task in (*train, *held_out)}) == len(train) + len(held_out)
    for task in (*train, *held_out):
        site = Site(int(task["id"].rpartition("-")[2]))
        assert task["answer"] == str(site.code)
    assert not {*make.WARMUP} & {*make.TRAIN, *make.EVAL}


def test_the_demonstrations_answer_with_the_code_exactly_where_all_clicks_are_right(written: Path) -> None:
    lines = read(written / "warmup.jsonl")
    demonstrations = [line["messages"] for line in lines if "tools" in line]
    ends = [messages[-1]["content"] for messages in demonstrations]
    assert len(lines) - len(demonstrations) == 20
    assert {end.partition(" ")[0] for end in ends} == {"code", LOST}
    for messages, end in zip(demonstrations, ends, strict=True):
        clicks = sum("click" in str(message.get("tool_calls")) for message in messages)
        assert clicks == CLICKS if not end.startswith(LOST) else 1 <= clicks <= CLICKS


def test_the_first_demonstrations_are_of_pages_that_are_not_held_out_and_right(written: Path) -> None:
    def shown(name: str) -> list[tuple[str, str]]:
        asked_and_answered = [line["messages"] for line in read(written / name) if "tools" not in line]
        return [(asked["content"][0]["base64"], answer["content"]) for asked, answer in asked_and_answered]

    looks = shown("looks.jsonl")
    assert len(looks) == 30
    held_out = {Site(page).picture(ROUTE[:step]) for page in make.EVAL for step in range(CLICKS)}
    assert len(held_out) == len(make.EVAL) * CLICKS, "no two pages are alike"
    for data, answer in looks + shown("warmup.jsonl"):
        assert base64.b64decode(data) not in held_out
        x, y = map(int, answer.split(", "))
        picture = Image.open(io.BytesIO(base64.b64decode(data)))
        assert picture.getpixel((x, y)) == PAINTS[RIGHT]


def test_the_model_reads_a_screenshot_as_16_tokens_and_the_demonstrations_render(written: Path, tmp_path: Path) -> None:
    write_untrained(tmp_path, wide=True)
    family = family_of(tmp_path)
    assert family is not None
    assert family.tokens(EDGE, EDGE).count(family.image_token) == 16
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    conversations = read_conversations(written / "warmup.jsonl")
    for conversation in conversations:
        *_, (_, reply) = rendered(conversation, tokenizer)
        assert reply.endswith("<|im_end|>")
    demonstration = next(one for one in conversations if one.tools)
    context, reply = next(rendered(demonstration, tokenizer))
    assert "# Tools\nopen(page)\nclick(x, y)" in context
    (call,) = parse_hermes(reply.removesuffix("<|im_end|>")).tool_calls
    assert call.name == "open"
    assert set(call.arguments) == {"page"}
    assert len(tokenizer.encode(f" {RIGHT}", add_special_tokens=False)) == 1


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Process]:
    """Once it serves: its URL is in `server.url`."""
    if chromium_path() is None:
        pytest.skip("no Chromium: scripts/setup_browser.sh installs it; pages are compared with its own")
    file = tmp_path / "server.url"
    server = await asyncio.create_subprocess_exec(sys.executable, "-m", "assets.recipes.web.server", file, cwd=ROOT)
    try:
        async with asyncio.timeout(START_S):
            while not file.exists():
                assert server.returncode is None, "the server ended"
                await asyncio.sleep(0.05)  # it writes the file once it serves
        yield server
    finally:
        if server.returncode is None:
            server.terminate()
        await server.wait()


@pytest.fixture
def address(server: Process, tmp_path: Path) -> str:
    return (tmp_path / "server.url").read_text(encoding="utf-8").strip()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_the_browser_ends_with_its_server(server: Process, number: signal.Signals) -> None:
    started = psutil.Process(server.pid).children(recursive=True)
    assert any("--headless=new" in process.cmdline() for process in started)
    server.send_signal(number)
    await server.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, started, timeout=START_S)
    assert alive == []


def pixels(answer: Any) -> list[tuple[int, ...]]:
    picture = Image.open(io.BytesIO(base64.b64decode(answer.content[0].data))).convert("RGB")
    assert picture.size == (EDGE, EDGE)
    return list(picture.get_flattened_data())


def drawn(site: Site, path: list[str]) -> list[tuple[int, ...]]:
    return list(Image.open(io.BytesIO(site.picture(path))).get_flattened_data())


async def click(client: Client, link: Link) -> Any:
    x, y = link.middle
    return await client.call_tool("click", {"x": x, "y": y})


@pytest.mark.timeout(300)
async def test_each_episode_has_a_page_of_its_own_and_sees_what_the_warm_up_draws(address: str) -> None:
    sites = Site(173), Site(174)
    async with Client(address, mode="legacy") as first, Client(address, mode="legacy") as second:
        clients = first, second
        assert [tool.name for tool in (await first.list_tools()).tools] == ["open", "click"]
        assert (await first.call_tool("click", {"x": 1, "y": 1})).content[0].text == "no page is open"
        for site, client in zip(sites, clients, strict=True):
            answer = await client.call_tool("open", {"page": site.page})
            assert pixels(answer) == drawn(site, [])
        for step, (site, client) in itertools.product(range(CLICKS), zip(sites, clients, strict=True)):
            answer = await click(client, site.links(ROUTE[:step])[0])
            assert pixels(answer) == drawn(site, ROUTE[: step + 1])
            assert answer.content[1].text == (f"code {site.code}" if step == CLICKS - 1 else "page")
        assert "112 x 112" in (await first.call_tool("click", {"x": 112, "y": 0})).content[0].text


@pytest.mark.timeout(300)
async def test_a_wrong_link_leads_to_no_code_and_a_click_beside_all_links_to_the_same_page(address: str) -> None:
    site = Site(300)
    async with Client(address, mode="legacy") as client:
        await client.call_tool("open", {"page": site.page})
        beside = await client.call_tool("click", {"x": 0, "y": 0})
        assert (pixels(beside), beside.content[1].text) == (drawn(site, []), "page")
        wrong = await click(client, site.links([])[1])
        assert (pixels(wrong), wrong.content[1].text) == (drawn(site, [LOST]), f"lost {site.wrong_code}")
        assert site.wrong_code != site.code
