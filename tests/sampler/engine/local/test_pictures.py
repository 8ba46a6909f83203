"""Pictures in requests to the local engine: log-probs are those of the pixels, under every version, cached or not."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.sampler.engine.local.harness import Server, run_engine
from tests.sampler.engine.local.picture_prompts import (
    PictureReference,
    answered,
    picture,
    png,
    write_seeing_model,
)
from tests.shared.vision_models import VISION_FAMILIES

SIZES = (((64, 96),), ((20, 31), (128, 48)), ((48, 48), (48, 48), (33, 100)), ((128, 128), (128, 128)) * 4)


@pytest.fixture(scope="module", params=VISION_FAMILIES)
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two versions of all weights, those of the vision tower among them."""
    root = tmp_path_factory.mktemp(str(request.param))
    return write_seeing_model(root / "0", request.param, 0), write_seeing_model(root / "1", request.param, 1)


@pytest.fixture(scope="module")
def reference(folders: tuple[Path, Path]) -> PictureReference:
    return PictureReference(folders)


@pytest.fixture(scope="module")
def running(folders: tuple[Path, Path]) -> Iterator[Server]:
    with run_engine(folders[0], "--max-running-requests", "8", "--kv-cache-bytes", "40000000") as server:
        yield server


@pytest.fixture
def server(running: Server, folders: tuple[Path, Path]) -> Server:
    running.ok("/abort_request", {"abort_all": True})
    running.ok("/continue_generation", {})
    updated(running, folders[0], 0)
    return running


def updated(server: Server, folder: Path, version: int) -> None:
    server.ok("/update_weights_from_disk", {"model_path": str(folder), "weight_version": str(version)})


