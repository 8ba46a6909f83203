"""A model with a tensor that comes from none of its files is refused by trainer, engine, verification and export alike."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from sampler.engine.local.runner import EngineSize, UnsupportedModelError, load
from shared.errors import ConfigError
from tests.trainer.builders import tiny_model
from trainer.losses import LossConfig
from trainer.modeling.model import load_model
from trainer.process.parallel import Parallel
from trainer.settings.optimizer import OptimizerConfig
from trainer.step.opening import open_learner

NORM = "model.layers.1.input_layernorm.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_model().save_pretrained(tmp_path)
    return tmp_path


def rewrite(folder: Path, drop: str = "", **config: object) -> None:
    weights = load_file(folder / "model.safetensors")
    weights.pop(drop, None)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    found = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(found | config))


@pytest.mark.parametrize(
    ("drop", "config", "said"),
    [
        (NORM, {}, f"1 tensors of the model are in none of its files: {NORM}"),
        ("", {"tie_word_embeddings": False}, "in none of its files: lm_head.weight"),
        (
            "",
            {"vocab_size": 41},
            r"have another shape than config.json says, such as model.embed_tokens.weight: \(37, 32\)",
        ),
    ],
)
def test_a_model_that_is_not_whole_is_refused_by_trainer_and_engine(
    folder: Path, alone: Parallel, drop: str, config: dict[str, object], said: str
) -> None:
    rewrite(folder, drop, **config)
    with pytest.raises(ConfigError, match=said):
        load_model(folder)
    with pytest.raises(ConfigError, match=said):
        open_learner(folder, LossConfig(), OptimizerConfig(), alone)
    with pytest.raises(UnsupportedModelError, match=said):
        load(folder, EngineSize())


def test_a_head_of_its_own_in_a_tied_model_is_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"] * 2
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"tie_word_embeddings is true, but lm_head.weight differs"):
        load_model(folder)
    with pytest.raises(UnsupportedModelError, match=r"tie_word_embeddings is true, but lm_head.weight differs"):
        load(folder, EngineSize())


def test_what_transformers_cannot_load_is_one_error_with_the_folder(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"the model cannot be loaded: .*FlashAttention2"):
        load_model(folder, attn_implementation="flash_attention_2")
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ConfigError, match=f"{folder}: the model cannot be loaded: SafetensorError"):
        load_model(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=f"{folder}: the model cannot be loaded: "):
        load_model(folder)
