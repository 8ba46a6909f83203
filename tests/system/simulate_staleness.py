"""Which groups a freshness rule trains where durations have a long tail: a simulation on a virtual clock.

    python -m tests.system.simulate_staleness [--modes keep,wait,mask,drop] [--staleness 1,2,4] [--steps 150]
                                               [--json FILE] [--quick]

Everything but time is real: a database (embedded, its own process) with its verbs, the samplers' admission and the trainer's
choice of groups. A group takes exp(σ·N(0, 1)) units of virtual time, so 1 in the median, and its tokens are sampled evenly over
that time by the weights that are newest then; a step trains for `--train` units. Samplers play at once all that admission opens,
so a step takes as long as data needs, and no group is waited for because of a lack of places. All modes get the same durations.

    set aside        share of the groups opened that the rule set aside as stale
    of slowest       the same of the slowest tenth of them
    all, trained     mean duration of the groups opened, and of those trained, each token by whether it had a loss
    apart            how far these means are apart at the end of the run
    midway           the same over the middle half of its steps: of the groups trained then, against those whose turn it would
                     be if groups were trained in the order of their tasks
    staleness        mean and largest staleness of a trained token, in steps
    step             virtual time from one step to the next

`tests/system/test_simulate_staleness.py` runs it short.
"""

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from shared.documents import Claim, DataClaim, DBRecordData, Slot, Task, TaskPayload, task_id
from shared.documents.run import Admission
from shared.names import DEFAULT_POLICY, TRAIN_SPLIT
from shared.processes.mongod import Mongod
from shared.store.pipelines import EPOCH
from shared.tasks.admission import seq_limit
from trainer.data.groups import Candidates, Group, GroupSelector
from trainer.process.store_bridge import StoreBridge
from trainer.settings.config import TrainerConfig
from trainer.settings.data import StaleData
from trainer.trees.staleness import Staleness

POLICY = DEFAULT_POLICY
TOKENS = 8  # of a group
NO_LEASE_ENDS_S = 1e6  # the leases' clock is the real one


@dataclass(frozen=True)
class Scenario:
    stale_data: StaleData
    max_staleness: int
    steps: int
    groups_per_step: int
    sigma: float
    train: float
    seed: int

    def durations(self) -> list[float]:
        """Of more groups than any mode opens, by `seq`."""
        rng = np.random.default_rng(self.seed)
        count = 3 * (self.steps + self.max_staleness + 1) * self.groups_per_step
        return np.exp(self.sigma * rng.standard_normal(count)).tolist()  # type: ignore[no-any-return]  # numpy types tolist as Any


@dataclass
class SimulatedRun:
    """By `seq`. `loss` is the share of a trained group's tokens that had one."""

    opened: set[int] = field(default_factory=set)
    set_aside: set[int] = field(default_factory=set)
    step_of: dict[int, int] = field(default_factory=dict)
    loss: dict[int, float] = field(default_factory=dict)
    staleness: list[int] = field(default_factory=list)  # of trained tokens
    ended: float = 0.0  # virtual time


def measure(options: Options) -> Tables:
    sizes = (options.steps, options.groups_per_step, options.sigma, options.train, options.seed)
    rules = [StaleData(mode) for mode in options.modes.split(",")]
    settings = [Scenario(rule, int(allowed), *sizes) for rule in rules for allowed in options.staleness.split(",")]
    with Mongod(options.folder / "mongodb") as mongod:
        rows = [simulate(mongod.connection_string, f"simulation_{i}", setting) for i, setting in enumerate(settings)]
    return {"durations in units of their median": rows}


def simulate(uri: str, run: str, setting: Scenario) -> Row:
    """In a database of its own, of this name."""
    with StoreBridge(uri, run) as bridge:
        return summary(setting, Simulation(bridge, setting).run())


# ---------------------------------------------------------------------- the virtual clock


