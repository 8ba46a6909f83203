"""What the pictures of recipes share: 112 x 112 pixels, and a few colours."""

import io

from PIL import Image

EDGE, CELL = 112, 28  # pixels: of a picture, and of a token of the recipes' model
COLOURS = {
    "red": (200, 30, 30),
    "green": (20, 130, 40),
    "blue": (30, 60, 200),
    "orange": (225, 120, 0),
    "purple": (130, 40, 150),
    "black": (10, 10, 10),
}


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
