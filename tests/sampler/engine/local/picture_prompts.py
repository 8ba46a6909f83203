"""Prompts with pictures for a real engine over a tiny vision model, and transformers on their pixels as the reference."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForImageTextToText

from shared.images.families import family_of
from shared.images.torch_resizing import by_torch
from tests.sampler.engine.local.harness import ROUNDING, Server
from tests.shared.vision_models import write_vision_model

Size = tuple[int, int]  # height, width


@dataclass(frozen=True)
class PicturePrompt:
    """`sent`: with one image token for each picture. `ids`: with all of them. `inputs`: of the vision tower, of all pictures."""

    sent: list[int]
    ids: list[int]
    files: list[str]
    inputs: dict[str, Tensor]

    def body(self, *output: int, **more: Any) -> dict[str, Any]:
        """A request that goes on behind `output`."""
        sampling = {"max_new_tokens": 16, "ignore_eos": True, **more.pop("sampling", {})}
        given = {"input_ids": [*self.sent, *output], "image_data": self.files, "return_prompt_token_ids": True}
        return {**given, "sampling_params": sampling, "return_logprob": True, **more}


class PictureReference:
    """The folders' models in float64: version v is `folders[v]`."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.family: Any = family_of(folders[0])
        self._tokenizer = Tokenizer.from_file(str(folders[0] / "tokenizer.json"))
        load = AutoModelForImageTextToText.from_pretrained
        self.models: list[Any] = [load(folder, dtype=torch.float64).eval() for folder in folders]

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def prompt(self, pictures: Sequence[Image.Image], question: str = "what is it") -> PicturePrompt:
        """Each picture behind a text, and the question."""
        sent: list[int] = []
        ids: list[int] = []
        inputs: list[dict[str, Any]] = []
        for number, picture in enumerate(pictures):
            text = self.encode(f"picture {number} is")
            sent += [*text, self.family.placeholder_id]
            ids += [*text, *self.encode(self.family.tokens(picture.height, picture.width))]
            inputs.append(self.family.inputs(np.array(picture), by_torch))
        whole = {name: torch.from_numpy(np.concatenate([of[name] for of in inputs])) for name in inputs[0]}
        asked = self.encode(question)
        return PicturePrompt(
            sent + asked, ids + asked, [base64.b64encode(png(one)).decode() for one in pictures], whole
        )

    @torch.inference_mode()
    def log_probs(
        self,
        version: int,
        prompt: PicturePrompt,
        output: Sequence[int],
        *,
        start: int | None = None,
        temperature: float = 1.0,
    ) -> list[float]:
        """Of `output`, or of the prompt's tokens behind `start`. A sampled image token is read as a token of text."""
        start = len(prompt.ids) - 1 if start is None else start
        stand_in = next(id_ for id_ in range(self._tokenizer.get_vocab_size()) if id_ not in {*prompt.ids, *output})
        ids = torch.tensor([[*prompt.ids, *[stand_in if one == self.family.placeholder_id else one for one in output]]])
        given = {
            name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in prompt.inputs.items()
        }
        if "image_grid_thw" in given:
            given["mm_token_type_ids"] = (ids == self.family.placeholder_id).int()
        else:
            given = {name: tensor[None] for name, tensor in given.items()}
        model = self.models[version]
        embedding = model.get_input_embeddings()

        def as_image_token(module: Any, asked: Any, found: Tensor) -> Tensor:
            found[asked[0] == stand_in] = embedding.weight[self.family.placeholder_id]
            return found

        hook = embedding.register_forward_hook(as_image_token)
        logits = model(input_ids=ids, **given).logits[0, start:-1]
        hook.remove()
        targets = torch.tensor([*prompt.ids, *output][start + 1 :])
        found: list[float] = (logits / temperature).log_softmax(-1).gather(1, targets[:, None])[:, 0].tolist()
        return found

    def assert_exact(self, version: int, prompt: PicturePrompt, answer: dict[str, Any]) -> None:
        """The engine has read the prompt's tokens, and each log-prob is that of the pixels."""
        assert answer["prompt_token_ids"] == prompt.ids
        assert answer["meta_info"]["prompt_tokens"] == len(prompt.ids)
        self.assert_log_probs(self.log_probs(version, prompt, answer["output_ids"]), answer)

    @staticmethod
    def assert_log_probs(expected: Sequence[float], answer: dict[str, Any]) -> None:
        found = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
        worst = max(abs(a - b) for a, b in zip(found, expected, strict=True))
        assert worst <= ROUNDING, f"off by {worst:.2g} nats"


def write_seeing_model(folder: Path, family: str, seed: int) -> Path:
    """With weights by which pictures change log-probs by whole nats."""
    write_vision_model(folder, family, seed=seed)
    model: Any = AutoModelForImageTextToText.from_pretrained(folder)
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
        elif name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    return folder


def picture(height: int, width: int, seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


def answered(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = server.ok("/generate", body).json()
    return answer
