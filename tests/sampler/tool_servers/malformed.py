"""A tool server over stdio whose notifications have the wrong types; its answers are right.

Its tool `refuse` answers with a code that the SDK uses too, for an answer over HTTP that it cannot read.
"""

import json
import sys
from typing import Any


def told(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0"} | message), flush=True)


for line in sys.stdin:
    asked = json.loads(line)
    match asked["method"]:
        case "initialize":
            server = {"serverInfo": {"name": "malformed", "version": "1"}, "capabilities": {"tools": {}}}
            told({"id": asked["id"], "result": server | {"protocolVersion": asked["params"]["protocolVersion"]}})
        case "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("say", "refuse")]
            told({"id": asked["id"], "result": {"tools": tools}})
        case "tools/call" if asked["params"]["name"] == "refuse":
            told({"id": asked["id"], "error": {"code": -32700, "message": "Failed to parse the expression"}})
        case "tools/call":
            for wrong in ([1], {}, None, 1.5, True, "x" * 10_000):
                told({"method": "notifications/progress", "params": {"progressToken": wrong, "progress": 1}})
                told({"method": "notifications/cancelled", "params": {"requestId": wrong}})
                told({"method": "notifications/message", "params": {"level": wrong, "data": wrong}})
                told({"id": wrong, "result": {}})
            told({"id": asked["id"], "result": {"content": [{"type": "text", "text": "said"}]}})
