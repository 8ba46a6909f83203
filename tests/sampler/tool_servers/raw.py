"""A stdio MCP server that answers a call with any bytes: it parses nothing but its own few requests.

say    {"pieces": [base64, …]}   the pieces, one after the other; `@ID@` in them is the call's id
repeat {"piece": base64, "times": n, "before": base64, "after": base64}
die    {"status": n, "last": text on stderr}
"""

import base64
import json
import os
import sys
from typing import Any


def write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def answer(request: Any, result: dict[str, Any]) -> None:
    write(json.dumps({"jsonrpc": "2.0", "id": request, "result": result}).encode() + b"\n")


def call(request: Any, name: str, arguments: dict[str, Any]) -> None:
    def raw(text: str) -> bytes:
        return base64.b64decode(text).replace(b"@ID@", str(request).encode())

    if name == "say":
        for piece in arguments["pieces"]:
            write(raw(piece))
    elif name == "repeat":
        write(raw(arguments["before"]))
        piece = raw(arguments["piece"])
        for _ in range(arguments["times"]):
            sys.stdout.buffer.write(piece)
        write(raw(arguments["after"]))
    else:
        sys.stderr.write(arguments["last"])
        sys.stderr.flush()
        os._exit(arguments["status"])


def main() -> None:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" not in message:
            continue
        match message.get("method"):
            case "initialize":
                about = {"serverInfo": {"name": "raw", "version": "1"}, "capabilities": {"tools": {}}}
                answer(message["id"], {"protocolVersion": message["params"]["protocolVersion"], **about})
            case "tools/list":
                names = ("say", "repeat", "die")
                answer(message["id"], {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]})
            case "tools/call":
                call(message["id"], message["params"]["name"], message["params"]["arguments"])
            case _:
                answer(message["id"], {})


if __name__ == "__main__":
    main()
