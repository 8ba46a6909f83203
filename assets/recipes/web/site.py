"""The site of the recipe: pages of coloured links, 112 x 112 pixels, as HTML, and as pictures for the warm-up.

/page/173              four links, one below the other; the one of the first colour that the task names leads to /page/173/red
/page/173/red/blue     … and so on; after three right ones the title has a code
/page/173/lost         behind every other link

The colours, their order and the code follow from the page's number. A page's script follows links without a new document, as
single-page applications do: what its elements are is fetched, which takes a fifth of the processor time.
"""

import random
from dataclasses import dataclass

from PIL import Image, ImageDraw

from assets.vision.drawing import CELL, COLOURS, EDGE, png

CLICKS, LINKS, MARGIN = 3, EDGE // CELL, 2
LOST = "lost"
STYLE = f"body{{margin:0;background:white}}a{{position:absolute;left:{MARGIN}px;right:{MARGIN}px;height:{CELL - 2 * MARGIN}px}}"
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
    row: int

    @property
    def middle(self) -> tuple[int, int]:
        """x and y, in pixels."""
        return EDGE // 2, self.row * CELL + CELL // 2


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
        """Of the page after `step` right clicks; the right one is the first."""
        rng = random.Random(f"links {self.page} {step}")
        right = self.route[step]
        colours = [right, *rng.sample([colour for colour in COLOURS if colour != right], LINKS - 1)]
        return [Link(colour, row) for colour, row in zip(colours, rng.sample(range(LINKS), LINKS), strict=True)]

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
            box = f"top:{link.row * CELL + MARGIN}px;background:rgb{COLOURS[link.colour]}"
            anchors.append(f'<a href="/page/{self.page}/{target}" style="{box}"></a>')
        head = f"<!doctype html><title>{self.title(path)}</title><style>{STYLE}</style><script>{SCRIPT}</script>"
        return f"{head}<body>{''.join(anchors)}</body>"

    def picture(self, path: list[str]) -> bytes:
        """The same as a PNG, pixel for pixel what Chromium shows."""
        image = Image.new("RGB", (EDGE, EDGE), "white")
        draw = ImageDraw.Draw(image)
        for link in self.shown_links(path):
            top = link.row * CELL
            corners = (MARGIN, top + MARGIN, EDGE - MARGIN - 1, top + CELL - MARGIN - 1)
            draw.rectangle(corners, fill=COLOURS[link.colour])
        return png(image)
