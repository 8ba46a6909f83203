"""A rank of a planned trainer: how the ranks share a model, the row that they compute, and what one of them holds at a moment."""

from dataclasses import dataclass, fields

LOGPROB_CHUNK = 1024  # the trainer's own default


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How `ranks` processes share a model: `tp` of one line have parts of each layer, `cp` slices of each row."""

    ranks: int
    tp: int = 1
    cp: int = 1

    @property
    def shards(self) -> int:
        """Over how many FSDP2 cuts each tensor, or each part of one."""
        return self.ranks // self.tp

    @property
    def data(self) -> int:
        """Parts of the data: ranks with other rows."""
        return self.ranks // (self.tp * self.cp)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRow:
    """The largest row, and the settings of how it is computed. `mixed`: mixed_precision bf16."""

    tokens: int
    trained_tokens: int
    logprob_chunk: int = LOGPROB_CHUNK
    mixed: bool = True
    checkpointing: bool = False
    activation_offload: bool = False
    optimizer_offload: bool = False
    on_cpu: bool = False  # float32 on processors: norms that keep their input alone, the vocabulary in blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes of one rank on its GPU, at one moment of a step. `host`: its bytes in main memory."""

    moment: str
    weights: int
    optimizer: int
    gradients: int = 0
    gathered: int = 0
    activations: int = 0
    logits: int = 0
    working: int = 0
    host: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, part) for part in PARTS)


PARTS = tuple(field.name for field in fields(RankMemory) if field.name not in ("moment", "host"))
