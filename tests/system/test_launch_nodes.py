"""A launch on several machines: its place by our variables, torchrun's or Slurm's, what it starts there, and when it ends."""

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from sampler.engine.keeper.config import KeeperConfig
from scripts.launch import dry_run
from scripts.launch.children import Children, Program
from scripts.launch.following import is_over, until_over
from scripts.launch.nodes import derived, first_host, interface_of, own_address
from scripts.launch.policies import load_policies
from scripts.launch.settings import LaunchConfig
from scripts.launch.waiting import signals_set
from shared.audit.run import audit
from shared.documents.run import Admission, TrainerEnd
from shared.documents.states import RunState, ServiceStatus, TaskStatus
from shared.errors import ConfigError
from shared.names import EVAL_SPLIT
from shared.processes.mongod import Mongod, free_port
from shared.store import Store
from tests.shared.builders import make_task
from tests.system.processes import PATIENCE_S, PATIENT, ROOT, launched

pytestmark = pytest.mark.timeout(1200)
DATABASE = "mongodb://u:secret-word@10.0.0.1:27017,10.0.0.2/?replicaSet=rs0"
ADMISSION = Admission(groups_per_step=1, max_staleness=0, num_steps=1)
EXAMPLE = ["--config", "assets/example/minirl.yml"]
SLURM = {
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "31017",
    "SLURM_JOB_NODELIST": "gpu[03-05,9],cpu1",
}


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No variable of a place in the environment."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "TORCHELASTIC_", "MASTER_", "GROUP_", "NODE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("DB_CONNECTION_STRING", DATABASE)
    return monkeypatch


def planned(*arguments: str) -> str:
    """What a dry run prints."""
    text = io.StringIO()
    assert dry_run.show(Console(file=text, width=400), load_policies(["demo", *EXAMPLE, "--dry-run", *arguments])) == 0
    return text.getvalue()


def started_in(plan: str) -> list[str]:
    """The names of the processes in a plan."""
    return [line.partition(", log ")[0] for line in plan.splitlines() if ", log logs/" in line]


