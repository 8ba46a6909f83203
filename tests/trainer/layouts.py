"""The same steps on any number of processes: python -m tests.trainer.layouts [--layouts 1,2,4,1x2,2x2] [--experts] [--replay]
    [--device cuda] [--steps_only] [--optimizer_offload] [--by_turns]

A layout is DATAxTPxCPxPPxEP: so many parts of the data, so many processes for each layer, so many for each row's tokens, so many
stages, and so many processes that hold the experts together. Every layout takes 3 float64 steps on the same groups, and leaves a
checkpoint after 2, from which each other layout continues. Printed: the largest difference of any parameter from those of one
process, relative to that parameter; the exit status is 1 beyond `--most`. Processes are forked from one, which spares each the
import of torch; with `--device cuda` each has a GPU.
"""

import argparse
import gc
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import PreTrainedModel

from shared.processes.mongod import free_port
from tests import hostgpu
from tests.trainer.builders import relative_difference, tiny_experts_model, tiny_model
from tests.trainer.launched import SAVED_STEP, exact_learner, full_parameters, take_steps
from trainer.checkpoints import checkpoint, folders, restore
from trainer.losses import LossConfig
from trainer.process.parallel import Parallel, parallel_session
from trainer.publishing.weights import gather_state
from trainer.publishing.whole_state import whole_state
from trainer.settings.memory import MemorySettings
from trainer.settings.trained_parts import EVERYTHING, Trainable
from trainer.step import residence
from trainer.step.learner import Learner

LAST_STEP = 3
MAX_TOKENS = 30  # many rows, of another number on every rank
TURNS = MemorySettings(reference_offload=True)  # of a loss with a KL term, and only on a device that is not the CPU
BALANCED = LossConfig(router_aux_loss_coef=0.1)  # a hundred times the usual one, so that an error shows


@dataclass(frozen=True, slots=True)
class Layout:
    data: int
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1

    @property
    def processes(self) -> int:
        return self.data * self.tp * self.cp * self.pp

    def __str__(self) -> str:
        return f"{self.data}x{self.tp}x{self.cp}x{self.pp}" + (f"x{self.ep}" if self.ep > 1 else "")


def run(layout: Layout, work: Callable[[Parallel], None], device: str = "cpu") -> None:
    """`work` in as many forked processes as the layout has. Raises RuntimeError when one of them fails."""
    if not _forks_compute_gradients():
        pytest.skip(
            "this build of torch computes no gradients in forks of a process that has computed some: run it alone"
        )
    gc.collect()  # groups of earlier sessions: a child that collects them waits forever for threads that it does not have
    port = str(free_port())
    children = [_fork(rank, layout, port, work, device) for rank in range(layout.processes)]
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    if any(statuses):
        raise RuntimeError(f"layout {layout}: the processes ended with {statuses}; see their messages above")


def _forks_compute_gradients() -> bool:
    """PyTorch's CUDA build refuses them on a machine without a GPU, too: its engine has threads, which a fork has not."""
    pid = os.fork()
    if pid == 0:
        try:
            torch.ones(1, requires_grad=True).sum().backward()
        except RuntimeError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _fork(rank: int, layout: Layout, port: str, work: Callable[[Parallel], None], device: str) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    gc.freeze()
    status = 1
    try:
        place = {"RANK": rank, "WORLD_SIZE": layout.processes, "LOCAL_RANK": rank, "MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"}
        sizes = {"tp_size": layout.tp, "cp_size": layout.cp, "pp_size": layout.pp, "ep_size": layout.ep}
        with parallel_session(device, num_threads=1, **sizes) as parallel:
            work(parallel)
        status = 0
    except BaseException:  # noqa: BLE001  # a forked process must never return into its parent's stack
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


