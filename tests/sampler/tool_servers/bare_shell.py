"""A stdio tool server without a library, whose tools run a shell command, as a model would have it, and end the server."""

import json
import os
import subprocess
import sys
from typing import Any

TOOLS = {"run": "command", "exit": "status"}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    method, params = request["method"], request.get("params") or {}
    if method == "initialize":
        version = params["protocolVersion"]
        return {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "shell", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    if params["name"] == "exit":
        os._exit(params["arguments"]["status"])
    ran = subprocess.run(
        ["bash", "-c", params["arguments"]["command"]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    return {"content": [{"type": "text", "text": ran.stdout}]}


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": answer(request)}), flush=True)


if __name__ == "__main__":
    main()
