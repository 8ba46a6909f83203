"""A stdio tool server without a library: it takes a while to start, and writes into a file when it began and when it was open.

slow_start.py FILE TOGETHER        opens once so many have begun
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

START_S = 0.05


def note(word: str) -> None:
    with open(sys.argv[1], "ab", buffering=0) as file:
        file.write(f"{word}\n".encode())  # one write, appended whole


def answer(method: str, version: str) -> dict[str, Any]:
    if method == "initialize":
        return {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "slow", "version": "1"},
        }
    note("open")
    return {"tools": [{"name": f"tool_{os.getpid()}", "inputSchema": {"type": "object"}}]}


def main() -> None:
    note("started")
    while Path(sys.argv[1]).read_bytes().split().count(b"started") < int(sys.argv[2]):
        time.sleep(0.01)  # the other servers write into the file, which tells nobody of it
    time.sleep(START_S)
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            version = request.get("params", {}).get("protocolVersion", "")
            result = answer(request["method"], version)
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
