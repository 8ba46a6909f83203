"""Tasks of which the slow ones carry a lesson: the bundled example with look-ups that wait for a tool.

Every third training task is a look-up, which needs two tool calls one after the other, the others are sums. The first call of
a look-up takes S·(2 + exp N(0, 1)) seconds, 12·S at most, by its box: so all episodes of a group are slow alike, look-ups are
slower than sums, and their durations have a long tail. Held-out tasks ask for other boxes, which do not wait.
"""

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "assets" / "example"
TRAIN_FILE = EXAMPLE / "train.jsonl"
EVAL_FILE = EXAMPLE / "eval.jsonl"
SUMS_TO_A_LOOK_UP = 2
BOX = re.compile(r"box (\w+)")
MOST = 12.0  # times S
PATIENCE_S = 60.0  # beyond the longest wait, until a silent call is a failure
PLACES = 256  # a sampler's: episodes that wait for a tool leave the engine to others
STOP_S = 10.0


@contextmanager
def slow_tasks(folder: Path, slow_s: float) -> Iterator[dict[str, str]]:
    """The launcher's environment for runs with such tasks, while their tool server runs; without `slow_s` nothing changes."""
    if not slow_s:
        yield {}
        return
    lines = TRAIN_FILE.read_text(encoding="utf-8").splitlines()
    sums = [line for line in lines if json.loads(line)["source"] == "arithmetic"]
    look_ups = [line for line in lines if json.loads(line)["source"] == "lookup"]
    tasks, delays = folder / "tasks.jsonl", folder / "delays.json"
    tasks.write_text("\n".join(mixed(sums, look_ups)) + "\n", encoding="utf-8")
    delays.write_text(json.dumps(delays_of(look_ups, slow_s)), encoding="utf-8")
    command = [sys.executable, str(EXAMPLE / "tool_server.py"), "--port", "0", "--delays", str(delays)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        said = server.stderr.readline()
        if not said.startswith("tools at "):
            raise SystemExit(f"the tool server did not start: {said.strip() or 'it said nothing'}")
        yield {
            "TRAIN_FILE": str(tasks),
            "EVAL_FILE": str(EVAL_FILE),  # own tasks bring no evaluation
            "MCP_MANAGER_URL": said.removeprefix("tools at ").strip(),
            "TANDEM_SAMPLER_TOOL_TIMEOUT_S": str(MOST * slow_s + PATIENCE_S),
            "TANDEM_SAMPLER_MAX_CONCURRENT_EPISODES": str(PLACES),
        }
    finally:
        server.terminate()
        server.wait(STOP_S)
        if server.stderr is not None:
            server.stderr.close()


def mixed(sums: list[str], look_ups: list[str]) -> list[str]:
    found: list[str] = []
    for place, look_up in enumerate(look_ups):
        some = sums[SUMS_TO_A_LOOK_UP * place : SUMS_TO_A_LOOK_UP * (place + 1)]
        if len(some) < SUMS_TO_A_LOOK_UP:
            break
        found += [*some, look_up]
    return found


def delays_of(look_ups: list[str], slow_s: float) -> dict[str, float]:
    """{box: seconds}, the same in every run."""
    boxes = [found[1] for line in look_ups if (found := BOX.search(json.loads(line)["query"]))]
    return {box: round(slow_s * min(2.0 + random.Random(box).lognormvariate(0.0, 1.0), MOST), 3) for box in boxes}
