"""Prompts with images: their tokens are transformers', each image's place is known, and other pictures share nothing."""

import random
from pathlib import Path
from typing import Any

import pytest

from sampler.core.rendering.context import Context
from sampler.core.rendering.images import compared_ids
from sampler.core.rendering.template import ChatTemplate
from sampler.core.rendering.turn_format import turn_format
from sampler.core.rendering.view import PolicyTokens, View
from shared.documents.states import BranchCause, ParentKind
from shared.errors import ConfigError
from tests.sampler.episodes import TEMPLATE
from tests.sampler.vision_chats import reference, vision_template, whole_prompt
from tests.shared.vision_models import VISION_FAMILIES

KINDS = [*[(family, False) for family in VISION_FAMILIES], ("smolvlm", True), ("qwen2_5_vl", True)]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: f"{kind[0]}-{'published' if kind[1] else 'example'}")
def template(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    family, published = request.param
    return vision_template(tmp_path_factory.mktemp(family), family, published=published)


def user(*blocks: Any) -> dict[str, Any]:
    return {
        "role": "user",
        "content": [{"type": "text", "text": one} if isinstance(one, str) else one for one in blocks],
    }


def reply(template: ChatTemplate, text: str) -> list[int]:
    return [*template.encode(text), turn_format(template).end_ids[0]]


def require_places(context: Context, *digests: str) -> None:
    assert context.template.images is not None
    token = context.template.images.placeholder
    assert [place.sha256 for place in context.images] == list(digests)
    inside = 0
    for place in context.images:
        assert context.ids[place.first] == token
        assert place.start <= place.first < place.stop
        assert context.ids[place.start : place.stop].count(token) == place.count
        inside += place.count
    assert list(context.ids).count(token) == inside, "every placeholder is of an image"


def test_prompts_of_random_conversations_are_those_of_transformers(template: ChatTemplate) -> None:
    chance = random.Random(3)
    for number in range(30):
        context = Context(template)
        images = [reference(10 * number + n, chance.randint(9, 90), chance.randint(9, 90)) for n in range(4)]
        opening = [user("look", images[0], images[1], "what?") if chance.random() < 0.5 else user(images[0], "é <b>?")]
        context.start(opening)
        assert list(context.ids) == whole_prompt(template, opening)
        messages = opening
        for image in images[2:]:
            said, shown = "I see it.", user("and this", image) if chance.random() < 0.5 else user(image)
            messages = [*messages, {"role": "assistant", "content": said}, shown]
            canonical = f" {said}" if "Assistant:" in template.text else said
            prompt = context.extend(reply(template, canonical), [shown])
            assert prompt.cause is BranchCause.CLEAN
            assert list(context.ids) == whole_prompt(template, messages)
        require_places(context, *[block["sha256"] for m in messages for block in m["content"] if "sha256" in block])


def test_a_typed_image_token_is_text_where_it_comes_from_outside_and_an_error_in_the_instructions(
    template: ChatTemplate,
) -> None:
    assert template.images is not None
    token = template.images.family.image_token
    context = Context(template)
    context.start([user(f"what is {token}?", reference(1, 40, 50), f"{token}{token}")])
    require_places(context, reference(1, 40, 50)["sha256"])
    with pytest.raises(ConfigError, match=r"the prompt has .* 1 times, for 0 images"):
        Context(template).start([{"role": "system", "content": f"see {token}"}, user("hello")])


def test_threads_share_what_is_before_other_pictures_of_the_same_size(template: ChatTemplate) -> None:
    tokens = PolicyTokens()
    first, other, same = (View("main", name, template, None, "branch", tokens) for name in ("a", "b", "c"))
    prompt = first.next_prompt([user("one and the same text", reference(1, 40, 50), "what?")], restart=False)
    parent, _ = first.parent(prompt)
    assert parent.kind is ParentKind.ROOT
    first.add_reply("d0", parent, reply(template, "yes"), {"role": "assistant", "content": "yes"}, frozenset())

    prompt = other.next_prompt([user("one and the same text", reference(2, 40, 50), "what?")], restart=False)
    parent, _ = other.parent(prompt)
    assert list(other.context.ids) == list(first.context.ids), "the ids alone are equal"
    assert (parent.name, parent.shared) == ("d0", other.context.images[0].first)
    assert other.context.images[0].document(parent.shared).first == 0

    prompt = same.next_prompt([user("one and the same text", reference(1, 40, 50), "what?")], restart=False)
    assert same.parent(prompt)[0].shared == len(same.context.ids)


def test_a_history_with_another_picture_begins_a_branch_at_it(template: ChatTemplate) -> None:
    context = Context(template)
    context.start([user("before", reference(1, 40, 50), "what?")])
    first = context.images[0].first
    again = context.restart([user("before", reference(2, 40, 50), "what?")], reply(template, "yes"))
    assert again.shared_length == first
    same = context.restart([user("before", reference(2, 40, 50), "what?")], reply(template, "yes"))
    assert same.shared_length == len(context.ids), "the same picture is shared"
    assert context.fork().images == context.images


def test_a_reply_with_the_token_of_images_ends_its_thread_and_is_text_elsewhere(template: ChatTemplate) -> None:
    assert template.images is not None
    tokens = PolicyTokens()
    view, other = (View("main", name, template, None, "branch", tokens) for name in ("a", "b"))
    prompt = view.next_prompt([user(reference(1, 40, 50))], restart=False)
    sampled = [*template.encode("a"), template.images.placeholder, *reply(template, "b")]
    said = {"role": "assistant", "content": template.decode(sampled[:-1])}
    assert not view.is_closed
    view.add_reply("d0", view.parent(prompt)[0], sampled, said, frozenset())
    assert view.is_closed
    other.next_prompt([user("hello"), said, user("go on")], restart=False)
    assert template.images.placeholder not in other.context.ids


def test_equal_images_have_equal_numbers_and_others_none_in_common(template: ChatTemplate) -> None:
    context = Context(template)
    context.start([user(reference(1, 40, 50), reference(1, 40, 50), reference(2, 40, 50))])
    compared = compared_ids(context.ids, context.images)
    one, again, two = (compared[place.first : place.stop] for place in context.images)
    assert one == again
    assert not set(one) & set(two)
    assert max(*one, *two) < 0


def test_a_model_of_text_refuses_an_image_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the model reads texts alone, and the messages have images"):
        Context(TEMPLATE).start([user("look", reference(1, 40, 50))])
