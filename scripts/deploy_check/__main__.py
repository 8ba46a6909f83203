"""Tries the Docker Compose deployment on a real engine: `python -m scripts.deploy_check --help`.

    build ▸ up to healthy ▸ import ▸ train ▸ scale to 6, then 1 ▸ kill each container ▸ trained ▸ audit
          ▸ backup, all deleted, restored ▸ what lies in the images

Variables of the Compose file are taken from the environment (deploy/.env.example): images, ports, package indices.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scripts.deploy_check import images
from scripts.deploy_check.compose import Compose, DeployCheckFailed, PrintedFigures, health_of, name_of, say, service_of
from scripts.deploy_check.settings import DeployCheckConfig
from shared.errors import TandemError
from shared.processes.interrupt import run_command

EXAMPLE_TOOLS = "./mcp/example.json"  # the Compose file's MCP-Docker serves the bundled tasks' tools
SERVICES = ("mongo", "mcp", "example-tools", "cpu-engine", "keeper", "sampler", "trainer")
IMAGES = ("sampler", "mcp", "trainer", "engine")
LAST_STEPS = 5


class DeploymentTrial:
    """The steps in order."""

    def __init__(self, config: DeployCheckConfig) -> None:
        self.config = config
        self.environment = {"RUN_NAME": config.run, "TRAINER_FLAGS": f"--max_steps {config.max_steps}"}
        self.compose = Compose(config.project, self.environment, tls=config.tls)
        self.figures = PrintedFigures()

    def run(self) -> None:
        if self.config.build:
            self.build()
        try:
            self.bring_up()
            self.train()
            self.finish()
            self.back_up()
        finally:
            if not self.config.keep:
                self.compose.run("down", "--volumes", "--timeout", "20", check=False)
        self.look_at_images()

    def build(self) -> None:
        started = time.monotonic()
        self.compose.run("build", "prepare", "mcp", "trainer", "cpu-engine", quiet=False)
        self.figures.add("build_s", time.monotonic() - started)

    def bring_up(self) -> None:
        """`up` alone: MongoDB, and MCP-Docker with its own tools."""
        started = time.monotonic()
        self.compose.run("up", "-d", profiles=False)
        self._healthy("mongo", "mcp")
        self.figures.add("up_to_healthy_s", time.monotonic() - started)
        imported = ("tasks", "import", self.config.run, "/tasks/train.jsonl", "--num_generations", "8")
        say(self.compose.tandem(*imported).strip().splitlines()[-1])

    def train(self) -> None:
        started = time.monotonic()
        self.compose = Compose(
            self.config.project, self.environment | {"MCP_SERVERS_FILE": EXAMPLE_TOOLS}, tls=self.config.tls
        )
        self._scale(self.config.samplers)
        self._healthy(*SERVICES)
        self.figures.add("all_healthy_s", time.monotonic() - started)
        quarter = max(1, self.config.max_steps // 4)
        self._until_step(quarter)
        self._scale(self.config.many_samplers)
        self._until_step(quarter + 2)
        self._workers_are(self.config.many_samplers)
        self._scale(1)
        self._workers_are(1)
        self._until_step(quarter + 4)
        self._scale(self.config.samplers)
        if self.config.kill:
            for service in SERVICES:
                self._kill(service)
        self._until_ended()
        self.figures.add("training_s", time.monotonic() - started)

    def _scale(self, samplers: int) -> None:
        say(f"--scale sampler={samplers}")
        self.compose.run("up", "-d", "--scale", f"sampler={samplers}")

    def _kill(self, service: str) -> None:
        """`docker kill`, as an operator would; Docker does not restart what was killed so, so start it again."""
        if self._has_ended():
            raise DeployCheckFailed(f"the run ended before {service} was killed; expected more --max_steps")
        container = self.compose.containers(service)[0]
        before = self._status()["records"].get("scored", 0) + self._status()["records"].get("ready", 0)
        self.compose.docker("kill", name_of(container))
        self.compose.docker("start", name_of(container))
        started = time.monotonic()
        self._healthy(service)

        def goes_on() -> bool:
            records = self._status()["records"]
            return bool(records.get("scored", 0) + records.get("ready", 0) > before) or self._has_ended()

        self.compose.until(f"another record after {service} was killed", goes_on, self.config.step_timeout_s)
        self.figures.add(f"kill_{service}_to_next_record_s", time.monotonic() - started)

    def finish(self) -> None:
        self.figures["audit"] = self.compose.audit(self.config.run)
        rewards = self._rewards(self.compose.run("run", "--rm", "-T", "--no-deps", "--entrypoint", "cat", "trainer",
                                                 f"/output/{self.config.run}/metrics.jsonl"))  # fmt: skip
        self.figures.add("rewards", rewards)
        if self.config.bare_metrics is not None:
            bare = self._rewards(self.config.bare_metrics.read_text(encoding="utf-8"))
            self.figures.add("rewards_bare", bare)
            common = min(len(bare), len(rewards))
            for name, curve in (("", rewards), ("_bare", bare)):
                last = curve[max(0, common - LAST_STEPS) : common]
                self.figures.add(f"reward{name}_up_to_step_{common}", sum(last) / len(last))
        self._look_at_tools()
        status = self._status()
        self.figures.add(
            "status", {name: status[name] for name in ("records", "record_data", "abandoned", "malformed")}
        )
        self.figures.add("confinement", {service_of(one): images.confinement(one) for one in self.compose.containers()})
        self.figures.add("restarts", {name_of(one): one["RestartCount"] for one in self.compose.containers()})
        self.figures.add("running", images.running(self.compose))

    def back_up(self) -> None:
        """Save, delete every container and volume, restore: the database says the same of the run."""
        before, started = self._status()["records"], time.monotonic()
        with tempfile.TemporaryDirectory(prefix="tandem-backup-") as folder:
            file = Path(folder) / "backup.tar"
            say(self.compose.back_up("save", file).strip())
            self._healthy(*SERVICES)
            self.compose.run("down", "--volumes", "--timeout", "20")
            say(self.compose.back_up("restore", file).strip())
        self.compose = Compose(
            self.config.project, self.environment, tls=self.config.tls
        )  # MCP-Docker with its own tools
        self.compose.run("up", "-d", profiles=False)
        self._healthy("mongo", "mcp")
        self.figures.add("backup_and_restore_s", time.monotonic() - started)
        after = self._status()["records"]
        self.figures.add("records_restored", after)
        if after != before or not self.compose.audit(self.config.run)["ok"]:
            raise DeployCheckFailed(
                f"the restored database has the records {after}; expected {before}, and a clean audit"
            )

    def _look_at_tools(self) -> None:
        """The episodes' calls went through MCP-Docker: its counts since it was started last."""
        calls = {words[0]: float(words[1]) for words in map(str.split, images.mcp_counts(self.compose).splitlines())}
        self.figures.add("mcp_docker", calls)
        if not any("calls_total" in name and value > 0 for name, value in calls.items()):
            raise DeployCheckFailed("no call went through MCP-Docker")

    def look_at_images(self) -> None:
        prefix, _, tag = self.compose.image.rpartition("/sampler:")
        for name in IMAGES:
            image = f"{prefix}/{name}:{tag}"
            self.figures.add(f"image_{name}_mb", round(images.size_mb(self.compose, image)))
            self.figures.add(
                f"image_{name}_without_base_mb", round(images.own_mb(self.compose, image, self.compose.base))
            )
        self.figures.add("sampler_torch", images.files_with_torch(self.compose, self.compose.image))
        self.figures.add("sampler_secrets", images.secrets_in(self.compose, self.compose.image))
        if self.figures["sampler_torch"] or self.figures["sampler_secrets"]:
            raise DeployCheckFailed("the sampler's image has torch or a secret, see above")

    # ------------------------------------------------------------------ what the run says

    def _status(self) -> dict[str, Any]:
        return self.compose.status(self.config.run)

    def _step(self) -> int:
        policies = self._status()["policies"]
        return int(policies[0]["step"]) if policies else 0

    def _has_ended(self) -> bool:
        state = self.compose.containers("trainer")[0]["State"]
        return bool(state["Status"] == "exited" and state["ExitCode"] == 0)

    def _until_step(self, step: int) -> None:
        seconds = self.compose.until(f"step {step}", lambda: self._step() >= step, self.config.step_timeout_s)
        say(f"step {step} after {seconds:.0f} s more")

    def _until_ended(self) -> None:
        self.compose.until("the trainer to end", self._has_ended, self.config.max_steps * self.config.step_timeout_s)

    def _workers_are(self, samplers: int) -> None:
        """As many live samplers as there shall be; those that were stopped have said so."""

        def live() -> int:
            workers = self._status()["workers"]
            return sum(one["kind"] == "sampler" and one["live"] for one in workers)

        self.compose.until(f"{samplers} samplers", lambda: live() == samplers, self.config.step_timeout_s)
        say(f"{samplers} samplers are at work")

    def _healthy(self, *services: str) -> None:
        def are_healthy() -> bool:
            states = [health_of(one) for name in services for one in self.compose.containers(name)]
            return len(states) >= len(services) and all(health in ("healthy", "exited") for health in states)

        self.compose.until(f"{', '.join(services)} to be healthy", are_healthy, self.config.step_timeout_s)

    @staticmethod
    def _rewards(lines: str) -> list[float]:
        by_step = {int(line["step"]): line.get("reward/mean") for line in map(json.loads, lines.splitlines())}
        return [round(float(reward), 4) for _, reward in sorted(by_step.items()) if reward is not None]


def main() -> None:
    config = DeployCheckConfig.load_or_exit()
    trial = DeploymentTrial(config)
    try:
        trial.run()
    except TandemError as exc:
        sys.exit(f"{type(exc).__name__}: {exc}")
    finally:
        if config.report is not None:
            config.report.write_text(json.dumps(trial.figures, indent=1, default=str), encoding="utf-8")
    if not trial.figures["audit"]["ok"]:
        sys.exit("tandem audit found violations")


if __name__ == "__main__":
    run_command(main)
