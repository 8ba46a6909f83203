"""The least that is an MCP server over stdio: one tool, by the standard library alone: the gateway's own costs show."""

import json
import sys

SCHEMA = {"type": "object", "properties": {"expression": {"type": "string"}}}
TOOL = {"name": "calculate", "description": "Say it again.", "inputSchema": SCHEMA}
INFO = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "light", "version": "1"}}


def main() -> None:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" not in message:
            continue
        method = message["method"]
        if method == "initialize":
            result: object = INFO
        elif method == "tools/list":
            result = {"tools": [TOOL]}
        else:
            text = str(message.get("params", {}).get("arguments", {}).get("expression"))
            result = {"content": [{"type": "text", "text": text}], "isError": False}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
