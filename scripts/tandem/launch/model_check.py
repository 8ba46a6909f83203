"""One table of what a model must have before it is trained or served: `tandem check-model MODEL`, and the launcher at its start.

    files ─▶ tensors ─▶ head ─▶ dtype ─▶ tokenizer ─▶ end of a reply ─▶ chat template ─▶ images      each a row: found, expected,
                                                                       (of a model with a vision tower)            remedy

A row that failed is what trainer, engine or sampler would refuse later, or would compute differently from each other. Torch-free
but for the tensors' names, which a program of its own reads where torch is installed.
"""

import contextlib
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from sampler.core.engines.pool.engines import check_vocabulary, vocabulary_of
from sampler.core.rendering.chosen_template import TemplateChoice, chosen_template
from sampler.core.rendering.context import Context
from sampler.core.rendering.template import ChatTemplate
from sampler.core.rendering.tool_prompt import shows_tools
from shared.errors import ConfigError, DataError
from shared.files.json_file import read_json_file
from shared.processes.run_module import command
from shared.weights.layout import CONVERTIBLE, CheckpointLayout, read_layout, weight_files
from shared.weights.whole_model import check_loaded, check_tied, is_tied, some

DEFAULT_CHOICE = TemplateChoice("auto", "hermes", {})
SHOWN_SIZE = (768, 1024)  # height, width of an image, for its number of tokens


class CheckState(StrEnum):
    OK = "ok"
    NOTE = "note"  # it works, and is worth knowing
    FAILED = "failed"  # it cannot work
    UNKNOWN = "not checked"


class CheckFinding(NamedTuple):
    """What a check found. `remedy`: what to do; empty if nothing is."""

    verdict: CheckState
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """A line of the table."""

    name: str
    verdict: CheckState
    found: str
    expected: str
    remedy: str = ""


def check_model(folder: Path, choice: TemplateChoice = DEFAULT_CHOICE) -> list[ModelCheck]:
    """Every row of the table, in order; after files that cannot be read only these. Reads, writes nothing."""
    try:
        layout = _files(folder)
    except (ConfigError, DataError) as exc:
        expected = "config.json, tokenizer.json and whole *.safetensors"
        return [ModelCheck("files", CheckState.FAILED, str(exc), expected, "copy or save the model's folder again")]
    read = f"{len(weight_files(folder))} files of weights, {len(layout.tensors)} tensors, whole"
    rows = [
        _checked(folder, "tensors", "every tensor of the model in its files", lambda: _tensors(folder)),
        _checked(folder, "head", "what tie_word_embeddings of config.json says", lambda: _head(folder)),
        _checked(folder, "dtype", f"some of {', '.join(CONVERTIBLE)}", lambda: _dtype(layout)),
        _checked(folder, "tokenizer", "ids below the rows of the embedding", lambda: _tokenizer(folder, choice)),
        _checked(folder, "end of a reply", "an end-of-sequence token of the model", lambda: _end_of_reply(folder)),
        _checked(
            folder, "chat template", "exact turns, and the tools in the prompt", lambda: _template(folder, choice)
        ),
    ]
    if sees(folder):
        expected = "a processor whose tokens are known, and a chat template that shows images"
        rows.append(_checked(folder, "images", expected, lambda: _images(folder, choice)))
    return [ModelCheck("files", CheckState.OK, read, "every file whole"), *rows]


def sees(folder: Path) -> bool:
    """Whether the model has a vision tower. Raises ConfigError, DataError."""
    config = read_json_file(folder / "config.json", "a model's configuration", keys_once=False)
    return isinstance(config, dict) and isinstance(config.get("vision_config"), dict)


def failures(rows: Sequence[ModelCheck]) -> list[ModelCheck]:
    return [row for row in rows if row.verdict is CheckState.FAILED]


def _checked(folder: Path, name: str, expected: str, check: Callable[[], CheckFinding]) -> ModelCheck:
    """An error of the check is a row that failed: its message says what was found, and behind "expected" what to do."""
    try:
        finding = check()
    except (ConfigError, DataError) as exc:
        text, _, remedy = str(exc).replace(f"{folder}: ", "").partition("; expected ")
        finding = CheckFinding(CheckState.FAILED, text, remedy)
    return ModelCheck(name, finding.verdict, finding.text, expected, finding.remedy)


def _files(folder: Path) -> CheckpointLayout:
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ConfigError(f"{folder}: no {name}")
    read_json_file(folder / "config.json", "a model's configuration", keys_once=False)
    return read_layout(folder)


