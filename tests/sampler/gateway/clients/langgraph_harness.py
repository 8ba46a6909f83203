"""LangGraph's ReAct agent in a process of its own: it claims tasks at a gateway and plays them with the tools of an MCP server.

python langgraph_harness.py http://127.0.0.1:9800 http://127.0.0.1:9700/mcp --at_once 32      until it is interrupted
"""

import argparse
import asyncio

import httpx
from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_openai import ChatOpenAI


async def play(gateway: httpx.AsyncClient, tools: list) -> None:
    answer = await gateway.post("/claim", json={"wait_s": 20})
    if answer.status_code == 503:
        return
    attempt = answer.raise_for_status().json()
    own = {"Authorization": f"Bearer {attempt['api_key']}"}
    model = ChatOpenAI(model=attempt["model"], base_url=attempt["base_url"], api_key=attempt["api_key"])
    said = [(message["role"], message["content"]) for message in attempt["messages"]]
    try:
        state = await create_agent(model, tools).ainvoke({"messages": said})
        end = {"answer": state["messages"][-1].content}
    except Exception as exc:  # noqa: BLE001 - the agent's code; the gateway knows whether a limit of the episode was the cause
        end = {"error": repr(exc)}
    await gateway.post("/finish", json=end, headers=own)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gateway")
    parser.add_argument("tools")
    parser.add_argument("--at_once", type=int, default=32)
    given = parser.parse_args()
    servers = {"tools": {"transport": "streamable_http", "url": given.tools}}
    tools = await MultiServerMCPClient(servers).get_tools()

    async def play_on() -> None:
        while True:
            await play(gateway, tools)

    async with httpx.AsyncClient(base_url=given.gateway, timeout=120) as gateway, asyncio.TaskGroup() as group:
        for _ in range(given.at_once):
            group.create_task(play_on())


asyncio.run(main())
