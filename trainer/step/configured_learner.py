"""A learner from the settings that reinforcement learning and supervised training share."""

from trainer.losses import LossConfig
from trainer.modeling.memory import MemorySettings
from trainer.process.parallel import Parallel
from trainer.settings.model import ModelSettings
from trainer.settings.optimizer import OptimizerConfig
from trainer.step.learner import Learner, open_learner


def configured_learner(
    model: ModelSettings,
    seed: int,
    loss: LossConfig,
    optimizer: OptimizerConfig,
    parallel: Parallel,
    memory: MemorySettings,
    *,
    with_entropy: bool = False,
    keep_logprobs: bool = False,
) -> Learner:
    """`open_learner` of these settings; `seed` is that of new adapters."""
    return open_learner(
        model.model_name_or_path,
        loss,
        optimizer,
        parallel,
        trainable=model.trainable(seed),
        dtype=model.dtype,
        attn_implementation=model.attn_implementation,
        prefix_trees=model.prefix_trees,
        dropout=model.dropout,
        compile_layers=model.compile_layers,
        with_entropy=with_entropy,
        keep_logprobs=keep_logprobs,
        memory=memory,
    )
