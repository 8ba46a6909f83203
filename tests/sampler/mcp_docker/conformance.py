"""The server scenarios of the MCP conformance suite, through the gateway.

`python -m tests.sampler.mcp_docker.conformance EVERYTHING.py` runs each scenario against a server alone, then against the
gateway in front of it: as a process, and by its URL (`--ways`), with the handshake, and at 2026-07-28 alone with that
revision in the entry (`modern_process`, `modern_url`). `--only PATTERN` runs some scenarios. What fails through the gateway
alone, and is not in EXPECTED, is a defect; the exit status is then 1.

EVERYTHING.py is the conformance server of the Python SDK, which is in no
package: `examples/servers/everything-server/mcp_everything_server/server.py` of modelcontextprotocol/python-sdk.
`scripts/setup_mcp_servers.sh` installs the suite. Some minutes; not a part of `scripts/check`.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

import httpx

from shared.processes.mongod import free_port
from tests.sampler.conformance import command, missing
from tests.sampler.mcp_docker.gateways import PATIENCE_S, ROOT, gateway

REVISIONS = ("2025-06-18", "2025-11-25", "2026-07-28")
MODERN = "modern_"
WAYS = ("process", "url", f"{MODERN}process", f"{MODERN}url")
SUITE_S = 1800
SUITE_START_S = 5.0  # how long the suite waits for some answers to `initialize`
_NATIVE = "the gateway has the handshake with this server, which has no words for a result that asks for input"
# Pattern of a scenario's name, at 2026-07-28: why it may fail through the gateway alone.
EXPECTED = {
    "input-required-result-*": _NATIVE,  # not where the entry says 2026-07-28
    "server-stateless": "a call of an unknown tool is a JSON-RPC error here, which the suite takes for a missing tool; "
    "its listening streams wait less than new processes take to start",
}
_SERVE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("everything", sys.argv[1])
everything = importlib.util.module_from_spec(spec)
sys.modules["everything"] = everything
spec.loader.exec_module(everything)
if len(sys.argv) > 2:
    everything.mcp.run("streamable-http", port=int(sys.argv[2]), event_store=everything.event_store, retry_interval=100)
else:
    everything.mcp.run("stdio")
"""
Counts = dict[str, tuple[int, int]]  # scenario: checks that passed, checks that failed


def counted(url: str, revision: str, only: str = "") -> Counts:
    """The server scenarios of a revision; `only`: those whose name fits this pattern."""
    if only:
        listed = subprocess.run([*command(), "list"], capture_output=True, text=True, check=True).stdout
        names = sorted(set(re.findall(r"^\s*-?\s*([a-z][a-z0-9-]+)", listed, re.MULTILINE)))
        return {name: found for name in names if fnmatchcase(name, only) and (found := one(url, revision, name))}
    output = told(url, revision, "--suite", "all")
    found = re.findall(r"^[✓✗] (\S+): (\d+) passed, (\d+) failed$", output, re.MULTILINE)
    if not found:
        raise RuntimeError(f"{url}: the suite ran nothing: {output[-1000:]}")
    return {name: (int(passed), int(failed)) for name, passed, failed in found}


def one(url: str, revision: str, scenario: str) -> tuple[int, int] | None:
    """None: the revision has no such scenario for servers."""
    output = told(url, revision, "--scenario", scenario)
    found = re.search(r"^Passed: (\d+)/\d+, (\d+) failed", output, re.MULTILINE)
    return None if found is None else (int(found[1]), int(found[2]))


def told(url: str, revision: str, *which: str) -> str:
    given = ["server", "--url", url, *which, "--spec-version", revision, "--timeout", "120000"]
    ended = subprocess.run([*command(), *given], capture_output=True, text=True, timeout=SUITE_S, check=False)
    return ended.stdout + ended.stderr


def is_lost(scenario: str, direct: Counts, through: Counts) -> bool:
    return scenario not in through or (through[scenario][1] > 0 and direct[scenario][1] == 0)


def repeated(url: str, revision: str, way: str, direct: Counts, through: Counts) -> Counts:
    """What fails without a reason runs once more: some requests have 5 s, in which a busy machine starts no server."""
    for scenario in direct:
        if is_lost(scenario, direct, through) and not reason(scenario, revision, way):
            through[scenario] = one(url, revision, scenario) or (0, 1)
    return through


