"""An adapter that is trained in stages is published, exported and continued as the one of one process."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from shared.weights.adapters import ADAPTER_CONFIG, ADAPTER_FOLDER, ADAPTER_WEIGHTS
from shared.weights.files import WEIGHTS_FILE, manifest_of
from tests.trainer.builders import relative_difference, tiny_model
from tests.trainer.launched import exact_learner, take_steps
from tests.trainer.layouts import MAX_TOKENS, Layout, run
from trainer.checkpoints.checkpoint import Checkpoints
from trainer.checkpoints.folders import latest
from trainer.export import ExportConfig, export
from trainer.process.parallel import Parallel
from trainer.publishing.version_files import version_files
from trainer.settings.config import TrainerConfig

pytestmark = pytest.mark.slow

ONE, STAGES, STAGES_AND_DATA = Layout(1), Layout(1, pp=3), Layout(2, pp=2)
LORA = {"lora_rank": 4, "lora_alpha": 8.0}
LAST_LAYER = {"lora_target_modules": [f"model.layers.2.{name}" for name in ("self_attn.q_proj", "mlp.up_proj")]}
CASES = [
    pytest.param(LORA, STAGES_AND_DATA, ["down_proj", "gate_proj"], id="lora"),
    pytest.param(LORA | LAST_LAYER | {"use_dora": True}, STAGES, LAST_LAYER["lora_target_modules"], id="dora"),
]


@pytest.mark.parametrize(("adapter", "layout", "targets"), CASES)
def test_an_adapter_from_stages_is_that_of_one_process(
    adapter: dict[str, Any], layout: Layout, targets: list[str], tmp_path: Path
) -> None:
    """Its tensors, its description, byte by byte, and the weights that engines make of it; a DoRA may be of one stage alone."""
    source = tmp_path / "model"
    tiny_model(tied=False, layers=3).save_pretrained(source)

    def work(parallel: Parallel) -> None:
        config = TrainerConfig(
            run="one",
            db_connection_string="given",
            model_name_or_path=source,
            dtype="float64",
            publish_mode="adapter",
            pp_size=parallel.pp_size,
            **adapter,
        )
        trainable = config.model.trainable(0)
        learner = exact_learner(source, parallel, trainable=trainable)
        files = version_files(config, learner, parallel)
        if parallel.is_main:
            files.begin(manifest_of(source))
        take_steps(learner, 2, MAX_TOKENS, parallel)
        accounting = {"model_name_or_path": str(source), "trainable": trainable.model_dump(mode="json")}
        folder = tmp_path / str(parallel.pp_size)
        Checkpoints(folder / "checkpoints", parallel, asynchronous=False).save(learner, accounting)
        state = files.gather()
        if parallel.is_main:
            for full in (False, True):
                files.write(folder / f"full-{full}", state, full=full)

    for each in (ONE, layout):
        run(each, work)
    checkpoint = latest(tmp_path / str(layout.pp) / "checkpoints")
    assert checkpoint
    exported = tmp_path / "exported"
    export(ExportConfig(checkpoint=checkpoint, output_dir=exported, adapter=True))
    expected = tmp_path / "1" / "full-False" / ADAPTER_FOLDER
    found = [tmp_path / str(layout.pp) / f"full-{full}" / ADAPTER_FOLDER for full in (False, True)]
    for folder in (*found, exported):
        assert (folder / ADAPTER_CONFIG).read_bytes() == (expected / ADAPTER_CONFIG).read_bytes()
        assert all(f'"{name}"' in (folder / ADAPTER_CONFIG).read_text() for name in targets)
        tensors, of_one = load_file(folder / ADAPTER_WEIGHTS), load_file(expected / ADAPTER_WEIGHTS)
        assert tensors.keys() == of_one.keys()
        assert relative_difference(tensors, of_one) < 1e-9
    merged, merged_of_one = (load_file(tmp_path / f"{n}" / "full-True" / WEIGHTS_FILE) for n in (layout.pp, 1))
    assert relative_difference(merged, merged_of_one) < 1e-9