class Simulation:
    """Two kinds of events: a group was played, a step was trained. Between them everybody does at once what is allowed."""

    def __init__(self, bridge: StoreBridge, setting: Scenario) -> None:
        self._bridge = bridge
        self._store = bridge.store
        self._setting = setting
        self._durations = setting.durations()
        self._config = TrainerConfig.model_validate(
            {
                "run": "simulation",
                "db_connection_string": "given",
                "model_name_or_path": ".",
                "groups_per_step": setting.groups_per_step,
                "max_staleness": setting.max_staleness,
                "stale_data": setting.stale_data,
                "max_steps": setting.steps,
            }
        )
        self._admission = Admission(
            groups_per_step=setting.groups_per_step, max_staleness=setting.max_staleness, num_steps=setting.steps
        )
        self._selector = GroupSelector(bridge, self._config)
        self._trainer_generation = bridge(self._store.runs.start_trainer(POLICY, self._admission))
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Claim | None]] = []  # (when, order, the group's; None: the step's)
        self._published: list[float] = []  # when, by version
        self._versions_of: dict[int, list[int]] = {}  # {seq: of each token}
        self._training: list[Group] = []
        self._step = 0
        self.outcome = SimulatedRun()

    def run(self) -> SimulatedRun:
        self._import_tasks()
        self._publish(0.0)
        self._open_tasks(0.0)
        while self._step < self._setting.steps:
            now, _, claim = heapq.heappop(self._events)
            if claim is not None:
                self._end_group(claim, now)
            else:
                self._end_step(now)
            self._begin_step(now)
            self._open_tasks(now)
        self.outcome.ended = now
        return self.outcome

    def _at(self, when: float, claim: Claim | None) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), claim))

    # ------------------------------------------------------------------ samplers

    def _import_tasks(self) -> None:
        payload = TaskPayload(query="?")
        tasks = [
            Task(
                id=task_id(POLICY, TRAIN_SPLIT, 0, f"t{seq}"), tid=f"t{seq}", split=TRAIN_SPLIT, epoch=0, policy=POLICY,
                seq=seq, source="simulation", payload=payload, num_generations=1, slots=[Slot(traj_id=0, free_at=EPOCH)],
                free_at=EPOCH,
            )
            for seq in range(len(self._durations))
        ]  # fmt: skip
        self._bridge(self._store.tasks.insert_new(tasks))

    def _open_tasks(self, now: float) -> None:
        limit, _ = self._bridge(seq_limit(self._store, [POLICY], {POLICY: self._admission}))
        while len(self.outcome.opened) < limit and (claim := self._claim(limit)) is not None:
            self.outcome.opened.add(claim.task.seq)
            self._at(now + self._durations[claim.task.seq], claim)

    def _claim(self, limit: int) -> Claim | None:
        verb = self._store.tasks.claim_slots
        lease_s = NO_LEASE_ENDS_S
        claims = self._bridge(
            verb("simulation", policy=POLICY, split=TRAIN_SPLIT, lease_s=lease_s, seq_limit=limit, max_failures=1)
        )
        return claims[0] if claims else None

    def _end_group(self, claim: Claim, now: float) -> None:
        """Scored and settled at once, as `sampler.settlement` writes it, but for the tokens."""
        task, duration = claim.task, self._durations[claim.task.seq]
        sampled = [now - duration * (1 - (token + 0.5) / TOKENS) for token in range(TOKENS)]
        versions = (np.searchsorted(self._published, sampled, side="right") - 1).tolist()
        self._versions_of[task.seq] = versions
        data = DBRecordData(
            id=claim.record_id, record=claim.record_id, task=task.id, group_size=1, seq=task.seq, policy=POLICY,
            split=TRAIN_SPLIT, source=task.source, min_version=min(versions), max_version=max(versions),
            versions=sorted(set(versions)), num_tokens=TOKENS, num_trained_tokens=TOKENS, duration_s=duration, reward=1.0,
            dispatches=[], digest="",
        )  # fmt: skip
        self._bridge(self._store.data.write_group([data]))
        self._bridge(self._store.tasks.finish_slot(claim, 1.0))
        settled = self._bridge(self._store.tasks.claim_settlement("simulation", policy=POLICY, lease_s=60.0))
        assert settled is not None, "a group whose last slot was finished is there to be settled"
        self._bridge(self._store.tasks.finish_settlement(settled, "ready", abandoned=False, data_of=[POLICY]))

    # ------------------------------------------------------------------ the trainer

    def _begin_step(self, now: float) -> None:
        """As `RecordStream` does."""
        if self._training or self._step == self._setting.steps:
            return
        found = self._selector.candidates(self._step + 1)
        for group, reason in found.stale:
            self._selector.set_aside(group, reason)
            self.outcome.set_aside.add(_seq(group))
        if len(found.fresh) >= self._setting.groups_per_step:
            self._train(found, now)

    def _train(self, found: Candidates, now: float) -> None:
        self._training = found.fresh[: self._setting.groups_per_step]
        self._selector.borrow(self._training, self._trainer_generation, self._step + 1)
        for group in self._training:
            self._count(_seq(group), found.staleness)
        self._at(now + self._setting.train, None)

    def _count(self, seq: int, staleness: Staleness) -> None:
        young = [version for version in self._versions_of[seq] if not staleness.too_stale(version)]
        self.outcome.step_of[seq] = self._step + 1
        self.outcome.loss[seq] = len(young) / TOKENS
        self.outcome.staleness += [staleness.of(version) for version in young]

    def _end_step(self, now: float) -> None:
        self._step += 1
        claim = DataClaim(trainer_generation=self._trainer_generation, step=self._step)
        self._bridge(self._store.data.commit_step(POLICY, claim, max_trained_count=1))
        self._training = []
        self._publish(now)

    def _publish(self, now: float) -> None:
        self._bridge(self._store.versions.announce(POLICY, self._step, f"step-{self._step}", {}))
        self._published.append(now)


