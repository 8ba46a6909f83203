"""The text that is heard of a reply while it is sampled: new ids are decoded once, and the text is that of all ids."""

import random

import pytest

from sampler.core.rendering.template import ChatTemplate
from sampler.core.rendering.turn import HALF, StreamDecoder
from sampler.core.rendering.view import PolicyTokens, View
from tests.sampler.families import FAMILIES

WORDS = ["Let me see.", " é 🙂 ǅ", "\n\n", "  two", "日本語", "<tool_call>", "a", " I'm", "0.5", "▁x"]


class CountedView(View):
    decoded = 0

    def text_of(self, output_ids):  # type: ignore[no-untyped-def]  # of any type
        self.decoded += len(output_ids)
        return super().text_of(output_ids)


def view_of(template: ChatTemplate) -> CountedView:
    view = CountedView("main", None, template, None, "branch", PolicyTokens())
    view.next_prompt([{"role": "user", "content": "Hi"}], restart=False)
    return view


@pytest.mark.parametrize("family", FAMILIES)
def test_each_text_is_that_of_all_ids_so_far_and_long_replies_are_not_decoded_anew(family: str) -> None:
    rng = random.Random(family)
    template = FAMILIES[family].template(next(iter(FAMILIES[family].modes)))
    view = view_of(template)
    whole = view_of(template)
    for _ in range(5):
        ids = [token for _ in range(150) for token in template.encode(rng.choice(WORDS))]
        ids += [rng.randrange(template.tokenizer.get_vocab_size()) for _ in range(50)]  # halves of characters
        heard: list[str] = []
        hear = StreamDecoder(lambda partial, heard=heard: heard.append(partial.text), "r:0", view)
        view.decoded = at = 0
        while at < len(ids):
            at += rng.randint(1, 4)
            hear(ids[:at])
            assert heard[-1].rstrip(HALF) == whole.text_of(ids[:at]).rstrip(HALF)
        assert view.decoded < len(ids) ** 2 / 25, "each time all: a fifth of the square"
    hear(ids[5:20])  # another engine began anew
    assert heard[-1] == whole.text_of(ids[5:20])
