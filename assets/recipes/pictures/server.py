"""The tool of the recipe: `calculate` adds whole numbers. `python -m assets.recipes.pictures.server FILE`"""

import asyncio
import re
import sys
from pathlib import Path

from mcp.server import MCPServer

from assets.vision.serving import end_with_parent, serve

SUM = re.compile(r"\d{1,9}(\+\d{1,9})*")
server = MCPServer("calculator", log_level="WARNING")


def calculated(expression: str) -> str:
    """The sum, or what was expected."""
    text = expression.replace(" ", "")
    if not SUM.fullmatch(text):
        return "expected a sum"
    return str(sum(map(int, text.split("+"))))


@server.tool(structured_output=False)
def calculate(expression: str) -> str:
    """Calculates a sum."""
    return calculated(expression)


if __name__ == "__main__":
    end_with_parent()
    asyncio.run(serve(server, Path(sys.argv[1])))