def _seq(group: Group) -> int:
    return int(group.task.rpartition(":t")[2])


def summary(setting: Scenario, outcome: SimulatedRun) -> Row:
    durations = setting.durations()
    slowest = sorted(outcome.opened, key=lambda seq: durations[seq])[-max(1, len(outcome.opened) // 10) :]
    of_all = float(np.mean([durations[seq] for seq in outcome.opened]))
    trained = _mean(durations, outcome.loss)
    first, last = setting.steps // 4, setting.steps * 3 // 4
    midway = {seq: loss for seq, loss in outcome.loss.items() if first < outcome.step_of[seq] <= last}
    in_order = range(first * setting.groups_per_step, last * setting.groups_per_step)
    return {
        "stale_data": str(setting.stale_data),
        "max_staleness": setting.max_staleness,
        "groups": len(outcome.opened),
        "set aside %": 100 * len(outcome.set_aside) / len(outcome.opened),
        "of slowest %": 100 * len(outcome.set_aside.intersection(slowest)) / len(slowest),
        "all": of_all,
        "trained": trained,
        "apart %": 100 * (trained / of_all - 1),
        "midway %": 100 * (_mean(durations, midway) / float(np.mean([durations[seq] for seq in in_order])) - 1),
        "staleness": float(np.mean(outcome.staleness)),
        "largest": max(outcome.staleness),
        "step": outcome.ended / setting.steps,
    }


def _mean(durations: Sequence[float], loss: dict[int, float]) -> float:
    seqs = list(loss)
    return float(np.average([durations[seq] for seq in seqs], weights=[loss[seq] for seq in seqs]))


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--modes", default=",".join(StaleData), help="values of stale_data (default: %(default)s)")
    parser.add_argument("--staleness", default="1,2,4", help="values of max_staleness (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=150, help="optimizer steps of a run (default: %(default)s)")
    parser.add_argument("--groups_per_step", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--sigma", type=float, default=1.0, help="of the durations' logarithm (default: %(default)s)")
    parser.add_argument("--train", type=float, default=0.3, help="a step's training, in medians (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    run_benchmark(parser, measure, modes="keep,drop", staleness="1", steps=8, groups_per_step=4)
