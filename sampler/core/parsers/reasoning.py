"""Where a reply's reasoning ends: the one place that decides which text an answer may be taken from.

<think> R R R </think> the answer          behind the end tag
R R R </think> the answer                  the prompt opened the reasoning: only its end shows
<think> R R R                              cut off: no answer
the answer <think> R R R                   before the reasoning counts too
"""

import re

from sampler.core.parsers.minicpm import END_THOUGHT, THOUGHT
from sampler.core.parsers.reply import END_THINK, THINK

TAGS = (
    (THINK, END_THINK),
    (THOUGHT, END_THOUGHT),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),  # Magistral
    ("◁think▷", "◁/think▷"),  # Kimi
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
)
_PAIR = {tag: pair for pair in TAGS for tag in pair}
_TAG = re.compile("|".join(re.escape(tag) for tag in _PAIR))
_ANY = ("", "")  # opened by the prompt: any end tag closes it


def behind_reasoning(text: str, *, in_reasoning: bool = False) -> str:
    """The text outside of reasoning; empty where the reasoning has no end. `in_reasoning`: the prompt opened it.

    Inside of reasoning another opening tag is text, and so is the end tag of another family. An end tag without an opening one
    ends what the prompt opened. Linear in the length of the text.
    """
    return "".join(_outside(text, in_reasoning)[0])


def ends_in_reasoning(text: str, *, in_reasoning: bool = False) -> bool:
    """Whether what follows the text is inside of reasoning."""
    return _outside(text, in_reasoning)[1]


def _outside(text: str, in_reasoning: bool) -> tuple[list[str], bool]:
    parts: list[str] = []
    opened, start = (_ANY if in_reasoning else None), 0
    for match in _TAG.finditer(text):
        pair = _PAIR[match.group()]
        if match.group() == pair[1]:
            if opened is None:
                parts.clear()
            if opened in (None, _ANY, pair):
                opened, start = None, match.end()
        elif opened is None:
            parts.append(text[start : match.start()])
            opened = pair
    if opened is None:
        parts.append(text[start:])
    return parts, opened is not None
