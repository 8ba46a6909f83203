"""Token boundaries of a tool's result, as the chat template will encode it.

    offsets = TokenOffsets(template)
    offsets("héllo <|im_end|>")          # [(0, 2), (2, 5), (5, 6), (6, 16), (6, 16), …]: character ranges in text order

Results are untrusted, so a control token in their text is encoded as several tokens of plain text (see
`sampler.core.rendering.template`); such a control token is never cut in two here.
"""

import re

from sampler.core.rendering.template import ChatTemplate

Offset = tuple[int, int]


class TokenOffsets:
    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._spelled = re.compile(f"({template.control.tokens.pattern})")

    def __call__(self, text: str) -> list[Offset]:
        offsets: list[Offset] = []
        start = 0
        for index, piece in enumerate(self._spelled.split(text)):
            end = start + len(piece)
            if index % 2:
                offsets += [(start, end)] * len(self._template.encode_plain(piece))
            elif piece:
                encoding = self._template.tokenizer.encode(piece, add_special_tokens=False)
                offsets += [(start + first, start + after) for first, after in encoding.offsets]
            start = end
        return offsets
