"""`python -m tests.sampler.conformance`: the client scenarios of the MCP conformance suite against our client, as a table.

`scripts/setup_mcp_servers.sh` installs the suite. Every client scenario that it lists is either run or has its reason here.
"""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / ".mcp_servers" / "npm" / "node_modules" / "@modelcontextprotocol" / "conformance"
SHIM = Path(__file__).parent / "globsync.mjs"
TIMEOUT_S = 120  # a scenario takes 3 s on an idle machine
_FIRST_NODE_WITH_GLOBSYNC = 22
OLD, NEW = "2025-11-25", "2026-07-28"

# Scenario, the revision of the suite's server, and the revision configured for our client.
RUN = (
    ("initialize", OLD, "auto"),
    ("tools_call", OLD, "auto"),
    ("tools_call", NEW, "auto"),  # its server refuses the handshake
    ("sse-retry", OLD, "auto"),
    ("request-metadata", NEW, NEW),
    ("http-standard-headers", NEW, NEW),
    ("http-custom-headers", NEW, NEW),
    ("http-invalid-tool-headers", NEW, NEW),
    ("json-schema-ref-no-deref", NEW, NEW),
    ("json-schema-2020-12-preservation", NEW, NEW),
    ("auth/client-credentials-basic", NEW, NEW),
    ("auth/client-credentials-jwt", NEW, NEW),
)

_PERSON = "the authorization-code flow: a person agrees in a browser; a sampler has client credentials instead"
_QUESTIONS = "servers' questions to the client are refused: no person is there to answer"
_LATER = "an extension that is not offered"
NOT_RUN = {
    "elicitation-sep1034-client-defaults": _QUESTIONS,
    "sep-2322-client-request-state": _QUESTIONS,
    "auth/metadata-*": _PERSON,
    "auth/basic-cimd": _PERSON,
    "auth/scope-*": _PERSON,
    "auth/token-endpoint-auth-*": _PERSON,
    "auth/pre-registration": _PERSON,
    "auth/2025-03-26-*": _PERSON,
    "auth/resource-mismatch": _PERSON,
    "auth/offline-access-*": _PERSON,
    "auth/authorization-server-migration": _PERSON,
    "auth/iss-*": _PERSON,
    "auth/enterprise-managed-authorization": _LATER,
    "auth/dpop*": _LATER,
    "auth/wif-jwt-bearer": _LATER,
    "sep-2640-client-*": "skills are resources, and resources are not read",
}


@dataclass(frozen=True)
class Outcome:
    passed: bool
    checks: str
    output: str


def missing() -> str:
    """What is not installed; empty where all is."""
    if shutil.which("node") is None:
        return "Node is not installed"
    if not (PACKAGE / "dist" / "index.js").is_file():
        return f"the MCP conformance suite is not installed in {PACKAGE.relative_to(ROOT)}: run scripts/setup_mcp_servers.sh"
    return ""


@cache
def command() -> list[str]:
    """How the suite is started."""
    version = subprocess.run(
        ["node", "--version"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    ).stdout
    shim = [] if int(version[1:].partition(".")[0]) >= _FIRST_NODE_WITH_GLOBSYNC else ["--import", str(SHIM)]
    return ["node", *shim, str(PACKAGE / "dist" / "index.js")]


def listed() -> list[str]:
    """The client scenarios that the installed suite has."""
    out = subprocess.run([*command(), "list"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout
    clients = out.partition("Client scenarios")[2].partition("\n\n")[0]
    return re.findall(r"^  - (\S+)", clients, re.MULTILINE)


def run(scenario: str, spec: str, revision: str) -> Outcome:
    client = shlex.join([sys.executable, "-m", "tests.sampler.conformance_client", revision])
    with tempfile.TemporaryDirectory() as folder:
        given = [
            "--scenario",
            scenario,
            "--spec-version",
            spec,
            "--force",
            "--timeout",
            str(TIMEOUT_S * 1000),
            "-o",
            folder,
        ]
        ended = subprocess.run(
            [*command(), "client", "--command", client, *given],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=2 * TIMEOUT_S,
            check=False,
        )
    output = ended.stdout + ended.stderr
    checks = re.search(r"Passed: (\S+), \d+ failed", output)
    passed = ended.returncode == 0 and "OVERALL: PASSED" in output
    return Outcome(passed, checks[1] if checks else "-", output)


def main() -> int:
    if why := missing():
        sys.exit(why)
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda each: run(*each), RUN))
    for (scenario, spec, revision), outcome in zip(RUN, outcomes, strict=True):
        word = "passed" if outcome.passed else "FAILED"
        sys.stdout.write(f"{scenario:36} {spec}  {revision:10}  {word}  {outcome.checks} checks\n")
    for pattern, reason in NOT_RUN.items():
        sys.stdout.write(f"{pattern:36} not run: {reason}\n")
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
