"""LangGraph's ReAct agent with OpenAI's dialect; `mcp COMMAND …`, `mcp URL`: with the tools of an MCP server."""

import asyncio
import os
import sys

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def tools_of(command: list[str]) -> list:
    from langchain_mcp_adapters.client import MultiServerMCPClient

    server = {"transport": "stdio", "command": command[0], "args": command[1:]}
    if command[0].startswith("http"):
        server = {"transport": "streamable_http", "url": command[0]}
    return await MultiServerMCPClient({"tools": server}).get_tools()


async def main() -> None:
    tools = await tools_of(sys.argv[2:]) if sys.argv[1:2] == ["mcp"] else [add]
    model = ChatOpenAI(model=os.environ["OPENAI_MODEL"], streaming="stream" in sys.argv)
    agent = create_agent(model, tools)
    state = await agent.ainvoke({"messages": [("user", sys.stdin.read())]})
    print(state["messages"][-1].content)


asyncio.run(main())
