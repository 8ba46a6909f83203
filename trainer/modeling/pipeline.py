"""Rows through the stages of a model that `pipeline_parallel.py` has split. All stages have the rows; only hidden states travel.

    scores   forward of every row, without gradient
    train    1F1B: a stage forwards as many rows as stages follow it, then by turns one forward and one backward, so that it
             holds the activations of at most as many rows as there are stages from it on

        stage 0   F0 F1 F2 F3 ·  ·  ·  B0 F4 B1 …
        stage 1      F0 F1 F2 ·  ·  B0 F3 B1 …           of m rows and p stages a process waits (p − 1) / (m + p − 1) of the time
        stage 2         F0 F1 ·  B0 F2 B1 …
        stage 3            F0 B0 F1 B1 …

Both return the results of all rows on every stage: each computes the same loss and metrics, as processes that share a row do.
What balances experts is a loss of each stage's own layers, and joins the backward there.

It is not torch.distributed.pipelining, whose stages receive into buffers of one shape, inferred from the first micro-batch: rows
differ in length, and every stage knows each row's, so messages need neither padding nor a description.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from shared.errors import ConfigError
from trainer.modeling.attention import MaskBuilder
from trainer.modeling.forward import Forwarded, StageOutput, TreeLM, forward_stage, hidden_shape
from trainer.modeling.pipeline_parallel import Stage
from trainer.modeling.router_replay import InUse
from trainer.modeling.routing import Routing
from trainer.trees.packing import Row

LossOfRow = Callable[[int, Forwarded], Tensor]
Balance = Callable[[Routing], Tensor]


@dataclass(frozen=True, slots=True)
class _Backward:
    """What the backward of a row begins with, and where it ends.

    `received`: None on the first stage. `routing`: of the experts in this stage's layers. `experts`: those that routers repeat
    when layers are computed again.
    """

    result: Tensor
    received: Tensor | None
    routing: Routing | None
    experts: InUse | None


@dataclass(frozen=True, slots=True)
class _Done:
    """Of the rows that a stage has forwarded, without a graph. `results`: of the last stage alone, since hidden states would fill
    the memory of the others, row after row."""

    results: list[Forwarded] = field(default_factory=list)
    routings: list[Routing | None] = field(default_factory=list)

    def add(self, result: Forwarded | StageOutput) -> None:
        self.routings.append(None if result.routing is None else result.routing.detached())
        if isinstance(result, Forwarded):
            self.results.append(result.detached())


class RowPipeline:
    """The stages of `lm`. All processes of a pipeline must make the same calls with the same rows."""

    def __init__(
        self,
        lm: TreeLM,
        device: torch.device,
        *,
        chunk: int = 512,
        attn: MaskBuilder,
        with_entropy: bool = False,
        reduce_each_row: bool = False,
    ) -> None:
        assert lm.stage is not None, "of a model in stages"
        self._lm = lm
        self._stage: Stage = lm.stage
        self._device = device
        self._options: dict[str, Any] = {"chunk": chunk, "attn": attn, "with_entropy": with_entropy}
        self._with_entropy = with_entropy
        self._reduce_each_row = reduce_each_row
        self._sent: list[tuple[dist.Work, Tensor]] = []  # a message's memory must last until it has left

    @torch.no_grad()
    def scores(self, rows: Sequence[Row]) -> list[Forwarded]:
        done = _Done()
        for row in rows:
            done.add(self._forward(row.to(self._device))[0])
        return self._of_last(done, rows)

    def train(self, rows: Sequence[Row], loss: LossOfRow, balance: Balance | None = None) -> list[Forwarded]:
        """`loss` of a row, by its number: called on the last stage alone. `balance`: of a row's experts in this stage's layers, a
        loss that each stage adds; called before the row's backward. Gradients travel between shards after the last row, unless
        `reduce_each_row`.
        """
        peers, waiting = self._stage.pipeline.peers, list[_Backward]()
        ahead = min(peers.size - peers.rank - 1, len(rows))
        results, done = _Done(), 0
        for index, row in enumerate(rows):
            result, received = self._forward(row.to(self._device))
            ended = loss(index, result) if isinstance(result, Forwarded) else result.hidden
            replay = self._lm.replay
            waiting.append(_Backward(ended, received, result.routing, None if replay is None else replay.in_use))
            results.add(result)
            if index >= ahead:
                self._backward(waiting.pop(0), balance, is_last_row=done == len(rows) - 1)
                done += 1
        while waiting:
            self._backward(waiting.pop(0), balance, is_last_row=done == len(rows) - 1)
            done += 1
        return self._of_last(results, rows)

    def rehearse(self, rows: Sequence[Row], errors: tuple[type[Exception], ...]) -> None:
        """Each stage alone, on made-up hidden states. Raises RuntimeError on every stage if one of `errors` is raised on any:
        later it would leave the others waiting.
        """
        problem = None
        try:
            for row in rows:
                result, _ = self._computed(row.to(self._device), self._made_up(row))
                ended = result.logprob_E if isinstance(result, Forwarded) else result.hidden
                if ended.requires_grad:
                    ended.sum().backward()
        except errors as exc:
            problem = f"{type(exc).__name__}: {exc}"
        peers = self._stage.pipeline.peers
        for number, of_stage in enumerate(peers.gather_objects(problem)):
            if of_stage:
                raise RuntimeError(f"stage {number}: {of_stage}")

    def _made_up(self, row: Row) -> Tensor | None:
        if self._stage.is_first:
            return None
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(self._shape(row), generator=generator).to(self._device, self._stage.dtype)
        return hidden.requires_grad_(torch.is_grad_enabled() and self._stage.sends_gradient)

    def _shape(self, row: Row) -> tuple[int, int, int]:
        return hidden_shape(self._lm, row.to(self._device), self._options["attn"])

    def _forward(self, row: Row) -> tuple[Forwarded | StageOutput, Tensor | None]:
        """The result of this stage, which is sent on, and what it received."""
        stage, received = self._stage, None
        if not stage.is_first:
            received = torch.empty(self._shape(row), dtype=stage.dtype, device=self._device)
            dist.recv(received, group=stage.pipeline.forwards, group_src=stage.pipeline.peers.rank - 1)
            received.requires_grad_(torch.is_grad_enabled() and stage.sends_gradient)
        result, received = self._computed(row, received)
        if isinstance(result, StageOutput):
            self._send(result.hidden, stage.pipeline.forwards, stage.pipeline.peers.rank + 1)
        return result, received

    def _computed(self, row: Row, received: Tensor | None) -> tuple[Forwarded | StageOutput, Tensor | None]:
        result = forward_stage(self._lm, row, received, **self._options)
        if isinstance(result, StageOutput) and result.hidden.dtype != self._stage.dtype:
            raise ConfigError(
                f"pp_size is {self._stage.pipeline.peers.size}, but a layer's hidden states are {result.hidden.dtype}; expected "
                f"{self._stage.dtype}: use pp_size 1"
            )
        return result, received

    def _backward(self, row: _Backward, balance: Balance | None, *, is_last_row: bool) -> None:
        stage, gradient = self._stage, None
        if isinstance(self._lm, FSDPModule):
            self._lm.set_requires_gradient_sync(is_last_row or self._reduce_each_row)
        if stage.receives_gradient:
            gradient = torch.empty_like(row.result, memory_format=torch.contiguous_format)
            dist.recv(gradient, group=stage.pipeline.backwards, group_src=stage.pipeline.peers.rank + 1)
        if self._lm.replay is not None and row.experts is not None:
            self._lm.replay.use_again(row.experts)
        ends: list[tuple[Tensor, Tensor | None]] = [(row.result, gradient)]
        if balance is not None and row.routing is not None:
            ends.append((balance(row.routing), None))
        ends = [(end, of_end) for end, of_end in ends if end.requires_grad]
        if ends:
            torch.autograd.backward([end for end, _ in ends], [of_end for _, of_end in ends])
        if row.received is not None and stage.sends_gradient:
            assert row.received.grad is not None, "the loss is one of the hidden states"
            self._send(row.received.grad, stage.pipeline.backwards, stage.pipeline.peers.rank - 1)

    def _send(self, tensor: Tensor, group: dist.ProcessGroup, target: int) -> None:
        message = tensor.detach().contiguous()
        work = dist.isend(message, group=group, group_dst=target)
        assert work is not None
        self._sent = [(earlier, held) for earlier, held in self._sent if not earlier.is_completed()]
        self._sent.append((work, message))

    def _of_last(self, done: _Done, rows: Sequence[Row]) -> list[Forwarded]:
        """The last stage's results, on all stages; the routing is that of each stage's own layers."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()
        peers = self._stage.pipeline.peers
        exact = torch.float64 if self._stage.dtype == torch.float64 else torch.float32
        lengths = [length for row in rows for length in self._lengths(row)]
        values = torch.empty(sum(lengths), dtype=exact, device=self._device)
        if self._stage.is_last:
            columns = [column.to(exact) for result in done.results for column in result.columns()]
            values = torch.cat([values[:0], *columns])
        dist.broadcast(values, group=peers.group, group_src=peers.size - 1)
        parts = iter(torch.split(values, lengths))
        return [self._parsed(row, parts, routing) for row, routing in zip(rows, done.routings, strict=True)]

    def _lengths(self, row: Row) -> list[int]:
        """Of the columns of a row's result."""
        return [row.num_entries] * (1 + self._with_entropy + bool(len(row.truncation_U)))

    def _parsed(self, row: Row, parts: Any, routing: Routing | None) -> Forwarded:
        logprob_E = next(parts)
        entropy_E = next(parts) if self._with_entropy else None
        outside_E = next(parts).bool() if len(row.truncation_U) else None
        return Forwarded(logprob_E, entropy_E, outside_E, routing)
