"""A server of 2026-07-28 over stdio that does what its client says: `scripted_native.py [HABIT]…`.

Its tool `write` writes the given lines instead of an answer; ID in them is the request's id. `listens` counts the listening
streams, `wanted` tells the resources of the last one, `state` repeats the request's state. A stream for `note://held` is
acknowledged at a call of `release`. HABITS are of other requests:
  no-lists     `tools/list` is never answered
  deaf         nothing is read after the first call
  brief        the first listening stream ends in the same breath in which it begins
  refusing     the first listening stream is refused
  wrong-agreement   it agrees to listen for something that is no list
"""

import json
import sys
import time

habits = sys.argv[1:]
listens: list[str] = []
wanted: list[str] = []
held: list[str] = []
TOOLS = [
    {"name": name, "inputSchema": {"type": "object"}} for name in ("write", "listens", "wanted", "release", "state")
]
CAPABILITIES = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}
ANSWERS = {
    "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES},
    "tools/list": {"tools": TOOLS},
}


def write(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def answer(number: object, result: object) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": result})


def agreement(number: object, wanted: object) -> str:
    agreed = {"resourceSubscriptions": 5} if "wrong-agreement" in habits else wanted
    params = {"notifications": agreed, "_meta": {"io.modelcontextprotocol/subscriptionId": number}}
    return json.dumps({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params})


for line in sys.stdin:
    message = json.loads(line)
    method, number, params = message.get("method"), message.get("id"), message.get("params", {})
    if method == "subscriptions/listen":
        listens.append(number)
        end = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}
        ends = [json.dumps(end)] if "brief" in habits and len(listens) == 1 else []
        wanted = params["notifications"].get("resourceSubscriptions", [])
        told = [agreement(number, params["notifications"]), *ends]
        if "refusing" in habits and len(listens) == 1:
            error = {"code": -32603, "message": "not yet"}
            write(json.dumps({"jsonrpc": "2.0", "id": number, "error": error}))
        elif "note://held" in wanted and not held:
            held = told
        else:
            write(*told)
    elif method == "tools/call" and params["name"] in ("wanted", "release"):
        if params["name"] == "release":
            write(*held)
        write(answer(number, {"content": [{"type": "text", "text": " ".join(wanted)}]}))
    elif method == "tools/call" and params["name"] in ("listens", "state"):
        told = str(len(listens)) if params["name"] == "listens" else str(params.get("requestState"))
        write(answer(number, {"content": [{"type": "text", "text": told}]}))
    elif method == "tools/call":
        if "deaf" in habits:
            time.sleep(10_000)
        write(*(each.replace("ID", json.dumps(number)) for each in params["arguments"]["lines"]))
    elif method in ANSWERS and not (method == "tools/list" and "no-lists" in habits):
        write(answer(number, ANSWERS[method]))
