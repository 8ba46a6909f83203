"""A rank of a planned trainer: how the ranks share a model, the row that they compute, and what one of them holds at a moment."""

from dataclasses import dataclass, fields

LOGPROB_CHUNK = 1024  # the trainer's own default


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How `ranks` processes share a model: `tp` of one line have parts of each layer, `cp` slices of each row, `pp` consecutive
    layers, and `ep` some of the experts."""

    ranks: int
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1

    @property
    def stage_ranks(self) -> int:
        return self.ranks // self.pp

    @property
    def shards(self) -> int:
        """Over how many FSDP2 cuts each tensor, or each part of one."""
        return self.stage_ranks // self.tp

    @property
    def expert_shards(self) -> int:
        """Over how many FSDP2 cuts an expert that `ep` spread."""
        return self.stage_ranks // self.ep

    @property
    def data(self) -> int:
        """Parts of the data: ranks with other rows."""
        return self.stage_ranks // (self.tp * self.cp)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRow:
    """The largest row, and the settings of how it is computed. `rows`: of a part of the data in one step. `mixed`: whether
    mixed_precision is bf16."""

    tokens: int
    trained_tokens: int
    rows: int = 1
    logprob_chunk: int = LOGPROB_CHUNK
    mixed: bool = True
    checkpointing: bool = False
    reduces_each: bool = False  # reduce_each_row: gradients are reduced after each row, not after the last
    activation_offload: bool = False
    optimizer_offload: bool = False
    received: float = 1.0  # with ep_size: tokens that this rank's experts receive, by an equal share
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

    # 7 parameters: the parts of a moment
    def at(
        self,
        moment: str,
        *,
        gradients: int = 0,
        gathered: int = 0,
        activations: int = 0,
        logits: int = 0,
        working: int = 0,
    ) -> "RankMemory":
        """The same weights and states at another moment; not by `replace`, which took most of a plan's time."""
        return RankMemory(
            moment=moment, weights=self.weights, optimizer=self.optimizer, gradients=gradients, gathered=gathered,
            activations=activations, logits=logits, working=working, host=self.host,
        )  # fmt: skip

    @property
    def total(self) -> int:
        """Of `PARTS`."""
        on_device = self.gathered + self.activations + self.logits + self.working
        return self.weights + self.optimizer + self.gradients + on_device


PARTS = tuple(field.name for field in fields(RankMemory) if field.name not in ("moment", "host"))