class Comparison:
    """Parameters after the steps, by layout; `metrics` of the last step of those that began at the start."""

    def __init__(
        self,
        folder: Path,
        model: PreTrainedModel,
        loss: LossConfig,
        trainable: Trainable,
        *,
        replayed: bool = False,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        self._folder = folder
        self._max_tokens = max_tokens
        self.device = "cpu"
        self.memory = TURNS
        self.by_turns = False  # with engines: between steps all states are on the host
        self._loss = loss
        self._trainable = trainable
        self._replayed = replayed
        self._model = folder / "model"
        self.metrics: dict[Layout, dict[str, float]] = {}
        model.save_pretrained(self._model)

    def trained(self, layout: Layout) -> dict[str, Tensor]:
        """After the last step, with a checkpoint left at `SAVED_STEP`."""

        def work(parallel: Parallel) -> None:
            learner = exact_learner(self._model, parallel, self._loss, self._trainable, self.memory)
            self._take_steps(learner, SAVED_STEP, parallel)
            checkpoint.Checkpoints(self._folder / str(layout), parallel).save(learner, {})
            metrics = self._take_steps(learner, LAST_STEP, parallel)
            parameters = full_parameters(learner)
            assert_published(learner, parameters, parallel)
            self._write(parameters, metrics, parallel)

        found, self.metrics[layout] = self._result(layout, work)
        return found

    def continued(self, saved_by: Layout, layout: Layout) -> dict[str, Tensor]:
        """From the checkpoint that `saved_by` left."""

        def work(parallel: Parallel) -> None:
            learner = exact_learner(self._model, parallel, self._loss, self._trainable, self.memory)
            path = folders.latest(self._folder / str(saved_by))
            assert path
            restore.load(learner, path, parallel)
            metrics = self._take_steps(learner, LAST_STEP, parallel)
            self._write(full_parameters(learner), metrics, parallel)

        return self._result(layout, work)[0]

    def assert_as_alone(self, layout: Layout, reported: Sequence[str]) -> None:
        """Parameters and metrics are those of one process, also to and from its checkpoint."""
        alone = Layout(1)
        expected = self.trained(alone)
        assert relative_difference(self.trained(layout), expected) < 1e-9
        for name in reported:
            assert self.metrics[layout][name] == pytest.approx(self.metrics[alone][name], rel=1e-9), name
        for saved_by, continued_by in ((layout, alone), (alone, layout)):
            found = self.continued(saved_by, continued_by)
            assert relative_difference(found, expected) < 1e-9, f"{continued_by} from the checkpoint of {saved_by}"

    def _take_steps(self, learner: Learner, stop: int, parallel: Parallel) -> dict[str, float]:
        kind = {"every_token": self._loss.router_aux_loss_coef > 0, "replayed": self._replayed}
        if not self.by_turns:
            return take_steps(learner, stop, self._max_tokens, parallel, **kind)
        metrics: dict[str, float] = {}
        for step in range(learner.steps_done, stop):
            residence.to_host(learner, parallel.device)
            on_device = [p for p in learner.lm.parameters() if p.device.type != "cpu"]
            assert not on_device, f"{len(on_device)} parameters stay on the device"
            residence.to_device(learner, parallel.device)
            metrics = take_steps(learner, step + 1, self._max_tokens, parallel, **kind)
        return metrics

    def _write(self, parameters: dict[str, Tensor], metrics: dict[str, float], parallel: Parallel) -> None:
        if parallel.is_main:
            on_host = {name: tensor.cpu() for name, tensor in parameters.items()}
            torch.save((on_host, metrics), self._folder / "result.pt")

    def _result(self, layout: Layout, work: Callable[[Parallel], None]) -> tuple[dict[str, Tensor], dict[str, float]]:
        (self._folder / "result.pt").unlink(missing_ok=True)
        run(layout, work, self.device)
        parameters, metrics = torch.load(self._folder / "result.pt", weights_only=True)
        return parameters, metrics


def assert_published(learner: Learner, parameters: Mapping[str, Tensor], parallel: Parallel) -> None:
    """What rank 0 would write are the parameters, in host memory. Experts have other names in files."""
    own = whole_state(learner.causal_lm, parallel)
    assert {tensor.device.type for tensor in own.values()} <= {"cpu"}
    published = gather_state(learner.causal_lm, parallel, None)
    both = published.keys() & parameters.keys()
    assert bool(both) == parallel.is_main
    for name in both:
        assert torch.equal(published[name], parameters[name].cpu()), name


@contextmanager
def comparison(
    trainable: Trainable = EVERYTHING,
    *,
    model: PreTrainedModel | None = None,
    loss: LossConfig = LossConfig(),
    replayed: bool = False,
    max_tokens: int = MAX_TOKENS,
) -> Iterator[Comparison]:
    with tempfile.TemporaryDirectory() as folder:
        yield Comparison(Path(folder), model or tiny_model(), loss, trainable, replayed=replayed, max_tokens=max_tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--layouts",
        default="1,2,4,1x2,2x2,1x1x2,1x1x4,2x1x2,1x2x2,1x1x1x2,2x1x1x2,1x2x1x2,1x1x2x2",
        help="the first is compared with (default: %(default)s)",
    )
    parser.add_argument("--experts", action="store_true", help="a mixture of experts, and the loss that balances them")
    parser.add_argument("--replay", action="store_true", help="with --experts: tokens get the experts of an engine")
    parser.add_argument("--reference", action="store_true", help="a KL term: a frozen model computes first, by turns")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, or hostgpu (tests/hostgpu)")
    parser.add_argument(
        "--reference_device", help="where the first layout is computed that all are compared with: as --device"
    )
    parser.add_argument("--optimizer_offload", action="store_true", help="on a device that is not the CPU")
    parser.add_argument("--by_turns", action="store_true", help="all states are on the host between steps")
    parser.add_argument("--max_tokens", type=int, default=MAX_TOKENS, help="of a row (default: %(default)s)")
    parser.add_argument("--num_experts", type=int, default=4, help="with --experts (default: %(default)s)")
    parser.add_argument("--most", type=float, default=1e-9, help="the bound of the differences (default: %(default)s)")
    parser.add_argument("--steps_only", action="store_true", help="no layout continues another's checkpoint")
    args = parser.parse_args()
    if args.replay and not args.experts:
        parser.error("--replay needs --experts: a dense model has no routers")
    if args.device == hostgpu.NAME:
        hostgpu.install()
    layouts = [Layout(*map(int, text.split("x"))) for text in args.layouts.split(",")]
    chosen: dict[str, Any] = {}
    if args.experts:
        chosen = {"model": tiny_experts_model(num_experts=args.num_experts), "loss": BALANCED}
    if args.reference:
        chosen["loss"] = LossConfig(kl_coefficient=0.1, router_aux_loss_coef=0.1 if args.experts else 0.0)
    chosen |= {"replayed": args.replay, "max_tokens": args.max_tokens}
    with comparison(**chosen) as compared:
        compared.device, compared.by_turns = args.device, args.by_turns
        compared.memory = TURNS.model_copy(update={"optimizer_offload": args.optimizer_offload})
        trained = {layout: compared.trained(layout) for layout in layouts}
        expected = trained[layouts[0]]
        if args.reference_device:
            with comparison(**chosen) as reference:
                reference.device = args.reference_device
                expected = reference.trained(layouts[0])
        savers = [] if args.steps_only else layouts
        table = Table(
            "layout (data x tp x cp x pp x ep)",
            "processes",
            "from the start",
            *(f"from {saved}'s checkpoint" for saved in savers),
        )
        worst = 0.0
        for layout in layouts:
            found = [trained[layout], *(compared.continued(saved, layout) for saved in savers)]
            differences = [relative_difference(parameters, expected) for parameters in found]
            table.add_row(str(layout), str(layout.processes), *(f"{d:.1e}" for d in differences))
            worst = max(worst, *differences)
    Console().print(table)
    sys.exit(0 if worst <= args.most else 1)


if __name__ == "__main__":
    main()
