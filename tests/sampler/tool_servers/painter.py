"""A real MCP server whose tools answer with images: `painter.py stdio`."""

import io
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Image
from mcp_types import BlobResourceContents, EmbeddedResource, ImageContent, TextContent
from PIL import Image as Picture

server = MCPServer("painter", log_level="WARNING")


def png(height: int, width: int, shade: int) -> bytes:
    """Three bands of one shade, one in each colour."""
    picture = Picture.new("RGB", (width, height), (shade, 0, 0))
    picture.paste((0, shade, 0), (0, height // 3, width, 2 * height // 3))
    picture.paste((0, 0, shade), (0, 2 * height // 3, width, height))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


@server.tool(structured_output=False)
def paint(height: int, width: int, shade: int) -> list[Any]:
    """A picture between two texts."""
    return ["The picture:", Image(data=png(height, width, shade), format="png"), f"{height} x {width}"]


@server.tool(structured_output=False)
def album(count: int) -> list[Any]:
    """Pictures alone."""
    return [Image(data=png(28, 28, shade % 256), format="png") for shade in range(count)]


@server.tool(structured_output=False)
def spoilt() -> list[Any]:
    """What is called an image and is none, and one in a resource."""
    import base64

    blob = base64.b64encode(png(28, 56, 200)).decode()
    resource = BlobResourceContents(uri="file:///a.png", mime_type="image/png", blob=blob)
    return [
        ImageContent(type="image", data=base64.b64encode(b"<svg onload='x'/>").decode(), mime_type="image/png"),
        ImageContent(type="image", data="%%%", mime_type="image/png"),
        EmbeddedResource(type="resource", resource=resource),
        TextContent(type="text", text="end"),
    ]


@server.tool(structured_output=False)
def wordy(count: int) -> list[Any]:
    """A long text behind a picture."""
    return [Image(data=png(28, 28, 9), format="png"), "word " * count]


if __name__ == "__main__":
    server.run("stdio")