def test_log_probs_are_those_of_the_pixels_with_several_pictures_and_requests_at_once(
    server: Server, reference: PictureReference
) -> None:
    prompts = [
        reference.prompt([picture(*size, seed=10 * at + n) for n, size in enumerate(sizes)])
        for at, sizes in enumerate(SIZES)
    ]
    text = {"input_ids": reference.encode("no picture at all"), "return_prompt_token_ids": True}
    with ThreadPoolExecutor(16) as pool:
        bodies = [prompt.body() for prompt in prompts for _ in range(3)]
        plain = pool.submit(answered, server, {**text, "return_logprob": True})
        answers = list(pool.map(lambda body: answered(server, body), bodies))
    for at, answer in enumerate(answers):
        reference.assert_exact(0, prompts[at // 3], answer)
    assert plain.result()["prompt_token_ids"] == text["input_ids"]


def test_a_picture_of_the_same_size_shares_no_prefix_and_the_same_one_does(
    server: Server, reference: PictureReference
) -> None:
    first, second = (reference.prompt([picture(64, 64, 1), picture(64, 64, seed)]) for seed in (2, 3))
    assert first.sent == second.sent
    shared = first.ids.index(reference.family.placeholder_id, len(first.ids) // 2)
    for prompt, cached in (
        (first, range(1)),
        (second, range(8, shared + 1)),
        (first, range(shared + 1, len(first.ids))),
    ):
        answer = answered(server, prompt.body())
        reference.assert_exact(0, prompt, answer)
        assert answer["meta_info"]["cached_tokens"] in cached


def test_a_picture_that_takes_several_steps_of_prefill_is_exact(server: Server, reference: PictureReference) -> None:
    prompt = reference.prompt([picture(96, 128, seed) for seed in range(12)], question="and " * 200)
    assert len(prompt.ids) > 512 + 150
    reference.assert_exact(0, prompt, answered(server, prompt.body()))


def test_log_probs_of_the_prompt_are_those_of_the_pixels(server: Server, reference: PictureReference) -> None:
    prompt = reference.prompt([picture(64, 96, 1), picture(40, 40, 2)])
    for start in (0, 3, 0):
        answer = answered(server, prompt.body(logprob_start_len=start))
        entries = answer["meta_info"]["input_token_logprobs"]
        assert [token for _, token, _ in entries] == prompt.ids[start:]
        expected = reference.log_probs(0, prompt, [], start=start)
        assert [entry[0] for entry in entries[1:]] == pytest.approx(expected, abs=5e-5)


def test_new_weights_of_the_tower_count_for_pictures_that_were_read_before(
    server: Server, reference: PictureReference, folders: tuple[Path, Path]
) -> None:
    prompt = reference.prompt([picture(64, 64, 5), picture(32, 80, 6)])
    answers = {0: answered(server, prompt.body())}
    for version in (1, 0, 1):
        updated(server, folders[version], version)
        answers[version] = answered(server, prompt.body())
        reference.assert_exact(version, prompt, answers[version])
    distances = [
        abs(a - b)
        for a, b in zip(
            reference.log_probs(0, prompt, answers[1]["output_ids"]),
            reference.log_probs(1, prompt, answers[1]["output_ids"]),
            strict=True,
        )
    ]
    assert max(distances) > 0.5  # both versions differ


def test_a_reply_that_goes_on_under_new_weights_is_exact_in_both(
    server: Server, reference: PictureReference, folders: tuple[Path, Path]
) -> None:
    prompt = reference.prompt([picture(64, 64, 7), picture(32, 80, 8)])
    with ThreadPoolExecutor(1) as pool:
        whole = pool.submit(answered, server, prompt.body(sampling={"max_new_tokens": 600}))
        server.wait_until(lambda: server.used_tokens() > len(prompt.ids) + 10)
        server.ok("/pause_generation", {"mode": "retract"})
        updated(server, folders[1], 1)
        server.ok("/continue_generation", {})
        answer = whole.result(120)
    runs = answer["meta_info"]["weight_versions"]
    assert [run["version"] for run in runs] == ["0", "1"]
    middle = runs[0]["end"]
    expected = [
        *reference.log_probs(0, prompt, answer["output_ids"])[:middle],
        *reference.log_probs(1, prompt, answer["output_ids"])[middle:],
    ]
    reference.assert_log_probs(expected, answer)


def test_a_request_goes_on_behind_an_aborted_one(server: Server, reference: PictureReference) -> None:
    prompt = reference.prompt([picture(64, 64, 9), picture(32, 80, 10)])
    with ThreadPoolExecutor(1) as pool:
        whole = pool.submit(answered, server, prompt.body(rid="first", sampling={"max_new_tokens": 900}))
        server.wait_until(lambda: server.used_tokens() > len(prompt.ids) + 10)
        server.ok("/abort_request", {"rid": "first"})
        begun = whole.result(120)["output_ids"]
    placeholder = reference.family.placeholder_id
    begun = begun[: begun.index(placeholder)] if placeholder in begun else begun
    answer = answered(server, prompt.body(*begun))
    assert answer["prompt_token_ids"] == [*prompt.ids, *begun]
    assert answer["meta_info"]["cached_tokens"] >= len(prompt.ids) + len(begun) - 1
    expected = reference.log_probs(0, prompt, [*begun, *answer["output_ids"]])[len(begun) :]
    reference.assert_log_probs(expected, answer)


def test_a_sampled_image_token_is_a_token_of_text(server: Server, reference: PictureReference) -> None:
    prompt = reference.prompt([picture(64, 64, 11)])
    placeholder = reference.family.placeholder_id
    with ThreadPoolExecutor(8) as pool:
        bodies = [
            prompt.body(sampling={"max_new_tokens": 200, "temperature": 30.0, "sampling_seed": n}) for n in range(40)
        ]
        answers = list(pool.map(lambda body: answered(server, body), bodies))
    chosen = [one for one in answers if placeholder in one["output_ids"][:-1]]
    assert chosen
    for answer in chosen[:2]:
        expected = reference.log_probs(0, prompt, answer["output_ids"], temperature=30.0)
        reference.assert_log_probs(expected, answer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda body, image: {"input_ids": [image, *body["input_ids"]]},
            "2 image tokens .* and image_data has 1 images",
        ),
        (lambda body, image: {"image_data": body["image_data"] * 2}, "1 image tokens .* and image_data has 2 images"),
        (lambda body, image: {"image_data": None}, "1 image tokens .* and image_data has 0 images"),
        (lambda body, image: {"image_data": [base64.b64encode(b"GIF89a, no more").decode()]}, "image_data.0.: "),
        (lambda body, image: {"image_data": [base64.b64encode(b"<svg/>").decode()]}, "image_data.0.: "),
        (lambda body, image: {"image_data": [of_png(Image.new("RGB", (64, 64)))[:80]]}, "image_data.0.: "),
        (lambda body, image: {"image_data": [of_png(Image.new("1", (6_000, 6_000)))]}, "6000 x 6000 pixels"),
    ],
)
def test_what_is_no_image_and_images_without_a_token_are_a_400(
    server: Server, reference: PictureReference, change: Any, message: str
) -> None:
    prompt = reference.prompt([picture(40, 40, 1)])
    for stream in (False, True):
        body = prompt.body(stream=stream)
        response = server.post("/generate", {**body, **change(body, reference.family.placeholder_id)})
        assert stream or response.status_code == 400
        assert re.search(message, response.text), response.text
    assert server.running() == 0
    reference.assert_exact(0, prompt, answered(server, prompt.body()))


def of_png(image: Image.Image) -> str:
    return base64.b64encode(png(image)).decode()