@contextmanager
def alone(everything: Path, log: Path) -> Iterator[str]:
    """The server over HTTP; its URL."""
    port = free_port()
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, str(everything), str(port)], cwd=ROOT, stdout=output, stderr=output
        )
    url = f"http://127.0.0.1:{port}/mcp"
    try:
        until_up(url, process, log)
        yield url
    finally:
        process.kill()
        process.wait()


def seconds_to_start(url: str) -> float:
    """Of a session whose servers nothing has warmed up, since no client has had its capabilities."""
    params = {
        "protocolVersion": REVISIONS[1],
        "capabilities": {"experimental": {str(time.monotonic_ns()): {}}},
        "clientInfo": {"name": "conformance", "version": "1"},
    }
    headers = {"Accept": "application/json, text/event-stream"}
    began = time.monotonic()
    with httpx.Client(timeout=PATIENCE_S, headers=headers) as http:
        answer = http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
        took_s = time.monotonic() - began
        http.delete(url, headers={"Mcp-Session-Id": answer.headers["mcp-session-id"]})
    return took_s


def until_up(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_at and process.poll() is None:
        try:
            httpx.get(url)
        except httpx.HTTPError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"the server does not start: {log.read_text()[-2000:]}")


def reason(scenario: str, revision: str, way: str) -> str:
    """Why it may fail; empty: it may not."""
    found = [why for pattern, why in EXPECTED.items() if fnmatchcase(scenario, pattern)]
    if way.startswith(MODERN) and _NATIVE in found:
        return ""
    return found[0] if found and revision == REVISIONS[-1] else ""


def slow_start(url: str, scenario: str) -> str:
    """Why a scenario that gives a new session SUITE_START_S may fail; empty: servers start in time."""
    if scenario != "server-initialize" or (took_s := seconds_to_start(url)) < SUITE_START_S:
        return ""
    return f"a new server took {took_s:.1f} s to start on this machine; the suite waits {SUITE_START_S:g} s"


def compared(url: str, revision: str, way: str, direct: Counts, through: Counts) -> int:
    """Print the differences; the number of those that nothing explains."""
    defects = 0
    passed, failed = (sum(count[index] for count in through.values()) for index in (0, 1))
    alone_passed = sum(count[0] for count in direct.values())
    sys.stdout.write(f"{revision}  {way:14} {len(through)} scenarios: {alone_passed} checks passed alone, ")
    sys.stdout.write(f"{passed} through the gateway, {failed} failed\n")
    for scenario in sorted(direct):
        if is_lost(scenario, direct, through):
            why = reason(scenario, revision, way) or slow_start(url, scenario)
            defects += not why
            sys.stdout.write(f"    {scenario:48} {through.get(scenario)}  {why or 'DEFECT'}\n")
    sys.stdout.flush()
    return defects


def main() -> int:
    if why := missing():
        sys.exit(why)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("everything", type=Path, metavar="EVERYTHING.py")
    parser.add_argument("--revisions", nargs="+", choices=REVISIONS, default=REVISIONS)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="to the server behind the gateway")
    parser.add_argument("--only", default="", metavar="PATTERN", help="names of scenarios, such as 'input-required-*'")
    options = parser.parse_args()
    everything, defects = options.everything.resolve(), 0
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        folder.chmod(0o755)
        with alone(everything, folder / "log_of_server") as url:
            ways = {
                "process": {"command": sys.executable, "args": ["-c", _SERVE, str(everything)]},
                "url": {"url": url},
            }
            ways |= {f"{MODERN}{way}": entry | {"revision": REVISIONS[-1]} for way, entry in ways.items()}
            directly = {revision: counted(url, revision, options.only) for revision in options.revisions}
            for way in options.ways:
                entry = ways[way]
                (here := folder / way).mkdir()
                flags = ("--readable", json.dumps([str(ROOT), str(everything.parent)]), "--log_level", "WARNING")
                with gateway(here, {"everything": entry}, *flags) as started:
                    for revision in options.revisions:
                        if way.startswith(MODERN) and revision != REVISIONS[-1]:
                            continue  # such a server cannot ask by requests, as older scenarios want it to
                        direct, here_url = directly[revision], f"{started.url}/mcp"
                        through = counted(here_url, revision, options.only)
                        through = repeated(here_url, revision, way, direct, through)
                        defects += compared(here_url, revision, way, direct, through)
    sys.stdout.write(f"defects={defects}\n")
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
