"""A launch on several machines: its place by our variables, torchrun's or Slurm's, and what it starts there."""

import asyncio
import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from sampler.engine.keeper.config import KeeperConfig
from shared.documents.run import Admission
from shared.errors import ConfigError
from shared.processes.mongod import free_port
from tandem.launch import dry_run
from tandem.launch.children import Children, Program
from tandem.launch.nodes import derived, first_host, interface_of, own_address
from tandem.launch.policies import load_policies
from tandem.launch.settings import LaunchConfig
from tests.system.conftest import REMOTE_DATABASE
from tests.system.processes import PATIENCE_S, ROOT

pytestmark = pytest.mark.timeout(1200)
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
    assert (config.machines.num_machines, config.machines.machine_rank) == (2, 1)
    assert (config.machines.master_addr, config.machines.master_port) == ("gpu03", 20_170)
    assert config.derived.text() == "from Slurm: NUM_MACHINES=2 MACHINE_RANK=1 MASTER_ADDR=gpu03 MASTER_PORT=20170"
    assert config.derived.text() in planned()
    clean.setenv("MASTER_ADDR", "10.9.9.9")
    config = LaunchConfig.load(["demo", *EXAMPLE])
    assert (config.machines.master_addr, config.machines.master_port) == ("10.9.9.9", 20_170)
    own = tmp_path / "own.yml"
    own.write_text("launch: {num_machines: 1}")
    for arguments in (["--num_machines", "1"], ["--config", str(own)], ["--join", "true"]):
        config = LaunchConfig.load(["demo", *arguments])
        assert (config.machines.num_machines, config.machines.machine_rank, config.derived.values) == (1, 0, {})


@pytest.mark.parametrize(("name", "value"), [("SLURM_LOCALID", "1"), ("SLURM_STEP_ID", None)])
def test_a_second_launcher_on_a_slurm_node_and_one_outside_of_srun_are_refused(name: str, value: str | None) -> None:
    environ = {key: text for key, text in SLURM.items() if key != name} | ({name: value} if value else {})
    with pytest.raises(ConfigError, match="srun --ntasks-per-node 1"):
        derived(environ)


def test_one_slurm_node_is_one_machine() -> None:
    assert derived(SLURM | {"SLURM_NNODES": "1"}).values == {}


@pytest.mark.thorough
def test_torchrun_itself_starts_a_launcher_per_machine_which_keeps_off_its_store(clean: pytest.MonkeyPatch) -> None:
    """torch's own launcher, on two "machines"; its store listens at MASTER_PORT, so the trainers meet one port further."""
    port = str(free_port())
    script = [sys.executable, "-m", "tandem.launch", "demo", *EXAMPLE, "--dry-run"]
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
        asyncio.run(asyncio.wait_for(children.wait_exit(child), PATIENCE_S))
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
    assert own_address(alone.machines, REMOTE_DATABASE) == "127.0.0.1"
    given = LaunchConfig.load(["demo", *EXAMPLE, "--node_addr", "127.0.0.2"])
    assert own_address(given.machines, REMOTE_DATABASE) == "127.0.0.2"
    joined = LaunchConfig.load(["demo", *EXAMPLE, "--join", "true"])
    assert own_address(joined.machines, "mongodb://localhost:27017") == "127.0.0.1"
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


def test_each_version_that_actors_are_pinned_to_gets_an_engine_of_its_own(clean: pytest.MonkeyPatch) -> None:
    plan = planned("--serve_versions", "[0, 30]")
    assert {"engine 0", "engine at 0", "engine at 30"} <= set(started_in(plan))
    assert [line.rpartition(" ")[2] for line in plan.splitlines() if "--serve_version" in line] == ["0", "30"]
    assert "--serve_version" not in planned("--serve_versions", "[30]", "--engine", "none"), "other machines have them"
