"""A run whose episodes have images, for a tiny vision-language model: played by hand, settled, ready for a trainer.

    turn 0   question with the task's picture           reply      both episodes of a group have the same
    turn 1   all of turn 0, a tool's picture            reply      each has its own
    turn 2   turn 0's question, another picture, once more         a branch; in every episode of the run the same picture

Their log-probs are those of transformers' own forward of each sequence with its pixels.
"""

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerBase

from sampler.settings import SamplerConfig
from shared.documents import Claim, DispatchedSamplingTask
from shared.documents.images import ImageFile, PlacedImage
from shared.documents.packed import pack_floats
from shared.documents.run import Admission
from shared.documents.states import RecordStatus, Termination
from shared.images.families import Family, family_of
from shared.images.placeholders import expanded, spans
from shared.images.torch_resizing import by_torch
from shared.store import Store
from tests.sampler.builders import make_dispatch
from tests.sampler.settling import settle_next
from tests.shared.builders import claim, make_task
from tests.shared.vision_models import PAD_IMAGE, write_vision_model
from tests.trainer.streams import make_config
from trainer.data.stream import RecordStream
from trainer.modeling.model import load_tokenizer
from trainer.modeling.vision import GRID, batched
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge

WORDS = ("red", "green", "blue", "white", "which colour", "a square", "not that")
FIRST = "main:train:0:t0:0:1"  # a record of the oldest group
GROUPS = 4
SIZES = ((40, 70), (33, 33), (64, 48))  # height, width


def picture(number: int, size: tuple[int, int]) -> ImageFile:
    """Noise, other for each number."""
    pixels_HW3 = np.random.default_rng(number).integers(0, 255, (*size, 3)).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels_HW3).save(out, "PNG")
    data = out.getvalue()
    return ImageFile(hashlib.sha256(data).hexdigest(), data, "PNG", size[1], size[0])


@dataclass(frozen=True)
class PromptPart:
    """Tokens of a part of a conversation with one picture."""

    ids: list[int]
    image: PlacedImage
    file: ImageFile


