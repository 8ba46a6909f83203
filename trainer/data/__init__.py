"""From the run's documents to one step's rows: choosing groups, reading them, reading ahead."""

from trainer.data.advantages import BatchTurn, register_normalization

__all__ = ["BatchTurn", "register_normalization"]