def test_the_first_machine_of_a_slurm_step_is_one_of_the_steps_own(clean: pytest.MonkeyPatch) -> None:
    """`salloc -N4`, then `srun -N2 -w gpu09,gpu11`."""
    for name, value in (SLURM | {"SLURM_STEP_NODELIST": "gpu[09,11]"}).items():
        clean.setenv(name, value)
    assert "gpu09" in planned().splitlines()[0]


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[03-05,9],cpu1", "gpu03"),
        ("a[7,9]b", "a7b"),
        ("rack[1-2]n[008-012]", "rack1n008"),
        ("login-1.site,gpu[1-2]", "login-1.site"),
    ],
)
def test_machine_0_is_the_first_host_of_slurms_list(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


def test_slurms_variables_give_the_place_where_ours_do_not(clean: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in SLURM.items():
        clean.setenv(name, value)
    config = LaunchConfig.load(["demo", *EXAMPLE])
    assert (config.num_machines, config.machine_rank) == (2, 1)
    assert (config.master_addr, config.master_port) == ("gpu03", 20_170)
    assert config.derived.text() == "from Slurm: NUM_MACHINES=2 MACHINE_RANK=1 MASTER_ADDR=gpu03 MASTER_PORT=20170"
    assert config.derived.text() in planned()
    clean.setenv("MASTER_ADDR", "10.9.9.9")
    config = LaunchConfig.load(["demo", *EXAMPLE])
    assert (config.master_addr, config.master_port) == ("10.9.9.9", 20_170)
    own = tmp_path / "own.yml"
    own.write_text("launch: {num_machines: 1}")
    for arguments in (["--num_machines", "1"], ["--config", str(own)], ["--join", "true"]):
        config = LaunchConfig.load(["demo", *arguments])
        assert (config.num_machines, config.machine_rank, config.derived.values) == (1, 0, {})


@pytest.mark.parametrize(("name", "value"), [("SLURM_LOCALID", "1"), ("SLURM_STEP_ID", None)])
def test_a_second_launcher_on_a_slurm_node_and_one_outside_of_srun_are_refused(name: str, value: str | None) -> None:
    environ = {key: text for key, text in SLURM.items() if key != name} | ({name: value} if value else {})
    with pytest.raises(ConfigError, match="srun --ntasks-per-node 1"):
        derived(environ)


def test_one_slurm_node_is_one_machine() -> None:
    assert derived(SLURM | {"SLURM_NNODES": "1"}).values == {}


def test_torchrun_itself_starts_a_launcher_per_machine_which_keeps_off_its_store(clean: pytest.MonkeyPatch) -> None:
    """torch's own launcher, on two "machines"; its store listens at MASTER_PORT, so the trainers meet one port further."""
    port = str(free_port())
    script = [sys.executable, "-m", "scripts.launch", "demo", *EXAMPLE, "--dry-run"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--no-python"]
    command += ["--master-addr", "127.0.0.1", "--master-port", port]
    both = [
        subprocess.Popen(
            [*command, "--nproc-per-node", "1", "--node-rank", rank, *script],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in "01"
    ]
    plans = [process.communicate(timeout=PATIENCE_S)[0] for process in both]
    meeting = f"--main_process_ip 127.0.0.1 --main_process_port {int(port) + 1}"
    for rank, plan in enumerate(plans):
        assert f"from torchrun: NUM_MACHINES=2 MACHINE_RANK={rank} MASTER_ADDR=127.0.0.1" in plan
        assert f"--num_machines 2 --machine_rank {rank} {meeting}" in plan
    with pytest.raises(ConfigError, match="--nproc-per-node 1"):
        derived({"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "8"})


def test_children_do_not_inherit_the_launchers_rank_under_torchrun(
    clean: pytest.MonkeyPatch, run: str, tmp_path: Path
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_USE_AGENT_STORE", "KEPT"):
        clean.setenv(name, "1")
    show = (
        "import os; print(sorted(n for n in os.environ if 'RANK' in n or 'WORLD' in n or 'TORCHE' in n or n == 'KEPT'))"
    )
    with Children(run, ROOT) as children:
        child = children.start(
            Program("x", "keeper", [sys.executable, "-c", show], tmp_path / "x.log", ends_itself=True)
        )
        assert asyncio.run(asyncio.wait_for(children.wait_exit(child), PATIENCE_S)) == 0
        assert child.log_text().strip() == "['KEPT']"


# -------------------------------------------------------------------------------------------- what starts where


def test_a_machine_starts_what_belongs_to_it_and_a_dry_run_shows_it_without_secrets(clean: pytest.MonkeyPatch) -> None:
    place = ["--num_machines", "2", "--master_addr", "10.0.0.1", "--master_port", "29500"]
    first, second = (planned(*place, "--machine_rank", rank) for rank in "01")
    assert started_in(first) == ["tools", "engine 0", "sampler 0", "sampler 1", "trainer 0"]
    assert started_in(second) == ["tools", "engine 1", "sampler 2", "sampler 3", "trainer 1"]
    bare = planned(*place, "--machine_rank", "0", "--engine", "none", "--num_samplers", "0")
    assert started_in(bare) == ["trainer 0"]
    joined = planned("--join", "true", "--node_name", "spot7")
    assert started_in(joined) == ["tools", "engine spot7", "sampler spot7-0", "sampler spot7-1"]
    assert started_in(planned("--join", "true", "--node_name", "spot7", "--engine", "none"))[1:] == [
        "sampler spot7-0",
        "sampler spot7-1",
    ]
    only_engine = planned("--join", "true", "--node_name", "spot7", "--num_samplers", "0", "--node_addr", "10.0.0.7")
    assert started_in(only_engine) == ["engine spot7"]
    assert "--engine_host 10.0.0.7" in only_engine
    for text in (first, second, bare, joined, only_engine):
        assert "secret-word" not in text
        assert "nothing was started" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--join", "true", "--num_machines", "2"], "JOIN and NUM_MACHINES exclude each other"),
        (["--node_addr", "0.0.0.0"], "expected a host's name or IPv4 address"),
        (["--node_name", "a/b"], "node_name"),
    ],
)
def test_a_place_that_cannot_be_is_refused(clean: pytest.MonkeyPatch, arguments: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LaunchConfig.load(["demo", *EXAMPLE, *arguments])
    clean.delenv("DB_CONNECTION_STRING")
    with pytest.raises(ConfigError, match="JOIN is true, so DB_CONNECTION_STRING must be given"):
        LaunchConfig.load(["demo", *EXAMPLE, "--join", "true"])


def test_a_run_on_one_machine_is_announced_on_its_loopback_and_one_of_several_where_the_others_are(
    clean: pytest.MonkeyPatch,
) -> None:
    alone = LaunchConfig.load(["demo", *EXAMPLE])
    assert own_address(alone, DATABASE) == "127.0.0.1"
    given = LaunchConfig.load(["demo", *EXAMPLE, "--node_addr", "127.0.0.2"])
    assert own_address(given, DATABASE) == "127.0.0.2"
    joined = LaunchConfig.load(["demo", *EXAMPLE, "--join", "true"])
    assert own_address(joined, "mongodb://localhost:27017") == "127.0.0.1"
    assert "where no other machine reaches it: set NODE_ADDR" in planned("--join", "true", "--node_addr", "127.0.0.1")
    assert interface_of("127.0.0.2") == "lo"
    assert interface_of("192.0.2.77") is None


def test_an_engine_command_that_ignores_its_host_is_refused() -> None:
    given = ["--run=r", "--db_connection_string=mongodb://x", "--model_name_or_path=assets/example/model"]
    command = "serve {model} {port}"
    assert KeeperConfig.load([*given, f"--engine_command={command}"]).engine_host == "127.0.0.1"
    with pytest.raises(ConfigError, match=r"lacks the placeholder \{host\}"):
        KeeperConfig.load([*given, f"--engine_command={command}", "--engine_host=10.0.0.1"])
    assert KeeperConfig.load([*given, f"--engine_command={command} {{host}}", "--engine_host=10.0.0.1"])


# -------------------------------------------------------------------------------------------- when it ends


async def test_a_run_is_over_when_its_trainer_has_ended_and_its_last_version_was_evaluated(store: Store) -> None:
    assert not await is_over(store, "main")
    await store.versions.announce("main", 0, "/w/0", {})
    await store.tasks.insert_new([make_task(0, split=EVAL_SPLIT, at_version=0)])
    generation = await store.runs.start_trainer("main", ADMISSION)
    version = (await store.versions.announce("main", 1, "/w/1", {})).version
    assert not await is_over(store, "main")
    await store.runs.end_trainer("main", TrainerEnd(trainer_generation=generation, step=1, reason="done"))
    assert not await is_over(store, "main")
    await store.evaluation.queue_round("main", version)
    assert not await is_over(store, "main")
    await store.database["tasks"].update_many({"at_version": version}, {"$set": {"status": TaskStatus.SETTLED.value}})
    assert await is_over(store, "main")


async def test_a_machine_that_joins_an_ended_run_waits_for_a_trainer_and_then_leaves(
    clean: pytest.MonkeyPatch, store: Store
) -> None:
    await store.versions.announce("main", 0, "/w/0", {})
    end = TrainerEnd(trainer_generation=await store.runs.start_trainer("main", ADMISSION), step=0, reason="done")
    await store.runs.end_trainer("main", end)
    config = LaunchConfig.load(["demo", *EXAMPLE, "--join", "true", "--start_timeout_s", "0.5"])
    said: list[str] = []
    assert await until_over(store, config, said.append) == "the run has ended, and no trainer continues it"
    assert said == ["the run has ended; waiting 0.5 s for a trainer to continue it"]
    patient = config.model_copy(update={"start_timeout_s": PATIENCE_S})
    waiting = asyncio.create_task(until_over(store, patient, said.append))
    generation = await store.runs.start_trainer("main", ADMISSION)
    await asyncio.sleep(1.5)
    assert not waiting.done()
    await store.runs.end_trainer("main", TrainerEnd(trainer_generation=generation, step=0, reason="done"))
    assert await asyncio.wait_for(waiting, PATIENCE_S) == "the run has ended"


# -------------------------------------------------------------------------------------------- two machines, for real


class Machines:
    """Launches of one run, as on machines of their own: each has an address of the loopback."""

    def __init__(self, run: str, folder: Path, database: str) -> None:
        self.run, self.folder, self.database = run, folder, database
        self.launches: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str, **variables: str) -> None:
        fixed = ["--max_steps", "3", "--groups_per_step", "2", "--save_steps", "3", "--max_concurrent_episodes", "8"]
        command = [sys.executable, "-m", "scripts.launch", self.run, *EXAMPLE, *fixed, "--eval_file", "", *arguments]
        with (self.folder / f"{name}.out").open("ab") as out:
            self.launches[name] = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=os.environ | PATIENT | {"DB_CONNECTION_STRING": self.database} | variables,
            )

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text(errors="replace")

    def end(self, name: str, sign: signal.Signals) -> int:
        self.launches[name].send_signal(sign)
        return self.launches[name].wait(PATIENCE_S)


@pytest.fixture
def machines(run: str, tmp_path: Path) -> Iterator[Machines]:
    with Mongod(tmp_path / "mongodb") as server:
        found = Machines(run, tmp_path, server.connection_string)
        try:
            yield found
        finally:
            for launch in found.launches.values():
                with contextlib.suppress(ProcessLookupError):
                    launch.send_signal(signal.SIGTERM)
            for launch in found.launches.values():
                launch.wait(PATIENCE_S)
    assert launched(run) == []


@pytest.mark.slow
@pytest.mark.asyncio
async def test_samplers_and_engine_join_leave_and_come_back_while_another_machine_trains(
    machines: Machines, clean: pytest.MonkeyPatch
) -> None:
    """Machine 0 has the trainer alone. It gets samplers and an engine from machines that join, one of which goes in between."""
    machines.start("main", ENGINE="none", NUM_SAMPLERS="0", NODE_ADDR="127.0.0.2")
    machines.start("first", JOIN="true", NODE_NAME="first", NODE_ADDR="127.0.0.3", NUM_SAMPLERS="1")
    async with Store.open(machines.database, machines.run) as store:

        async def until_trained(step: int) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while (newest := await store.versions.newest("main")) is None or newest.step < step:
                texts = "\n".join(machines.said(name) for name in machines.launches)
                assert time.monotonic() < deadline, f"step {step} never came:\n{texts}"
                await asyncio.sleep(0.1)

        async def until_up(address: str) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while not any(
                s.url.startswith(f"{address}:") and s.status == ServiceStatus.UP for s in await store.services.all()
            ):
                assert time.monotonic() < deadline, machines.said("second")
                await asyncio.sleep(0.1)

        await until_trained(1)
        await store.runs.set_state(RunState.PAUSED)  # else the run may be over before the second machine joins
        up = [service for service in await store.services.all() if service.status == ServiceStatus.UP]
        assert [service.url.rpartition(":")[0] for service in up] == ["http://127.0.0.3"]
        assert machines.end("first", signal.SIGTERM) == 130
        left = [service.status for service in await store.services.all()]
        assert left == [ServiceStatus.DOWN]
        machines.start("second", JOIN="true", NODE_NAME="second", NODE_ADDR="127.0.0.4", NUM_SAMPLERS="1")
        await until_up("http://127.0.0.4")
        await store.runs.set_state(RunState.RUNNING)
        await until_trained(3)
        statuses = {name: machines.launches[name].wait(PATIENCE_S) for name in ("main", "second")}
        assert statuses == {"main": 0, "second": 0}, machines.said("main") + machines.said("second")
        assert "the run has ended" in machines.said("second")
        assert "first joins the run at 127.0.0.3: no trainer here" in machines.said("first")
        report = await audit(store, running=True)  # tasks beyond the last step are still open
        assert report.ok, report
    summary = json.loads((ROOT / "output" / machines.run / "summary.json").read_text())
    assert summary["steps"] == 3


@pytest.mark.parametrize(("sign", "forced"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
async def test_only_ctrl_c_after_a_signal_ends_the_grace(sign: signal.Signals, forced: bool) -> None:
    """A scheduler sends SIGTERM more than once: to the step, and through srun to its tasks."""
    stopped, again = asyncio.Event(), asyncio.Event()
    with signals_set(stopped, again.set):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stopped.wait(), 60)
        os.kill(os.getpid(), sign)
        await asyncio.sleep(0.2)
        assert again.is_set() is forced
