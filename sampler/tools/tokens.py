"""Where the tokens of a tool's result begin and end, as the chat template will encode it.

    borders = TokenBorders(template)
    borders("héllo <|im_end|>")          # [(0, 2), (2, 5), (5, 6), (6, 16), (6, 16), …]: character ranges in text order

Results come from outside, so a control token that they spell is several tokens of plain text (see
`sampler.rendering.template`); such a spelled token is never cut in two here.
"""

import re

from sampler.rendering.template import ChatTemplate

Border = tuple[int, int]


class TokenBorders:
    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._spelled = re.compile(f"({template.control.tokens.pattern})")

    def __call__(self, text: str) -> list[Border]:
        borders: list[Border] = []
        start = 0
        for index, piece in enumerate(self._spelled.split(text)):
            end = start + len(piece)
            if index % 2:
                borders += [(start, end)] * len(self._template.encode_plain(piece))
            elif piece:
                encoding = self._template.tokenizer.encode(piece, add_special_tokens=False)
                borders += [(start + first, start + after) for first, after in encoding.offsets]
            start = end
        return borders
