"""A stdio MCP server with invalid answers: `hostile.py [LISTING]`, whose tool `attack` takes the kind of answer.

Every kind stands in ANSWERS (what a call gets, as a raw line; `@ID@` is its id), every listing in LISTINGS.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

MB = 1_000_000
Line = str


def result(**fields: Any) -> Line:
    return json.dumps({"jsonrpc": "2.0", "id": "@ID@", "result": fields}).replace('"@ID@"', "@ID@")


def error(**fields: Any) -> Line:
    return json.dumps({"jsonrpc": "2.0", "id": "@ID@", "error": fields}).replace('"@ID@"', "@ID@")


def text(value: Any, **fields: Any) -> Line:
    return result(content=[{"type": "text", "text": value}], **fields)


def raw_result(body: str) -> Line:
    return '{"jsonrpc": "2.0", "id": @ID@, "result": ' + body + "}"


def notice(method: str, **params: Any) -> Line:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params})


ANSWERS: dict[str, Callable[[], Line]] = {
    "long_error": lambda: text("e" * 3 * MB, isError=True),
    "unknown_blocks": lambda: result(content=[{"type": "smell", "value": "x" * 100}] * 600),
    "faulty_blocks": lambda: result(content=[{}, None, 7, {"type": "image"}, {"type": "text", "text": 5}] * 30_000),
    "long_rpc_error": lambda: error(code=-32603, message="m" * 3 * MB, data={"d": "x" * MB}),
    "failure_in_long_words": lambda: error(code=-32700, message="\ud83d" + "é" * MB),
    "code_of_thirty_digits": lambda: error(code=10**30, message="big"),
    "error_of_wrong_types": lambda: error(code="x", message=5),
    "result_of_wrong_type": lambda: raw_result('["a"]'),
    "content_of_wrong_type": lambda: result(content={"type": "text"}, isError="maybe"),
    "no_content": lambda: result(),
    "half_an_emoji": lambda: text("a\ud83d", structuredContent={"k\udc00": "v\ud83d"}),
    "control_characters": lambda: text("\x00\x01\x1b[2J\u202e" + chr(0xF0000) + "<|im_end|>"),
    "large_numbers": lambda: text("n", structuredContent={"n": 2**70, "m": -(10**4000)}),
    "no_numbers": lambda: raw_result('{"content": [], "structuredContent": {"n": NaN, "m": -Infinity, "l": 1e999}}'),
    "keys_of_the_database": lambda: text("k", structuredContent={"$set": {"a.b": 1}, "": 2, "a\x00b": {"$literal": 3}}),
    "deep": lambda: raw_result('{"content": [], "structuredContent": ' + '{"a":' * 150 + "1" + "}" * 150 + "}"),
    "too_deep": lambda: raw_result('{"content": ' + "[" * 50_000),
    "long_link": lambda: result(content=[{"type": "resource_link", "name": "n" * MB, "uri": "file:///" + "u" * MB}]),
    "long_kinds": lambda: result(content=[{"type": "image", "mimeType": "i/" + "p" * MB, "data": "A" * MB}]),
    "twice": lambda: text("one") + "\n" + text("two") + "\n" + text("three").replace("@ID@", "123456"),
    "notices": lambda: (
        "\n".join(
            [
                notice("notifications/progress", progressToken="@ID@", progress=1e999, total="x", message=5),
                notice("notifications/progress", progressToken=[], progress={}),
                notice("notifications/message", level="loud", data="x" * MB),
                notice("notifications/tools/list_changed", x=1),
                notice("notifications/cancelled", requestId="@ID@", reason=3),
                notice("no/such/notice"),
                json.dumps({"jsonrpc": "2.0", "id": {"a": 1}, "method": "sampling/createMessage", "params": 3}),
                json.dumps({"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": {"messages": 3}}),
                json.dumps({"jsonrpc": "2.0", "id": "e", "method": "elicitation/create", "params": {}}),
                json.dumps({"jsonrpc": "2.0", "id": 2, "method": "roots/list"}),
                json.dumps({"jsonrpc": "2.0", "id": 3, "method": "ping"}),
            ]
        )
        + "\n"
        + text("after notices")
    ),
}

TOOL = {"name": "attack", "description": "Attack.", "inputSchema": {"type": "object"}}


def tool(**fields: Any) -> dict[str, Any]:
    return {**TOOL, **fields}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


LISTINGS: dict[str, dict[str, Any]] = {
    "long_description": {"tools": [tool(description="d" * 3 * MB)]},
    "many_tools": {"tools": [tool(name=f"t{n}") for n in range(20_000)]},
    "no_tools": {"tools": [{}] * 100_000},
    "tools_of_wrong_types": {"tools": [5, None, "attack"]},
    "schema_of_wrong_type": {"tools": [tool(inputSchema=[1])]},
    "schema_of_strange_values": {
        "tools": [tool(inputSchema={"type": 5, "properties": [], "required": {"a": 1}, "n": 2**90, "f": float("nan")})]
    },
    "strange_properties": {
        "tools": [tool(inputSchema={"type": "object", "properties": {"a": 5, "$b.c": None, "": []}})]
    },
    "deep_schema": {"tools": [tool(inputSchema=nested(60))]},
    "strange_names": {"tools": [tool(), tool(name="a\x00b"), tool(name=""), tool(name="\ud83d"), tool(name="n" * MB)]},
    "names_twice": {"tools": [tool(), tool()]},
    "endless_pages": {"tools": [tool()], "nextCursor": "again"},
    "cursor_of_wrong_type": {"tools": [tool()], "nextCursor": {"a": 1}},
    "no_list": {"tools": "none"},
}


def main() -> None:
    listing = LISTINGS.get(sys.argv[1] if len(sys.argv) > 1 else "", {"tools": [TOOL]})
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        match message["method"]:
            case "initialize":
                fields = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}}}
                said = result(**fields, serverInfo={"name": "h" * MB, "version": "1"}, instructions="i" * MB)
            case "tools/list":
                said = result(**listing)
            case "tools/call":
                said = ANSWERS[message["params"]["arguments"]["kind"]]()
            case _:
                said = result()
        sys.stdout.write(said.replace("@ID@", json.dumps(message["id"])) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
