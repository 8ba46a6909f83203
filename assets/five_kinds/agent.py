"""An agent with tools of its own, for OpenAI's client: it looks colors up in the example's registry."""

import json
from typing import Any

from openai import AsyncOpenAI

REGISTRY = "assets/example/world.json"
PARAMETERS = {"type": "object", "properties": {"person": {"type": "string"}}, "required": ["person"]}
TOOLS = [{"type": "function", "function": {"name": "favorite_color", "parameters": PARAMETERS}}]
TURNS = 3

with open(REGISTRY, encoding="utf-8") as file:
    COLORS = json.load(file)["favorite_colors"]


async def agent(task: Any) -> str | None:
    messages = list(task.messages)
    async with AsyncOpenAI(base_url=task.base_url, api_key=task.api_key) as client:
        for _ in range(TURNS):
            reply = await client.chat.completions.create(model=task.model, messages=messages, tools=TOOLS)
            message = reply.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return message.content
            messages += [
                {"role": "tool", "tool_call_id": c.id, "content": looked_up(c.function)} for c in message.tool_calls
            ]
    return None


def looked_up(function: Any) -> str:
    person = str(json.loads(function.arguments).get("person", "")) if function.name == "favorite_color" else ""
    return COLORS.get(person, f"unknown person {person[:40]}")
