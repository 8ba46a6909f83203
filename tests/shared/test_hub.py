"""Models by their names on the Hugging Face Hub, from a cache that the test makes."""

import shutil
from pathlib import Path

import pytest

from sampler.core.rendering.template import ChatTemplate
from sampler.engine.keeper.config import KeeperConfig
from sampler.settings import SamplerConfig
from shared.errors import ConfigError
from shared.files.hub import model_folder
from tandem.launch.settings import LaunchConfig
from trainer.settings.config import TrainerConfig

EXAMPLE = Path(__file__).parents[2] / "assets" / "example" / "model"
URI = "mongodb://127.0.0.1:1"


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundled model as `me/tiny`, in a cache laid out as `huggingface_hub` lays out its own."""
    cached = tmp_path / "hub" / "models--me--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("c0ffee")
    folder = cached / "snapshots" / "c0ffee"
    shutil.copytree(EXAMPLE, folder)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return folder


def test_each_service_takes_a_model_by_its_name(snapshot: Path) -> None:
    common = ["--run", "r", "--db_connection_string", URI, "--model_name_or_path", "me/tiny"]
    sampler = SamplerConfig.load([*common, "--other_policies", '{"judge": "me/tiny@main"}'])
    assert ChatTemplate.from_dir(sampler.model_name_or_path)
    assert {sampler.model_name_or_path, *sampler.other_policies.values()} == {snapshot}
    assert KeeperConfig.load(common).model_name_or_path == snapshot
    trainer = TrainerConfig.load(
        [*common, "--kl_coefficient", "0.1", "--drop_zero_advantage", "false", "--reference_model", "me/tiny"]
    )
    assert trainer.model.model_name_or_path == snapshot
    assert trainer.loss.kl is not None
    assert trainer.loss.kl.reference_model == snapshot
    assert LaunchConfig.load(["r", "--model", "me/tiny"]).model == snapshot


def test_a_folder_of_that_name_comes_first_and_other_paths_are_as_they_are(snapshot: Path, tmp_path: Path) -> None:
    (tmp_path / "me" / "tiny").mkdir(parents=True)
    assert model_folder(Path("me/tiny")) == Path("me/tiny")
    for path in ("/models/tiny", "../me/other", "a/b/c", "tiny"):
        assert model_folder(Path(path)) == Path(path)


def test_a_name_that_neither_cache_nor_hub_has_is_refused_with_the_cause(snapshot: Path) -> None:
    words = r"model_name_or_path.*me/huge.*no such folder here, and the Hugging Face Hub does not give it: \w+"
    with pytest.raises(ConfigError, match=words):
        KeeperConfig.load(["--run", "r", "--db_connection_string", URI, "--model_name_or_path", "me/huge"])