def _tensors(folder: Path) -> CheckFinding:
    if find_spec("torch") is None or find_spec("transformers") is None:
        return CheckFinding(CheckState.UNKNOWN, "no torch here", "run it where the trainer or the engine is")
    done = subprocess.run(
        command("sampler.engine.local.whole", str(folder)), stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    try:
        loading: Mapping[str, Any] = json.loads(done.stdout)
    except ValueError:
        why = (done.stderr.decode(errors="replace").strip().splitlines() or ["no answer"])[-1]
        return CheckFinding(CheckState.FAILED, why, "a model that transformers can make")
    if "error" in loading:
        return CheckFinding(CheckState.FAILED, loading["error"], "a model that transformers can load")
    check_loaded(folder, loading)
    unexpected = loading["unexpected_keys"]
    if unexpected:
        text = f"{loading['tensors']}, and {len(unexpected)} that the model does not have: {some(unexpected)}"
        return CheckFinding(CheckState.NOTE, text, "none: they are not loaded, and published versions lack them")
    return CheckFinding(CheckState.OK, f"all {loading['tensors']}")


def _head(folder: Path) -> CheckFinding:
    check_tied(folder, weight_files(folder))
    return CheckFinding(CheckState.OK, "tied to the embedding" if is_tied(folder) else "of its own")


def _dtype(layout: CheckpointLayout) -> CheckFinding:
    counts = Counter(tensor.dtype for tensor in layout.tensors.values())
    text = ", ".join(f"{dtype} ({count})" for dtype, count in sorted(counts.items()))
    if not counts.keys() & set(CONVERTIBLE) or any("float8" in dtype for dtype in counts):
        return CheckFinding(
            CheckState.FAILED, text, "the weights before quantization: a trainer cannot train quantized ones"
        )
    return CheckFinding(CheckState.OK, text)


def _tokenizer(folder: Path, choice: TemplateChoice) -> CheckFinding:
    template = ChatTemplate.from_dir(folder, choice.variables, template_text="{{ messages }}")
    with contextlib.suppress(ConfigError):  # the row of the template says so
        template = ChatTemplate.from_dir(folder, choice.variables)
    check_vocabulary(folder, template)
    size, ids = vocabulary_of(folder), template.tokenizer.get_vocab(with_added_tokens=True).values()
    text = f"ids up to {max(ids)}, {size} rows of the embedding"
    if size is not None and max(ids) >= size:
        return CheckFinding(
            CheckState.NOTE, text, "none if no task has the tokens beyond; else resize_token_embeddings"
        )
    return CheckFinding(CheckState.OK, text)


def _end_of_reply(folder: Path) -> CheckFinding:
    ids, size = sorted(set(_end_ids(folder))), vocabulary_of(folder)
    beyond = [token for token in ids if size is not None and not 0 <= token < size]
    if beyond:
        remedy = "eos_token_id of config.json and generation_config.json as the model's producer wrote them"
        return CheckFinding(CheckState.FAILED, f"id {beyond[0]}, {size} rows of the embedding", remedy)
    if not ids:
        remedy = "eos_token_id in generation_config.json: without it every reply has max_new_tokens"
        return CheckFinding(CheckState.FAILED, "none", remedy)
    return CheckFinding(CheckState.OK, f"ids {', '.join(map(str, ids))}")


def _end_ids(folder: Path) -> Iterator[int]:
    """Of both configurations and of the tokenizer."""
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            config = read_json_file(folder / name, "a model's configuration", keys_once=False)
            for part in (config, config.get("text_config")) if isinstance(config, dict) else ():
                value = part.get("eos_token_id") if isinstance(part, dict) else None
                yield from [
                    token for token in (value if isinstance(value, list) else [value]) if isinstance(token, int)
                ]
    template = ChatTemplate.from_dir(folder, {}, template_text="{{ messages }}")
    token = template.tokenizer.token_to_id(template.special_tokens.get("eos_token", ""))
    if token is not None:
        yield token


def _template(folder: Path, choice: TemplateChoice) -> CheckFinding:
    template = chosen_template(folder, choice)
    if choice.chat_template == "auto" and not shows_tools(ChatTemplate.from_dir(folder, choice.variables)):
        text = f"it shows no tools: they are put into the system message, in the format of {choice.parser}"
        return CheckFinding(CheckState.NOTE, text, "none, or a template of yours (chat_template)")
    return CheckFinding(CheckState.OK, f"digest {template.digest}")


def _images(folder: Path, choice: TemplateChoice) -> CheckFinding:
    """Renders a prompt with an image."""
    template = chosen_template(folder, choice)
    images = template.require_images()
    if images is None:
        return CheckFinding(CheckState.NOTE, "none: the model is used as one of text")
    height, width = SHOWN_SIZE
    reference = {"type": "image", "sha256": "0" * 64, "height": height, "width": width}
    context = Context(template)
    context.start([{"role": "user", "content": [reference, {"type": "text", "text": "."}]}])
    return CheckFinding(
        CheckState.OK, f"{images.family.name}: an image of {width} x {height} has {context.images[0].count} tokens"
    )
