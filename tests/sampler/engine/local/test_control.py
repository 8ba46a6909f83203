"""Sequences in flight under pause, continue, abort, disconnections and weight updates."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.sampler.engine.local.harness import ROUNDING, Reference, Server

PROMPT = [5, 100, 101, 102, 103, 104, 105, 106]
LONG = 200  # tokens: long enough to be caught in flight
PATIENCE_S = 60.0


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def start_long(server: Server, pool: ThreadPoolExecutor, *rids: str) -> list[Future[dict[str, Any]]]:
    """Long generations, seen to run, then held by an in-place pause so that the test decides what comes next.

    Where this process is kept waiting they may be over before the pause: then they are started again.
    """

    def ask(rid: str) -> dict[str, Any]:
        sampling = {"max_new_tokens": LONG, "ignore_eos": True}
        body = {"rid": rid, "input_ids": PROMPT, "sampling_params": sampling, "return_logprob": True}
        answer: dict[str, Any] = server.ok("/generate", body).json()
        return answer

    def over() -> bool:
        return any(future.done() for future in futures)

    for _ in range(20):
        futures: list[Future[dict[str, Any]]] = []
        for number, rid in enumerate(rids, start=1):
            futures.append(pool.submit(ask, rid))
            server.wait_until(lambda number=number: over() or server.running() == number)
            server.wait_until(lambda: over() or server.used_tokens() >= len(PROMPT) + 2)
        server.ok("/pause_generation", {"mode": "in_place"})
        if server.running() == len(rids):  # as reported by the engine: a reply may be in transit
            return futures
        server.ok("/continue_generation", {})
        for future in futures:
            future.result(PATIENCE_S)
    pytest.fail("they were too fast to be caught, 20 times")


def update(server: Server, path: Path, version: str, **more: Any) -> httpx.Response:
    return server.post("/update_weights_from_disk", {"model_path": str(path), "weight_version": version, **more})


def test_an_aborted_request_returns_its_partial_output(
    server: Server, pool: ThreadPoolExecutor, reference: Reference
) -> None:
    future, longer = start_long(server, pool, "long", "long-1")
    server.ok("/abort_request", {"rid": "lon"})  # no request's id
    assert server.running() == 2
    server.ok("/abort_request", {"rid": "long"})
    assert longer.result(PATIENCE_S)["meta_info"]["finish_reason"]["type"] == "abort"  # SGLang matches by prefix
    answer = future.result(PATIENCE_S)
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < len(answer["output_ids"]) < LONG
    assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"])
    reference.assert_exact(0, PROMPT, answer)


def test_abort_all_ends_every_request_and_an_empty_abort_none(server: Server, pool: ThreadPoolExecutor) -> None:
    futures = start_long(server, pool, "a", "b")
    before = server.running()
    server.ok("/abort_request", {})
    assert server.running() == before
    server.ok("/abort_request", {"abort_all": True})
    assert futures[1].result(PATIENCE_S)["meta_info"]["finish_reason"]["type"] == "abort"
    assert server.running() == 0


def test_a_paused_engine_holds_new_requests_until_it_continues(server: Server, pool: ThreadPoolExecutor) -> None:
    server.ok("/pause_generation", {"mode": "abort"})
    future = pool.submit(server.generate, PROMPT, 4)
    server.wait_until(lambda: server.running() == 1)
    assert server.client.get("/health").status_code == 503
    assert not future.done()
    server.ok("/continue_generation", {})
    assert len(future.result(PATIENCE_S)["output_ids"]) == 4
    assert server.client.get("/health").status_code == 200


def test_a_request_id_in_use_is_refused_and_the_running_request_continues(
    server: Server, pool: ThreadPoolExecutor
) -> None:
    (future,) = start_long(server, pool, "mine")
    body = {"rid": "mine", "input_ids": PROMPT}
    assert server.post("/generate", body).status_code == 400
    assert "Duplicate request ID" in server.post("/generate", {**body, "stream": True}).text
    assert server.post("/generate", body).status_code == 400
    server.ok("/continue_generation", {})
    assert len(future.result(PATIENCE_S)["output_ids"]) == LONG


def test_pause_abort_returns_the_running_requests_partial_output(server: Server, pool: ThreadPoolExecutor) -> None:
    (future,) = start_long(server, pool, "p")
    server.ok("/pause_generation", {"mode": "abort"})
    assert future.result(PATIENCE_S)["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_a_pause_without_an_update_changes_nothing(
    server: Server, pool: ThreadPoolExecutor, reference: Reference, mode: str
) -> None:
    (future,) = start_long(server, pool, "p")
    server.ok("/pause_generation", {"mode": mode})
    server.ok("/continue_generation", {})
    answer = future.result(PATIENCE_S)
    assert len(answer["output_ids"]) == LONG
    assert answer["meta_info"]["weight_versions"] == [{"version": "v0", "start": 0, "end": LONG}]
    reference.assert_exact(0, PROMPT, answer)


def test_after_a_retraction_every_token_is_exact_under_its_recorded_version(
    server: Server, pool: ThreadPoolExecutor, reference: Reference, model_paths: tuple[Path, Path]
) -> None:
    (future,) = start_long(server, pool, "p")
    server.ok("/pause_generation", {"mode": "retract"})
    assert update(server, model_paths[1], "v1").json()["success"]
    server.ok("/continue_generation", {})
    answer = future.result(PATIENCE_S)
    first, second = answer["meta_info"]["weight_versions"]
    cut = first["end"]
    assert (first["version"], first["start"]) == ("v0", 0)
    assert (second["version"], second["start"], second["end"]) == ("v1", cut, LONG)
    assert 0 < cut < LONG
    assert answer["meta_info"]["num_retractions"] == 1
    assert answer["meta_info"]["weight_version"] == "v1"
    found = [lp for lp, _, _ in answer["meta_info"]["output_token_logprobs"]]
    output = answer["output_ids"]
    old, new = (reference.log_probs(which, PROMPT, output) for which in (0, 1))
    assert max(abs(a - b) for a, b in zip(found[:cut], old[:cut], strict=True)) <= ROUNDING
    assert max(abs(a - b) for a, b in zip(found[cut:], new[cut:], strict=True)) <= ROUNDING


def test_an_update_drops_every_cached_prefix(
    server: Server, reference: Reference, model_paths: tuple[Path, Path]
) -> None:
    context = PROMPT + server.generate(PROMPT, 20)["output_ids"]
    answer = update(server, model_paths[1], "v1")
    assert answer.json() == {
        "success": True,
        "message": "Succeeded to update model weights. Weight version updated to v1.",
        "num_paused_requests": 0,
    }
    assert server.client.get("/model_info").json()["weight_version"] == "v1"
    assert server.client.get("/model_info").json()["model_path"] == str(model_paths[1])
    after = server.generate(context, 20)
    assert after["meta_info"]["cached_tokens"] == 0
    reference.assert_exact(1, context, after)


def test_an_update_without_a_pause_waits_for_running_requests(
    server: Server, pool: ThreadPoolExecutor, reference: Reference, model_paths: tuple[Path, Path]
) -> None:
    (running,) = start_long(server, pool, "p")
    server.ok("/continue_generation", {})
    updated = pool.submit(update, server, model_paths[1], "v1")
    behind = pool.submit(server.generate, PROMPT, 8)
    assert updated.result(PATIENCE_S).status_code == 200
    answer = running.result(PATIENCE_S)
    assert answer["meta_info"]["weight_versions"] == [{"version": "v0", "start": 0, "end": LONG}]
    reference.assert_exact(0, PROMPT, answer)
    later = behind.result(PATIENCE_S)  # sent after or before the update: exact under whichever it names
    reference.assert_exact(int(later["meta_info"]["weight_version"][1]), PROMPT, later)


def test_an_update_with_abort_all_does_not_wait(
    server: Server, pool: ThreadPoolExecutor, model_paths: tuple[Path, Path]
) -> None:
    (running,) = start_long(server, pool, "p")
    assert update(server, model_paths[1], "v1", abort_all_requests=True).status_code == 200
    assert running.result(PATIENCE_S)["meta_info"]["finish_reason"]["type"] == "abort"


def test_an_in_place_pause_refuses_an_update_unless_the_stale_cache_is_wanted(
    server: Server, pool: ThreadPoolExecutor, reference: Reference, model_paths: tuple[Path, Path]
) -> None:
    """Unlike SGLang, whose 400 here leaves the new weights live."""
    (future,) = start_long(server, pool, "p")
    refused = update(server, model_paths[1], "v1")
    assert (refused.status_code, refused.json()["success"]) == (400, False)
    assert server.client.get("/model_info").json()["weight_version"] == "v0"
    assert server.post("/flush_cache").status_code == 400
    assert update(server, model_paths[1], "v1", flush_cache=False).status_code == 200
    server.ok("/continue_generation", {})
    answer = future.result(PATIENCE_S)
    assert [run["version"] for run in answer["meta_info"]["weight_versions"]] == ["v0", "v1"]
    # the stale cache belongs to this sequence: no other may reuse it
    after = server.generate(PROMPT + answer["output_ids"][:100], 8)
    assert after["meta_info"]["cached_tokens"] == 0
    reference.assert_exact(1, PROMPT + answer["output_ids"][:100], after)


def test_a_version_label_may_change_alone(server: Server, pool: ThreadPoolExecutor) -> None:
    (future,) = start_long(server, pool, "p")
    answer = server.ok("/update_weight_version", {"new_version": "v9", "abort_all_requests": False}).json()
    assert answer == {"success": True, "message": "Weight version updated to v9", "new_version": "v9"}
    server.ok("/continue_generation", {})
    assert [run["version"] for run in future.result(PATIENCE_S)["meta_info"]["weight_versions"]] == ["v0", "v9"]


def test_without_a_version_the_label_stays(server: Server, model_paths: tuple[Path, Path]) -> None:
    answer = server.ok("/update_weights_from_disk", {"model_path": str(model_paths[1])}).json()
    assert answer["message"] == "Succeeded to update model weights."
    assert server.client.get("/model_info").json()["weight_version"] == "v0"


def test_flush_cache_forgets_prefixes(server: Server) -> None:
    server.generate(PROMPT, 4)
    assert server.generate(PROMPT, 4)["meta_info"]["cached_tokens"] == 7
    assert server.post("/flush_cache").text.startswith("Cache flushed.")
    assert server.generate(PROMPT, 4)["meta_info"]["cached_tokens"] == 0


def test_a_client_that_hangs_up_frees_its_slot(server: Server) -> None:
    server.ok("/pause_generation", {"mode": "in_place"})
    for stream in (b"false", b"true"):
        body = b'{"input_ids": [5, 6], "stream": %s, "sampling_params": {"max_new_tokens": 200}}' % stream
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as s:
            head = (
                f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            )
            s.sendall(head.encode() + b"\r\n\r\n" + body)
            server.wait_until(lambda: server.running() == 1)
        server.wait_until(lambda: server.running() == 0)


Spoil = Callable[[Path], None]


def truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def empty_file(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def with_tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Spoil:
    def spoil(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return spoil


NORM = "model.norm.weight"


def wrong_shape(tensors: dict[str, torch.Tensor]) -> None:
    tensors[NORM] = torch.ones(65)


def missing(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.1.mlp.up_proj.weight"]


def extra(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.2.mlp.up_proj.weight"] = torch.ones(2)


def not_finite(tensors: dict[str, torch.Tensor]) -> None:
    tensors[NORM] = torch.full_like(tensors[NORM], float("nan"))


def integers(tensors: dict[str, torch.Tensor]) -> None:
    tensors[NORM] = tensors[NORM].to(torch.int32)


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def other_architecture(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 0.5'))


def lost_shard(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00002-of-00002.safetensors"}}')


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (truncated, "not a whole safetensors file"),
        (empty_file, "not a whole safetensors file"),
        (with_tensors(wrong_shape), "model.norm.weight has shape (65,); expected (64,)"),
        (with_tensors(missing), "lacks 1 of"),
        (with_tensors(extra), "holds 1 tensors this model does not have"),
        (with_tensors(not_finite), "NaN"),
        (with_tensors(integers), "model.norm.weight is int32; expected float32"),
        (no_weights, "Cannot find any model weights with"),
        (shutil.rmtree, "Cannot find any model weights with"),
        (other_architecture, "rms_norm_eps is 0.5"),
        (lost_shard, "names files that are not there"),
    ],
)
def test_a_bad_checkpoint_is_refused_and_the_old_weights_stay(
    server: Server, model_paths: tuple[Path, Path], tmp_path: Path, reference: Reference, spoil: Spoil, words: str
) -> None:
    folder = tmp_path / "candidate"
    shutil.copytree(model_paths[1], folder)
    spoil(folder)
    refused = update(server, folder, "bad")
    assert refused.status_code == 400
    assert refused.json()["success"] is False
    assert words in refused.json()["message"]
    answer = server.generate(PROMPT, 6)
    assert answer["meta_info"]["weight_version"] == "v0"
    reference.assert_exact(0, PROMPT, answer)


def test_bfloat16_and_tied_heads_written_out_are_accepted(
    server: Server, model_paths: tuple[Path, Path], tmp_path: Path
) -> None:
    tensors = load_file(model_paths[1] / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file({name: t.to(torch.bfloat16) for name, t in tensors.items()}, tmp_path / "model.safetensors")
    assert update(server, tmp_path, "half").status_code == 200
    assert len(server.generate(PROMPT, 4)["output_ids"]) == 4
