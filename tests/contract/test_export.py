"""An exported checkpoint is served: both engines load it and give the log-probs that transformers gives."""

from pathlib import Path

import torch

from sampler.core.engines.client.engine_client import EngineClient
from tests.contract.engines import Engine, Reference
from tests.contract.test_generate import PROMPT, ask
from trainer.checkpoints.checkpoint import Checkpoints
from trainer.export import ExportConfig, export
from trainer.losses import LossConfig
from trainer.process.parallel import parallel_session
from trainer.settings.optimizer import OptimizerConfig
from trainer.step.opening import open_learner


async def test_an_exported_checkpoint_is_served(engine: Engine, client: EngineClient, tmp_path: Path) -> None:
    exported = export_moved_weights(engine.models[0], tmp_path)
    await client.pause(engine.url, "abort")
    await client.update_weights_from_disk(engine.url, str(exported), engine.label)
    await client.resume(engine.url)
    found = await ask(engine, client, PROMPT)
    Reference([exported, exported]).assert_truthful(PROMPT, found)
    assert engine.reference.untrue(PROMPT, found), "the weights did not move: no proof"


def export_moved_weights(model: Path, folder: Path) -> Path:
    """A checkpoint of the model with its weights moved, exported."""
    with parallel_session("cpu", num_threads=1) as parallel:
        learner = open_learner(model, LossConfig(), OptimizerConfig(), parallel)
        learner.steps_done = 1
        with torch.no_grad():
            for parameter in learner.lm.parameters():
                parameter.mul_(1.05)
        Checkpoints(folder, parallel).save(learner, {"model_name_or_path": str(model)})
    arguments = ["--checkpoint", str(folder / "step-000001"), "--output_dir", str(folder / "exported")]
    return export(ExportConfig.load(arguments)).path
