"""Commands of `docker` and of Compose: 1.29 (`docker-compose`) or the newer plugin (`docker compose`), whichever is there."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shared.errors import ConfigError, TandemError

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "deploy" / "docker-compose.yml"
TLS_FILE = ROOT / "deploy" / "docker-compose.tls.yml"
PROFILES = ("example", "cpu-engine", "keeper", "sampler", "trainer")
POLL_S = 2.0


class DeployCheckFailed(TandemError):
    """The deployment does not do what it promises."""


def say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
    sys.stdout.flush()


class PrintedFigures(dict[str, Any]):
    """What a check measured; each figure is printed when it is there."""

    def add(self, name: str, value: Any) -> None:
        self[name] = round(value, 3) if isinstance(value, float) else value
        say(f"{name}: {json.dumps(self[name], default=str)}")


class Compose:
    """One Compose project. `environment`: variables of the Compose file. `profiles`: of each command. `tls`: its file too."""

    def __init__(
        self, project: str, environment: dict[str, str], profiles: Sequence[str] = PROFILES, *, tls: bool = False
    ) -> None:
        words = ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]
        if not shutil.which(words[0]):
            raise ConfigError("neither docker-compose nor docker is on the PATH; expected a Docker engine with Compose")
        self.project = project
        # As in the Compose file.
        self.image = f"{os.environ.get('IMAGES') or 'tandem'}/sampler:{os.environ.get('TANDEM_VERSION') or '0.1.0'}"
        self.base = os.environ.get("PYTHON_IMAGE") or "python:3.11-slim-bookworm"
        files = [word for file in (FILE, TLS_FILE)[: 1 + tls] for word in ("-f", str(file))]
        self._command = [*words, "-p", project, *files]
        self._environment = {**os.environ, **environment}
        self._profiles = profiles

    def run(self, *arguments: str, check: bool = True, profiles: bool = True, quiet: bool = True) -> str:
        """Standard output of a Compose command. Raises DeployCheckFailed with the end of what it said."""
        chosen = [word for name in self._profiles for word in ("--profile", name)] if profiles else []
        return self._run([*self._command, *chosen, *arguments], check=check, quiet=quiet)

    def tandem(self, *arguments: str, check: bool = True) -> str:
        return self.run("run", "--rm", "-T", "--no-deps", "tandem", *arguments, check=check)

    def status(self, run: str) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.tandem("status", run, "--json"))
        return status

    def audit(self, run: str) -> dict[str, Any]:
        """What `tandem audit` found, violations too. Raises DeployCheckFailed if it ended without a report."""
        output = self.tandem("audit", run, "--json", check=False)
        if not output.strip():
            output = self.tandem("audit", run, "--json")  # which says why
        report: dict[str, Any] = json.loads(output)
        return report

    def back_up(self, verb: str, file: Path) -> str:
        """deploy/backup.sh of this project."""
        script = str(ROOT / "deploy" / "backup.sh")
        return self._run(
            ["env", f"COMPOSE_PROJECT_NAME={self.project}", script, verb, str(file)], check=True, quiet=True
        )

    def docker(self, *arguments: str, check: bool = True) -> str:
        return self._run(["docker", *arguments], check=check, quiet=True)

    def containers(self, service: str | None = None) -> list[dict[str, Any]]:
        """What `docker inspect` says of the project's containers, the ended ones too, in order of their names."""
        labels = ["--filter", f"label=com.docker.compose.project={self.project}"]
        labels += ["--filter", f"label=com.docker.compose.service={service}"] if service else []
        ids = self.docker("ps", "-aq", *labels, "--filter", "label=com.docker.compose.oneoff=False").split()
        inspected: list[dict[str, Any]] = json.loads(self.docker("inspect", *ids)) if ids else []
        return sorted(inspected, key=lambda container: str(container["Name"]))

    def until(self, what: str, is_so: Callable[[], object], timeout_s: float) -> float:
        """Wait; returns the seconds. Raises DeployCheckFailed."""
        started = time.monotonic()
        while not is_so():
            if time.monotonic() - started > timeout_s:
                logs = self.run("logs", "--tail", "15", "--no-color", check=False)
                raise DeployCheckFailed(f"waited {timeout_s:g} s for {what}\n{logs[-6000:]}")
            time.sleep(POLL_S)
        return time.monotonic() - started

    def _run(self, command: list[str], *, check: bool, quiet: bool) -> str:
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": quiet, "text": True, "check": False}
        done = subprocess.run(command, cwd=ROOT, env=self._environment, **pipes)
        output = (done.stderr or "") + (done.stdout or "")
        if check and done.returncode:
            raise DeployCheckFailed(f"{' '.join(command)}: status {done.returncode}\n{output[-3000:]}")
        return done.stdout or ""


def health_of(container: dict[str, Any]) -> str:
    """healthy, unhealthy or starting; of a container that has ended, or without a check, its status."""
    state = container["State"]
    return str(state["Health"]["Status"] if state["Running"] and "Health" in state else state["Status"])


def service_of(container: dict[str, Any]) -> str:
    return str(container["Config"]["Labels"]["com.docker.compose.service"])


def name_of(container: dict[str, Any]) -> str:
    return str(container["Name"]).removeprefix("/")
