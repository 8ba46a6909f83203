"""`python -m tests.sampler.conformance_client REVISION URL`: an episode of ours against a server of the MCP conformance suite.

The suite starts it, and gives credentials in MCP_CONFORMANCE_CONTEXT (JSON).
"""

import asyncio
import json
import os
import sys
from typing import Any
from urllib.parse import urlsplit

import httpx

from sampler.core.errors import ToolFailure
from sampler.core.tools import ToolSession, parse_servers

# What each kind of argument is given, where a schema names no choice.
VALUES = {"number": 2, "integer": 2, "boolean": True, "string": "x", "array": [], "object": {}}


async def main(revision: str, url: str) -> None:
    entry: dict[str, Any] = {"url": url, "revision": revision}
    given = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    if "client_id" in given:
        entry["auth"] = credentials(given, await issuer_of(url))
    calls = given.get("toolCalls")
    async with ToolSession(parse_servers({"mcpServers": {"suite": entry}})) as session:
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in session.list_tools()}
        for call in calls or [{"name": name, "arguments": arguments_for(name, schemas)} for name in schemas]:
            try:
                told = (await session.call(call["name"], call["arguments"])).text
            except ToolFailure as exc:  # one scenario only lists: its server knows no calls
                told = f"{type(exc).__name__}: {exc}"
            sys.stdout.write(f"{call['name']}: {told[:200]}\n")  # the suite keeps it


def arguments_for(name: str, schemas: dict[str, Any]) -> dict[str, Any]:
    if name == "json_schema_echo":  # the scenario describes the value to echo in words
        return {"schema": schemas["json_schema_2020_12_tool"]}
    fields = schemas[name].get("properties", {}).items()
    return {name: field.get("enum", [VALUES.get(str(field.get("type")), "x")])[0] for name, field in fields}


def credentials(given: dict[str, Any], issuer: str) -> dict[str, str]:
    entry = {"type": "client_credentials", "issuer": issuer, "client_id": given["client_id"]}
    if "private_key_pem" in given:
        return entry | {"private_key": given["private_key_pem"], "algorithm": given.get("signing_algorithm", "ES256")}
    return entry | {"client_secret": given["client_secret"]}


async def issuer_of(url: str) -> str:
    """People know it; here the suite's server tells it."""
    parts = urlsplit(url)
    async with httpx.AsyncClient() as http:
        place = f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource{parts.path}"
        found = (await http.get(place)).json()
    return str(found["authorization_servers"][0])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
