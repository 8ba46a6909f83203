"""The site of the recipe: pages of coloured links, 112 x 112 pixels, as HTML, and as pictures for the warm-up.

/page/173              four links; one of the first colour that the task names leads to /page/173/red
/page/173/red/blue     … and so on; after three right ones the title has a code
/page/173/lost         behind every other link

Which colours, where, and the code follow from the page's number.
"""

import random
from dataclasses import dataclass

from PIL import Image, ImageDraw

from assets.vision.drawing import CELL, COLOURS, EDGE, png

CLICKS, LINKS, MARGIN = 3, 4, 2
LOST = "lost"


@dataclass(frozen=True)
class Link:
    colour: str
    column: int
    row: int

    @property
    def middle(self) -> tuple[int, int]:
        """x and y, in pixels."""
        return self.column * CELL + CELL // 2, self.row * CELL + CELL // 2


@dataclass(frozen=True)
class Site:
    page: int

    @property
    def route(self) -> list[str]:
        """The colours that lead to the code."""
        return random.Random(f"route {self.page}").sample(list(COLOURS), CLICKS)

    @property
    def code(self) -> int:
        return random.Random(f"code {self.page}").randint(10, 99)

    def links(self, step: int) -> list[Link]:
        """Of the page after `step` right clicks."""
        rng = random.Random(f"links {self.page} {step}")
        right = self.route[step]
        colours = [right, *rng.sample([colour for colour in COLOURS if colour != right], LINKS - 1)]
        places = rng.sample([(column, row) for column in range(EDGE // CELL) for row in range(EDGE // CELL)], LINKS)
        return [Link(colour, *place) for colour, place in zip(colours, places, strict=True)]

    def title(self, path: list[str]) -> str:
        """Of /page/NUMBER/PATH: "code 47" where the route ends."""
        return f"code {self.code}" if path == self.route else "page" if path == self.route[: len(path)] else LOST

    def shown_links(self, path: list[str]) -> list[Link]:
        on_route = path == self.route[: len(path)]
        return self.links(len(path)) if on_route and len(path) < CLICKS else []

    def html(self, path: list[str]) -> str:
        """Of /page/NUMBER/PATH."""
        anchors = []
        for link in self.shown_links(path):
            target = "/".join([*path, link.colour]) if link.colour == self.route[len(path)] else LOST
            left, top, edge = link.column * CELL + MARGIN, link.row * CELL + MARGIN, CELL - 2 * MARGIN
            box = f"left:{left}px;top:{top}px;width:{edge}px;height:{edge}px;background:rgb{COLOURS[link.colour]}"
            anchors.append(f'<a href="/page/{self.page}/{target}" style="{box}"></a>')
        style = "body{margin:0;background:white}a{position:absolute}"
        body = f"<style>{style}</style><body>{''.join(anchors)}</body>"
        return f"<!doctype html><title>{self.title(path)}</title>{body}"

    def picture(self, path: list[str]) -> bytes:
        """The same as a PNG, pixel for pixel what Chromium shows."""
        image = Image.new("RGB", (EDGE, EDGE), "white")
        draw = ImageDraw.Draw(image)
        for link in self.shown_links(path):
            left, top = link.column * CELL, link.row * CELL
            corners = (left + MARGIN, top + MARGIN, left + CELL - MARGIN - 1, top + CELL - MARGIN - 1)
            draw.rectangle(corners, fill=COLOURS[link.colour])
        return png(image)