class VisionPlayer:
    """Plays for the model in `folder`."""

    def __init__(self, folder: Path) -> None:
        family = family_of(folder)
        assert family is not None
        self.family: Family = family
        self.folder = folder
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(folder)
        self.model = AutoModelForImageTextToText.from_pretrained(folder).eval()

    def part(self, role: str, number: int, words: str) -> PromptPart:
        size = SIZES[number % len(SIZES)]
        file = picture(number, size)
        image = PAD_IMAGE if self.family.grid(*size) else self.family.image_token
        text = f"<|im_start|>{role}\n{image}{words}<|im_end|>\n<|im_start|>assistant\n"
        ids = self._encoded(expanded(text, [size], self.family)[0])
        (span,) = spans(ids, [size], self.family)
        placed = PlacedImage(sha256=file.sha256, first=span.start, count=span.count, grid=self.family.grid(*size))
        return PromptPart(ids, placed, file)

    def _encoded(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def reply(self, seed: int) -> list[int]:
        drawn = np.random.default_rng(seed)
        return self._encoded(" ".join(drawn.choice(WORDS, size=3)) + "<|im_end|>")

    @torch.no_grad()
    def logprobs(self, ids: Sequence[int], files: Sequence[ImageFile], count: int) -> list[float]:
        """Of the last `count` tokens, by transformers' own forward."""
        pixels = [np.array(Image.open(io.BytesIO(file.data)).convert("RGB")) for file in files]
        inputs = [self.family.inputs(rgb_HW3, by_torch) for rgb_HW3 in pixels]
        given = batched([{name: torch.from_numpy(array) for name, array in of.items()} for of in inputs])
        ids_1N = torch.tensor([ids])
        if GRID in given:
            given["mm_token_type_ids"] = (ids_1N == self.family.placeholder_id).int()
        logits_NV = self.model(input_ids=ids_1N, use_cache=False, **given).logits[0]
        logprob_NV = torch.log_softmax(logits_NV[:-1], -1)
        return logprob_NV.gather(1, ids_1N[0, 1:, None])[-count:, 0].tolist()

    def parts(self, seq: int, slot: int) -> tuple[PromptPart, PromptPart, PromptPart]:
        return (
            self.part("user", seq, "which colour"),
            self.part("tool", 100 + 10 * seq + slot, "a square"),
            self.part("tool", 99, "not that"),
        )

    def pictures(self, seq: int, slot: int) -> list[list[str]]:
        """Digests in the prompt of each turn."""
        question, tool, other = (part.image.sha256 for part in self.parts(seq, slot))
        return [[question], [question, tool], [question, other]]

    async def play(self, store: Store, held: Claim, score: float) -> list[DispatchedSamplingTask]:
        seq, slot = held.task.seq, held.traj_id
        question, tool, other = self.parts(seq, slot)
        record = await store.records.start(held, "w")
        await store.images.keep([part.file for part in (question, tool, other)])
        replies = [self.reply(1000 * seq + 10 * slot + turn) for turn in range(3)]
        whole = [
            (question.ids, [question.file]),
            ([*question.ids, *replies[0], *tool.ids], [question.file, tool.file]),
            ([*question.ids, *other.ids], [question.file, other.file]),
        ]
        places: list[dict[str, Any]] = [
            {},
            {"parent": 0, "shared_length": len(question.ids) + len(replies[0])},
            {"parent": 0, "shared_length": len(question.ids)},
        ]
        dispatches = []
        for turn, (part, reply) in enumerate(zip((question, tool, other), replies, strict=True)):
            dispatch = make_dispatch(record.id, turn, part.ids, reply, images=[part.image], **places[turn])
            assert dispatch.response is not None
            prompt, files = whole[turn]
            logprobs = pack_floats(self.logprobs([*prompt, *reply], files, len(reply)))
            response = dispatch.response.model_copy(update={"output_logprobs": logprobs})
            dispatches.append(dispatch.model_copy(update={"response": response}))
        for dispatch in dispatches:
            await store.records.open_dispatch(dispatch)
            await store.records.close_dispatches([dispatch])
        values: dict[str, Any] = {"traj": [d.id for d in dispatches], "num_turns": 3, "score": score}
        values |= {"termination": Termination.ANSWERED.value, "policy_versions": [0]}
        await store.records.move(record.id, RecordStatus.SCORED, values)
        await store.tasks.finish_slot(held, score)
        return dispatches

    async def write_run(self, store: Store, groups: int, episodes: int = 2) -> None:
        """Every group played and settled; its first episode is the best."""
        await store.tasks.insert_new([make_task(seq, num_generations=episodes) for seq in range(groups)])
        for _ in range(groups * episodes):
            held = await claim(store)
            await self.play(store, held, 1.0 / (1 + held.traj_id))
        values = {"run": store.run, "db_connection_string": "x", "model_name_or_path": self.folder}
        config = SamplerConfig.model_validate(values)
        while await settle_next(store, "s", config) is not None:
            pass


@pytest.fixture
def player(tmp_path: Path, request: pytest.FixtureRequest) -> VisionPlayer:
    return VisionPlayer(write_vision_model(tmp_path / "model", getattr(request, "param", "smolvlm")))


@pytest.fixture
def played(bridge: StoreBridge, player: VisionPlayer) -> VisionPlayer:
    bridge(player.write_run(bridge.store, GROUPS))
    return player


def start_trainer(bridge: StoreBridge) -> int:
    """Its generation. What earlier ones have borrowed is free."""
    admission = Admission(groups_per_step=2, max_staleness=0)
    generation = bridge(bridge.store.runs.start_trainer("main", admission))
    bridge(bridge.store.data.release_claims("main", generation))
    return generation


def begin(bridge: StoreBridge, parallel: Parallel, folder: Path, **fields: object) -> RecordStream:
    config = make_config(model_name_or_path=folder, **fields)
    return RecordStream(bridge, config, parallel, trainer_generation=start_trainer(bridge))


def oldest_of(stream: RecordStream, step: int) -> set[str]:
    batch = stream.next_batch(step)
    assert batch is not None
    stream.commit(step)
    return {rid.split(":")[3] for rid in batch.record_ids}
