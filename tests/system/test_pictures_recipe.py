"""The recipe `pictures`: its tasks are held out and readable, its calculator adds, its demonstrations call it, and it trains."""

import base64
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from transformers import AutoTokenizer

from assets.recipes.pictures import make
from assets.recipes.pictures.server import calculated
from assets.vision.drawing import EDGE
from assets.vision.untrained import write_untrained
from sampler.core.parsers.hermes import parse_hermes
from sampler.core.rendering.context import Context
from sampler.core.rendering.template import ChatTemplate
from shared.images.decode import decode
from tests.conftest import ROOT
from tests.system.processes import PATIENCE_S, PATIENT, launched
from trainer.sft.conversations import read_conversations, rendered


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["make", str(folder)])
        patch.setattr(make, "READINGS", 60)
        patch.setattr(make, "CONVERSATIONS", 200)
        make.main()
    return folder


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_pictures_are_there_and_those_of_the_evaluation_are_held_out(written: Path) -> None:
    pixels: dict[str, set[bytes]] = {}
    for split, count in (("train", make.TRAIN), ("eval", make.EVAL)):
        tasks = lines(written, split)
        assert len(tasks) == count
        pixels[split] = set()
        for task in tasks:
            a, b = map(int, task["id"].split("-")[1:])
            assert task["answer"] == str(a + b)
            data = (written / task["query"][0]["path"]).read_bytes()
            assert decode(data, "picture").rgb_HW3.shape == (EDGE, EDGE, 3)
            pixels[split].add(data)
    shown = [line["messages"][0]["content"][0]["base64"] for line in lines(written, "warmup")]
    warm = {base64.b64decode(data) for data in shown}
    assert not pixels["eval"] & (pixels["train"] | warm)
    assert len(pixels["eval"]) == make.EVAL, "each pair has a picture of its own"


def test_a_third_of_the_demonstrations_may_read_a_digit_wrongly_and_the_calculator_is_right(written: Path) -> None:
    wrong = 0
    conversations = [line["messages"] for line in lines(written, "warmup") if "tools" in line]
    for asked, called, result, answer in conversations:
        expression = called["tool_calls"][0]["function"]["arguments"]["expression"]
        data = base64.b64decode(asked["content"][0]["base64"])
        assert Image.open(io.BytesIO(data)).size == (EDGE, EDGE)
        wrong += make.picture(tuple(map(int, expression.split("+")))) != data  # type: ignore[arg-type]  # a sum has two numbers
        assert result["content"] == answer["content"] == calculated(expression)
    assert 0.2 < wrong / len(conversations) < 0.4


@pytest.mark.parametrize(
    ("expression", "result"), [("37 + 48", "85"), ("7", "7"), ("2*3", "expected a sum"), ("", "expected a sum")]
)
def test_the_calculator_adds_and_names_what_it_expects(expression: str, result: str) -> None:
    assert calculated(expression) == result


def test_the_model_reads_a_picture_as_16_tokens_and_sampler_and_warm_up_write_the_same_prompt(
    written: Path, tmp_path: Path
) -> None:
    write_untrained(tmp_path)
    demonstration = next(one for one in read_conversations(written / "warmup.jsonl") if one.tools)
    prompt, reply = next(rendered(demonstration, AutoTokenizer.from_pretrained(tmp_path)))
    (call,) = parse_hermes(reply.removesuffix("<|im_end|>")).tool_calls
    assert call.name == "calculate"
    template = ChatTemplate.from_dir(tmp_path)
    assert template.images is not None
    context = Context(template, make.TOOLS)
    reference = {"type": "image", "sha256": "0" * 64, "height": EDGE, "width": EDGE}
    context.start([{"role": "user", "content": [reference, {"type": "text", "text": make.QUESTION}]}])
    assert context.images[0].count == 16
    expanded = prompt.replace(template.images.family.image_token, template.images.family.tokens(EDGE, EDGE))
    assert list(context.ids) == template.encode(expanded)


SCORER = """
from sampler.scorers import register_scorer

@register_scorer("odd_length", needs_answer=False)
def odd_length(reply, accepted):
    return float(len(reply) % 2)
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_step_of_warm_up_and_two_of_reinforcement_learning_read_the_pictures(
    run: str, written: Path, tmp_path: Path
) -> None:
    """Of a model that reads no digit yet: the score is one that its replies share by chance."""
    recipe = ROOT / "assets" / "recipes" / "pictures"
    (tmp_path / "scorer.py").write_text(SCORER, encoding="utf-8")
    tasks = [task | {"scorer": "odd_length"} for task in lines(written, "train")]
    (written / "odd.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")
    write_untrained(tmp_path / "untrained")
    warmup = [
        "--config",
        recipe / "warmup.yml",
        "--model_name_or_path",
        tmp_path / "untrained",
        "--output_dir",
        tmp_path / "warm",
    ]
    warmup += ["--train_file", written / "warmup.jsonl", "--max_steps", "1", "--warmup_steps", "0"]
    subprocess.run([sys.executable, "-m", "trainer.sft", *warmup], cwd=ROOT, check=True, timeout=PATIENCE_S)
    before, after = ((tmp_path / folder / "model.safetensors").read_bytes() for folder in ("untrained", "warm/final"))
    assert before != after
    flags = [
        "--config",
        recipe / "pictures.yml",
        "--model",
        tmp_path / "warm" / "final",
        "--train_file",
        written / "odd.jsonl",
    ]
    flags += ["--engine", "local", "--max_steps", "2", "--groups_per_step", "2", "--num_generations", "4"]
    flags += ["--scorer_modules", tmp_path / "scorer.py"]
    with subprocess.Popen(
        [sys.executable, "-m", "assets.recipes.pictures.server", tmp_path / "url"], cwd=ROOT, stdin=subprocess.DEVNULL
    ) as server:
        try:
            environment = os.environ | PATIENT | {"MCP_MANAGER_URL": url_of(server, tmp_path / "url")}
            command = [sys.executable, "-m", "tandem.launch", run, "--method", "minirl", *flags]
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
            )
        finally:
            server.terminate()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    steps = (ROOT / "output" / run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(steps) == 2
    assert all(json.loads(step)["data/images"] >= 1 for step in steps), "of each group whose scores differ"
    assert all(json.loads(step)["learner/grad_norm"] > 0 for step in steps)
    assert launched(run) == []


def url_of(server: "subprocess.Popen[bytes]", file: Path) -> str:
    end = time.monotonic() + PATIENCE_S
    while not file.exists():
        assert server.poll() is None, "the server has ended"
        assert time.monotonic() < end, "the server wrote no URL"
        time.sleep(0.1)  # a file has no notification here; the loop ends with the server, or after PATIENCE_S
    return file.read_text(encoding="utf-8").strip()
