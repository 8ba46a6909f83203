"""Images in `tandem show` and in exported traces: a line in place of each, and files on request."""

import asyncio
import json
from pathlib import Path
from typing import Any

from shared.episodes.images import EpisodeImages
from shared.episodes.stored import read_episode
from shared.store import Store
from tandem.commands.shown_prompt import Prompts
from tandem.traces.spans import Episode, spans_of
from tests.tandem.commands.commands import Command
from tests.tandem.viewer.image_run import FILES, FIRST, QUESTION, insert_image_run


def line(kind: str, tokens: int) -> str:
    file = FILES[kind]
    size = f"{len(file.data)} bytes" if len(file.data) < 1000 else f"{len(file.data) / 1000:.1f} kB"
    return f"[image 37x23, {tokens} tokens, {size}, sha256 {file.sha256[:12]}…]"


def unfolded(text: str) -> str:
    return " ".join(text.split())


async def test_show_prints_a_line_for_each_image(tandem: Command, store: Store) -> None:
    await insert_image_run(store)
    result = await asyncio.to_thread(tandem, "show", store.run, FIRST)
    assert result.exit_code == 0, result.output
    shown = unfolded(result.stdout)
    assert f"query {QUESTION} {line('PNG', 4)}" in shown
    assert f"user {QUESTION} {line('PNG', 4)}" in shown
    assert f"result The page: {line('JPEG', 3)} 3 links [0.25 s]" in shown
    assert f"tool The page: {line('JPEG', 3)} 3 links" in shown
    assert f"seen {line('GIF', 2)} {line('WEBP', 2)}" in shown


async def test_show_writes_the_files_and_names_the_missing_one(tandem: Command, store: Store, tmp_path: Path) -> None:
    await insert_image_run(store)
    folder = tmp_path / "deep" / "pictures"
    result = await asyncio.to_thread(tandem, "show", store.run, FIRST, "--images", str(folder))
    assert result.exit_code == 0, result.output
    written = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert written == {f"{file.sha256}.{kind.lower()}": file.data for kind, file in FILES.items()}
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}, "part of a conversation"
    await store.database["images"].delete_one({"_id": FILES["GIF"].sha256})
    again = tmp_path / "again"
    result = await asyncio.to_thread(tandem, "show", store.run, FIRST, "--images", str(again))
    assert result.exit_code == 1
    assert f"image {FILES['GIF'].sha256}: not in the store" in result.stderr
    assert "1 of 5 images cannot be read" in result.stderr
    assert len(list(again.iterdir())) == 4, "the others are written"


async def test_a_folder_that_cannot_be_written_is_named(tandem: Command, store: Store, tmp_path: Path) -> None:
    await insert_image_run(store)
    (tmp_path / "file").write_text("")
    result = await asyncio.to_thread(tandem, "show", store.run, FIRST, "--images", str(tmp_path / "file"))
    assert result.exit_code == 1
    assert "could not be written" in result.stderr


async def test_a_printed_prompt_has_a_line_in_place_of_an_images_tokens(store: Store) -> None:
    await insert_image_run(store)
    record = await store.records.get(FIRST)
    assert record is not None
    episode = await read_episode(store, record)
    images = EpisodeImages.of([turn.dispatch for turn in episode.state.turns])
    prompts = Prompts(episode.state, {"main": lambda ids: "".join(f"<{one}>" for one in ids)})
    first, _, third = (prompts.added(turn, images) for turn in episode.state.turns)
    assert first == f"<1><2>{line('PNG', 4)}<3>"
    assert third == f"<6>{line('GIF', 2)}{line('WEBP', 2)}{line('BMP', 2)}<7>"
    unread = Prompts(episode.state, {"main": lambda ids: ""})
    assert unread.added(episode.state.turns[0], images) == "", "no tokenizer: the caller says so"


async def test_a_trace_has_lines_in_place_of_images_and_none_of_their_bytes(store: Store) -> None:
    await insert_image_run(store)
    record = await store.records.get(FIRST)
    assert record is not None
    episode = await read_episode(store, record)
    turns = [turn.dispatch for turn in episode.state.turns]
    spans = list(spans_of(store.run, Episode(record, episode.task, turns, [1], {})))
    by_name: dict[str, Any] = {span.name: span.attributes for span in reversed(spans)}
    asked = [json.loads(span.attributes["gen_ai.input.messages"]) for span in spans if span.name == "chat main"]  # type: ignore[arg-type]  # this attribute is always a text
    assert asked[0] == [{"role": "user", "parts": [{"type": "text", "content": f"{QUESTION}\n{line('PNG', 4)}"}]}]
    answer = f"The page:\n{line('JPEG', 3)}\n3 links"
    assert asked[1][0]["parts"] == [{"type": "tool_call_response", "id": "c0", "response": answer}]
    assert by_name["execute_tool browse"]["gen_ai.tool.call.result"] == answer
    assert line("PNG", 4) in json.loads(by_name["invoke_agent main"]["gen_ai.input.messages"])[0]["parts"][0]["content"]
