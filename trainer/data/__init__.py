"""From the run's documents to one step's rows: choosing groups, reading them, reading ahead."""

from trainer.settings.normalizations import BatchTurn, register_normalization

__all__ = ["BatchTurn", "register_normalization"]
