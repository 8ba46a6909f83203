"""The server scenarios of the MCP conformance suite, through the gateway.

`python -m tests.sampler.mcp_docker.conformance EVERYTHING.py` runs each scenario against a server alone, then against the
gateway in front of it: as a process, and by its URL (`--ways`), with the handshake, and at 2026-07-28 alone with that
revision in the entry (`modern_process`, `modern_url`). `--only PATTERN` runs some scenarios. `excuses` (in `conformance_excuses`)
has the checks that may fail through the gateway alone, each with its reason. The exit status is 1 if another check fails or
vanishes, and if one that is excused passes: then its excuse is to be removed.

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
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

import httpx

from shared.processes.mongod import free_port
from tests.sampler.conformance import command, missing
from tests.sampler.mcp_docker.conformance_excuses import (
    MODERN,
    REVISIONS,
    SUITE_START_S,
    WAYS,
    Check,
    differences,
    excuses,
)
from tests.sampler.mcp_docker.gateways import PATIENCE_S, ROOT, gateway

SUITE_S = 1800
_FOLDER = re.compile(r"server-(.+)-[0-9]{4}-[0-9]{2}-[0-9]{2}T")
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
Outcomes = dict[Check, bool]  # scenario and check: has it passed each time?


def outcomes(url: str, revision: str, only: str = "") -> Outcomes:
    """Of the server scenarios of a revision; `only`: those whose name fits this pattern."""
    if not only:
        found = told(url, revision, "--suite", "all")
        if not found:
            raise RuntimeError(f"{url}: the suite ran nothing")
        return found
    listed = subprocess.run([*command(), "list"], capture_output=True, text=True, check=True).stdout
    names = sorted(set(re.findall(r"^\s*-?\s*([a-z][a-z0-9-]+)", listed, re.MULTILINE)))
    return {
        check: passed
        for name in names
        if fnmatchcase(name, only)
        for check, passed in told(url, revision, "--scenario", name).items()
    }


def told(url: str, revision: str, *which: str) -> Outcomes:
    """Empty: the revision has no such scenario for servers."""
    with tempfile.TemporaryDirectory() as folder:
        given = ["server", "--url", url, *which, "--spec-version", revision, "--timeout", "120000", "-o", folder]
        subprocess.run([*command(), *given], capture_output=True, text=True, timeout=SUITE_S, check=False)
        found: defaultdict[Check, bool] = defaultdict(lambda: True)
        for path in sorted(Path(folder).glob("*/checks.json")):
            named = _FOLDER.match(path.parent.name)
            assert named is not None, path
            for check in json.loads(path.read_text()):
                if check["status"] in ("SUCCESS", "FAILURE"):
                    found[named[1], check["id"]] &= check["status"] == "SUCCESS"
    return dict(found)


def repeated(url: str, revision: str, way: str, direct: Outcomes, through: Outcomes) -> Outcomes:
    """Scenarios with a difference that nothing explains run once more: some requests have 5 s, which a busy machine misses."""
    for scenario in sorted({check[0] for check, _ in differences(direct, through, excuses(way, revision))}):
        again = told(url, revision, "--scenario", scenario)
        through = {check: passed for check, passed in through.items() if check[0] != scenario} | again
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


def compared(url: str, revision: str, way: str, direct: Outcomes, through: Outcomes) -> int:
    """Print the differences; the number of those that nothing explains."""
    known = excuses(way, revision, is_slow=seconds_to_start(url) >= SUITE_START_S)
    sys.stdout.write(f"{revision}  {way:14} {len({scenario for scenario, _ in through})} scenarios: ")
    sys.stdout.write(f"{sum(direct.values())} of {len(direct)} checks passed alone, ")
    sys.stdout.write(f"{sum(through.values())} of {len(through)} through the gateway\n")
    for check, passed in sorted(direct.items()):
        if check in known and passed and not through.get(check, False):
            sys.stdout.write(f"    excused  {' '.join(check):90} {known[check].why}\n")
    defects = differences(direct, through, known)
    for check, what in defects:
        sys.stdout.write(f"    DEFECT   {' '.join(check):90} {what}\n")
    sys.stdout.flush()
    return len(defects)


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
            directly = {revision: outcomes(url, revision, options.only) for revision in options.revisions}
            for way in options.ways:
                entry = ways[way]
                (here := folder / way).mkdir()
                flags = ("--readable", json.dumps([str(ROOT), str(everything.parent)]), "--log_level", "WARNING")
                with gateway(here, {"everything": entry}, *flags) as started:
                    for revision in options.revisions:
                        if way.startswith(MODERN) and revision != REVISIONS[-1]:
                            continue  # such a server cannot ask by requests, as older scenarios want it to
                        direct, here_url = directly[revision], f"{started.url}/mcp"
                        through = outcomes(here_url, revision, options.only)
                        through = repeated(here_url, revision, way, direct, through)
                        defects += compared(here_url, revision, way, direct, through)
    sys.stdout.write(f"defects={defects}\n")
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
