"""The site of the recipe: pages of coloured links, 112 x 112 pixels, as HTML, and as pictures for the warm-up.

/page/173              four links; the green one leads to /page/173/green
/page/173/green/green  … and so on; after three green ones the title has a code
/page/173/lost         behind every other link: its title has a wrong code

Where the green link is, how large each is, the colours of the others, and the code follow from the page's number. A page's
script follows links without a new document, as single-page applications do: a navigation takes much more processor time.
"""

import random
from dataclasses import dataclass

from PIL import Image, ImageDraw

from assets.vision.drawing import EDGE, png

CLICKS, LOST = 3, "lost"
RIGHT = "green"  # of the links that lead on
PAINTS = {  # as far apart as colours are, once white is 0 (`assets.vision.untrained`)
    RIGHT: (0, 255, 0),
    "red": (255, 0, 0),
    "blue": (0, 0, 255),
    "cyan": (0, 255, 255),
    "pink": (255, 0, 255),
    "yellow": (255, 255, 0),
}
TILE, GAPS = (
    EDGE // 2,
    range(2, 14),
)  # pixels of a link's place, and from each of its sides to the link: its middle is the link's
ROUTE = [RIGHT] * CLICKS
PLACES = [(x, y) for y in (0, TILE) for x in (0, TILE)]
STYLE = "body{margin:0;background:white}a{position:absolute}"
SCRIPT = """
let showing
function show(address) {
  showing = (async () => {
    const reply = await fetch(address)
    const page = new DOMParser().parseFromString(await reply.text(), 'text/html')
    document.body.replaceChildren(...page.querySelectorAll('a'))
    document.title = page.title
    history.replaceState(null, '', address)
    return true
  })()
  return showing
}
document.onclick = event => {
  const link = event.target.closest('a')
  if (link) { event.preventDefault(); show(link.href) }
}
"""


@dataclass(frozen=True)
class Link:
    colour: str
    place: tuple[int, int]  # x and y, pixels
    gaps: tuple[int, ...]  # left, top, right, bottom

    @property
    def middle(self) -> tuple[int, int]:
        """Of its place: x and y, in pixels."""
        return self.place[0] + TILE // 2, self.place[1] + TILE // 2

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, width, height, in pixels."""
        left, top, right, bottom = self.gaps
        return self.place[0] + left, self.place[1] + top, TILE - left - right, TILE - top - bottom


@dataclass(frozen=True)
class Site:
    page: int

    @property
    def code(self) -> int:
        return self._codes[0]

    @property
    def wrong_code(self) -> int:
        return self._codes[1]

    @property
    def _codes(self) -> list[int]:
        return random.Random(f"codes {self.page}").sample(range(10, 100), 2)

    def links(self, path: list[str]) -> list[Link]:
        """Of /page/NUMBER/PATH; the right one is the first."""
        if path != ROUTE[: len(path)] or len(path) == CLICKS:
            return []
        rng = random.Random(f"links {self.page} {len(path)}")
        others = rng.sample([colour for colour in PAINTS if colour != RIGHT], len(PLACES) - 1)
        places = rng.sample(PLACES, len(PLACES))
        gaps = [tuple(rng.choices(GAPS, k=4)) for _ in places]
        return [Link(*link) for link in zip([RIGHT, *others], places, gaps, strict=True)]

    def title(self, path: list[str]) -> str:
        """The title of /page/NUMBER/PATH: "code 47" at the end of the route, "lost 12" at a wrong link."""
        if path == ROUTE:
            return f"code {self.code}"
        return "page" if path == ROUTE[: len(path)] else f"lost {self.wrong_code}"

    def html(self, path: list[str]) -> str:
        """Of /page/NUMBER/PATH."""
        anchors = []
        for link in self.links(path):
            target = "/".join([*path, RIGHT]) if link.colour == RIGHT else LOST
            left, top, width, height = link.box
            style = f"left:{left}px;top:{top}px;width:{width}px;height:{height}px;background:rgb{PAINTS[link.colour]}"
            anchors.append(f'<a href="/page/{self.page}/{target}" style="{style}"></a>')
        head = f"<!doctype html><title>{self.title(path)}</title><style>{STYLE}</style><script>{SCRIPT}</script>"
        return f"{head}<body>{''.join(anchors)}</body>"

    def picture(self, path: list[str]) -> bytes:
        """The same as a PNG, pixel for pixel what Chromium shows."""
        image = Image.new("RGB", (EDGE, EDGE), "white")
        draw = ImageDraw.Draw(image)
        for link in self.links(path):
            left, top, width, height = link.box
            draw.rectangle((left, top, left + width - 1, top + height - 1), fill=PAINTS[link.colour])
        return png(image)
