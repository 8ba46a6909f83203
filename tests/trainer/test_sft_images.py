"""Supervised training on conversations with images: what a line may hold, its tokens, and that a model learns to see."""

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from shared.errors import ConfigError
from shared.images.families import family_of
from shared.tokens.image_span import placeholders
from shared.tokens.record_tree import RecordTree
from tests.shared.vision_models import EXAMPLE_MODEL, VISION_FAMILIES, write_vision_model
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.modeling.model import load_tokenizer
from trainer.process.parallel import parallel_session
from trainer.sft.__main__ import main
from trainer.sft.conversations import Conversations, read_conversations
from trainer.sft.images import ConversationImages
from trainer.trees.packing import pack
from trainer.trees.tree import merge

Image = pytest.importorskip("PIL.Image", reason="images need Pillow, an optional extra")

COLOURS = {"red": (220, 30, 30), "green": (20, 200, 40), "blue": (30, 40, 230), "white": (240, 240, 240)}


def png(colour: Sequence[int], size: tuple[int, int], seed: int = 0) -> bytes:
    """A square of the colour, with noise, on a dark ground."""
    random = np.random.default_rng(seed)
    pixels_HW3 = random.integers(0, 60, (*size, 3))
    top, left = (int(random.integers(0, max(1, side // 3))) for side in size)
    square = pixels_HW3[top : top + 2 * size[0] // 3, left : left + 2 * size[1] // 3]
    square[:] = np.clip(np.array(colour) + random.integers(-20, 20, square.shape), 0, 255)
    out = io.BytesIO()
    Image.fromarray(pixels_HW3.astype(np.uint8)).save(out, "PNG")
    return out.getvalue()


def conversation_with(*blocks: Any, answer: str = "red") -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}, {"role": "assistant", "content": answer}]


QUESTION = {"type": "text", "text": "which colour"}


def write_lines(path: Path, lines: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def trees_of(model: Path, file: Path) -> tuple[list[RecordTree], Conversations]:
    family = family_of(model)
    assert family is not None
    conversations = Conversations(
        read_conversations(file), load_tokenizer(model), ConversationImages(family, file.parent)
    )
    return conversations.trees(range(len(conversations))), conversations


@pytest.mark.parametrize("name", VISION_FAMILIES)
def test_every_way_to_name_an_image_gives_the_same_tree(tmp_path: Path, name: str) -> None:
    model = write_vision_model(tmp_path / "model", name, weights=False)
    data = png(COLOURS["red"], (40, 70))
    (tmp_path / "a.png").write_bytes(data)
    encoded = base64.b64encode(data).decode()
    bare = conversation_with({"type": "image"}, QUESTION)
    file = write_lines(
        tmp_path / "train.jsonl",
        [
            {"messages": conversation_with({"type": "image", "path": "a.png"}, QUESTION)},
            {"messages": conversation_with({"type": "image", "url": f"data:image/png;base64,{encoded}"}, QUESTION)},
            {"messages": conversation_with({"type": "image", "base64": encoded}, QUESTION)},
            {"messages": bare, "images": [{"path": "a.png"}]},
            {"messages": [{"role": "user", "content": "which colour"}, bare[1]], "images": ["a.png"]},
        ],
    )
    trees, conversations = trees_of(model, file)
    family = family_of(model)
    assert family is not None
    for tree in trees:
        (span,) = tree.images
        assert span.count == family.features(40, 70)
        assert set(tree.token_ids_N[placeholders(tree, span)].tolist()) == {family.placeholder_id}
        assert (tree.token_ids_N == family.placeholder_id).sum() == span.count
        assert tree.token_ids_N.tolist() == trees[0].token_ids_N.tolist()
    assert merge(trees).num_tree == trees[0].num_tokens
    assert conversations.pixels(trees[0].images[0].sha256)["pixel_values"].dtype == np.float32


@pytest.mark.parametrize(
    ("messages", "more", "error"),
    [
        (
            conversation_with({"type": "video"}),
            {},
            r'messages\[0\]: content\[0\] is of type \'video\'; expected {"type": "text"',
        ),
        (
            conversation_with({"type": "image"}),
            {},
            '1 image blocks without "path", "url" or "base64", and 0 entries of "images"',
        ),
        (
            conversation_with({"type": "image", "path": "a.png"}),
            {"images": ["a.png"]},
            '0 image blocks .* and 1 entries of "images"',
        ),
        (conversation_with(QUESTION), {"images": "a.png"}, '"images" is str; expected a list of paths'),
        (
            conversation_with({"type": "image", "path": "gone.png"}),
            {},
            r"train.jsonl:1: image 1: 'gone.png' in .* cannot be read",
        ),
        (conversation_with({"type": "text", "text": "<image>"}), {}, r"messages\[0\]: the text contains '<image>'"),
        (conversation_with(QUESTION, answer="<image>"), {}, r"messages\[1\]: the text contains '<image>'"),
        (
            [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "image", "path": "a.png"}]}],
            {},
            r"messages\[1\]: content\[0\] is an image; expected text alone in a reply",
        ),
    ],
)
def test_a_wrong_image_is_named_by_line_and_field(tmp_path: Path, messages: Any, more: Any, error: str) -> None:
    model = write_vision_model(tmp_path / "model", "smolvlm", weights=False)
    file = write_lines(tmp_path / "train.jsonl", [{"messages": messages, **more}])
    with pytest.raises(ConfigError, match=error):
        trees_of(model, file)


def test_a_missing_file_is_named_before_the_first_step(tmp_path: Path) -> None:
    """Also of a conversation that a late step trains; nothing is decoded."""
    model = write_vision_model(tmp_path / "model", "smolvlm", weights=False)
    (tmp_path / "a.png").write_bytes(b"its content is not read yet")
    names = ["a.png", "gone.png", "a.png"]
    file = write_lines(
        tmp_path / "train.jsonl",
        [{"messages": conversation_with({"type": "image", "path": name}, QUESTION)} for name in names],
    )
    family = family_of(model)
    assert family is not None
    images = ConversationImages(family, tmp_path)
    conversations = Conversations(read_conversations(file), load_tokenizer(model), images)
    with parallel_session("cpu", 1) as parallel:
        conversations.check([0, 2], parallel)
        with pytest.raises(ConfigError, match=r"train.jsonl:2: image 1: 'gone.png' in .* cannot be read"):
            conversations.check([0, 1, 2], parallel)


def test_a_model_of_text_reads_blocks_of_text_and_refuses_images(tmp_path: Path) -> None:
    lines = [
        {"messages": conversation_with(QUESTION, {"type": "text", "text": "?"})},
        {"messages": conversation_with({"type": "image", "path": "a"})},
    ]
    blocks, image = read_conversations(write_lines(tmp_path / "train.jsonl", lines))
    tokenizer = load_tokenizer(EXAMPLE_MODEL)
    plain = read_conversations(
        write_lines(
            tmp_path / "plain.jsonl",
            [{"messages": [{"role": "user", "content": "which colour?"}, conversation_with()[1]]}],
        )
    )
    (tree,), (expected,) = (Conversations(of, tokenizer).trees([0]) for of in ([blocks], plain))
    assert tree.token_ids_N.tolist() == expected.token_ids_N.tolist()
    with pytest.raises(ConfigError, match=r"train\.jsonl:2: 1 images for a model of text"):
        Conversations([image], tokenizer)


def test_a_template_that_leaves_an_image_out_is_refused(tmp_path: Path) -> None:
    model = write_vision_model(tmp_path / "model", "smolvlm", weights=False)
    template = (model / "chat_template.jinja").read_text()
    assert "<image>" in template
    (model / "chat_template.jinja").write_text(template.replace("<image>", ""))
    (tmp_path / "a.png").write_bytes(png(COLOURS["red"], (32, 32)))
    file = write_lines(
        tmp_path / "train.jsonl", [{"messages": conversation_with({"type": "image", "path": "a.png"}, QUESTION)}]
    )
    with pytest.raises(ConfigError, match="shows 0 images before a reply that 1 precede"):
        trees_of(model, file)


def right_answers(model: Path, file: Path) -> float:
    """Share of the pictures in `file` whose first answer is the likeliest of its answers."""
    trees, conversations = trees_of(model, file)
    lm = TreeLM(AutoModelForImageTextToText.from_pretrained(model).eval())
    by_picture: dict[str, list[float]] = {}
    for tree in trees:
        (row,) = pack([merge([tree])], 4096)
        with torch.no_grad():
            logprob_E, _ = row_logprobs(lm, row.with_pixels(conversations.pixels))
        by_picture.setdefault(tree.images[0].sha256, []).append(float(logprob_E.sum()))
    return float(np.mean([int(np.argmax(of)) == 0 for of in by_picture.values()]))


def test_a_model_learns_to_read_the_colour_of_a_square(tmp_path: Path) -> None:
    """Held-out pictures; the first answer of each is the right one."""
    model = write_vision_model(tmp_path / "model", "smolvlm")
    train, held_out = [], []
    for number in range(96):
        colour = list(COLOURS)[number % 4]
        name = f"{number}.png"
        (tmp_path / name).write_bytes(png(COLOURS[colour], (32, 32), number))
        image = {"type": "image", "path": name}
        if number < 64:
            train.append({"messages": conversation_with(image, QUESTION, answer=colour)})
        else:
            answers = [colour, *(other for other in COLOURS if other != colour)]
            held_out += [{"messages": conversation_with(image, QUESTION, answer=answer)} for answer in answers]
    flags = {
        "model_name_or_path": model,
        "train_file": write_lines(tmp_path / "train.jsonl", train),
        "output_dir": tmp_path / "out",
        "train_vision": "true",
        "samples_per_step": 16,
        "learning_rate": 3e-3,
        "max_steps": 60,
        "device": "cpu",
        "num_threads": 1,
    }
    held = write_lines(tmp_path / "held_out.jsonl", held_out)
    before = right_answers(model, held)
    main([f"--{name}={value}" for name, value in flags.items()])
    after = right_answers(tmp_path / "out" / "final", held)
    assert before <= 0.5
    assert after > 0.9
