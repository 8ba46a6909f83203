"""Images on the viewer's pages: where they stand, and which queries they need."""

import re
from typing import Any

import httpx
import numpy as np
import pymongo
import pytest

from shared.episodes.images import EpisodeImage, EpisodeImages
from shared.processes.mongod import Mongod
from shared.store import Store
from shared.tokens.image_span import ImageSpan
from shared.tokens.record_tree import RecordTree, TreeDispatch
from tandem.viewer.group import branches_of
from tandem.viewer.images import thumbnail
from tests.shared.image_files import png
from tests.tandem.viewer.conftest import Client
from tests.tandem.viewer.image_run import (
    FILES,
    FIRST,
    GROUP,
    QUESTION,
    RUN,
    SECOND,
    address,
    blocks,
    file_of,
    insert_image_run,
    run,
)
from tests.tandem.viewer.stories import Told, tell

__all__ = ["run"]
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
PNG = FILES["PNG"].sha256


async def json_of(viewer: Client, path: str, run: str = RUN) -> dict[str, Any]:
    bare, _, query = path.partition("?")
    answer = await viewer.get(f"/runs/{run}{bare}.json?{query}")
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


# ---------------------------------------------------------------------- pages


def images_in(html: str) -> list[str]:
    """Digests of the pictures that a page shows, in order."""
    return re.findall(rf'<img src="/runs/{RUN}/images/([0-9a-f]+)"', html) + re.findall(
        rf'<img class="boxed" src="/runs/{RUN}/images/([0-9a-f]+)"', html
    )


def digests(*kinds: str) -> list[str]:
    return [FILES[kind].sha256 for kind in kinds]


async def test_a_rollout_shows_its_images_in_place(viewer: Client, run: str) -> None:
    html = (await viewer.get(f"/runs/{RUN}/rollouts/{FIRST}")).text
    assert images_in(html) == digests("PNG", "JPEG", "JPEG", "GIF", "WEBP", "BMP"), "of the call, and as it was read"
    tag = re.search(rf'<a href="{address(PNG)}"><img [^>]*></a>', html)
    assert tag is not None
    for attribute in (
        'loading="lazy"',
        'width="39"',
        'height="24"',
        f'alt="image of 37 × 23 pixels, SHA-256 {PNG[:8]}…"',
    ):
        assert attribute in tag[0], attribute
    assert re.search(rf"37 × 23 · {len(FILES['PNG'].data) / 1000:.1f} kB · 4 tokens · ", html)
    view = await json_of(viewer, f"/rollouts/{FIRST}")
    first, second, _ = view["threads"][0]["turns"]
    assert first["messages"][0]["parts"][0] == QUESTION
    assert first["messages"][0]["parts"][1] == {
        "sha256": PNG,
        "width": 37,
        "height": 23,
        "num_bytes": len(FILES["PNG"].data),
        "tokens": 4,
        "is_stored": True,
    }
    assert [one if isinstance(one, str) else one["tokens"] for one in second["messages"][0]["parts"]] == [
        "The page:",
        3,
        "3 links",
    ]
    assert first["calls"][0]["parts"] == second["messages"][0]["parts"]


async def test_the_text_of_a_message_is_a_download_with_lines_for_images(viewer: Client, run: str) -> None:
    answer = await viewer.get(f"/runs/{RUN}/rollouts/{FIRST}/text?turn=0&part=message0")
    size = f"{len(FILES['PNG'].data) / 1000:.1f} kB"
    assert answer.text == f"{QUESTION}\n[image 37x23, 4 tokens, {size}, sha256 {PNG[:12]}…]"


async def test_a_group_shows_its_question_and_what_each_turn_saw(viewer: Client, run: str) -> None:
    html = (await viewer.get(f"/runs/{RUN}/groups/{GROUP}")).text
    assert images_in(html)[0] == PNG
    view = await json_of(viewer, f"/groups/{GROUP}")
    assert [part if isinstance(part, str) else part["tokens"] for part in view["query"]] == [QUESTION, 4]
    seen = [[[one["sha256"] for one in cell["images"]] for cell in row] for row in view["rows"]]
    assert seen == [
        [digests("PNG"), digests("PNG")],
        [digests("JPEG"), digests("WEBP")],
        [digests("GIF", "WEBP", "BMP")] * 2,
    ]


async def test_the_tokens_of_an_image_are_one_chip_with_their_number(viewer: Client, run: str) -> None:
    view = await json_of(viewer, f"/rollouts/{FIRST}/tokens?turn=0")
    shown = [(token["place"], token["id"], token["length"], token["image"] is not None) for token in view["tokens"]]
    assert shown == [
        (0, 1, 1, False),
        (1, 2, 1, False),
        (2, 9, 5, True),
        (7, 3, 1, False),
        (8, 4, 1, False),
        (9, 5, 1, False),
    ]
    assert (view["total"], view["end"], view["tokens"][2]["text"]) == (10, 10, "image · 4 tokens")
    html = (await viewer.get(f"/runs/{RUN}/rollouts/{FIRST}/tokens?turn=0&token=4")).text
    assert "Token 2:" in html, "a token inside of an image is the image"
    assert "2 to 6: 4 placeholders, 1 marks between them" in html
    third = await json_of(viewer, f"/rollouts/{FIRST}/tokens?turn=2")
    assert [token["length"] for token in third["tokens"]] == [1, 2, 2, 2, 1, 1, 1], (
        "one behind the other, with equal ids"
    )


async def test_two_rollouts_part_where_an_image_differs_though_its_tokens_are_equal(viewer: Client, run: str) -> None:
    path = f"/compare?a={FIRST}&b={SECOND}"
    view = await json_of(viewer, path)
    assert (view["first_turn"], view["first_token"]) == (1, 11)
    html = (await viewer.get(f"/runs/{RUN}{path}")).text
    assert images_in(html)[:4] == digests("PNG", "JPEG", "PNG", "WEBP")


def tree_with(record: str, sha256: str) -> RecordTree:
    """1 [9 9 60 9] | 4 5: placeholders with a mark between them, and a reply of two tokens."""
    return RecordTree(
        record_id=record,
        token_ids_N=np.array([1, 9, 9, 60, 9, 4, 5], dtype=np.int32),
        parents_N=np.arange(-1, 6, dtype=np.int32),
        dispatches_N=np.array([-1] * 5 + [0, 0], dtype=np.int32),
        logprobs_N=np.zeros(7, dtype=np.float32),
        versions_N=np.array([-1] * 5 + [0, 0], dtype=np.int32),
        dispatches=(TreeDispatch(f"{record}:0", 0, 1.0),),
        images=(ImageSpan(sha256, 1, 3),),
    )


def test_a_branch_has_the_images_that_begin_in_it_and_the_text_without_their_placeholders() -> None:
    trees = [tree_with("a", PNG), tree_with("b", PNG), tree_with("c", FILES["GIF"].sha256)]
    images = EpisodeImages.of([], blocks(FILES["PNG"]))
    found = branches_of(trees, [0, 1, 2], lambda ids: " ".join(map(str, ids)), images)
    assert [(one.slots, one.tokens, one.text, [image.sha256 for image in one.images]) for one in found] == [
        ([0, 1, 2], 1, "1", []),
        ([0, 1], 6, "60 4 5", digests("PNG")),
        ([2], 6, "60 4 5", digests("GIF")),
    ]
    assert (found[1].images[0].width, found[2].images[0].width) == (37, 0)


async def test_the_tree_of_a_group_parts_at_images_and_shows_them(viewer: Client, run: str) -> None:
    view = await json_of(viewer, f"/groups/{GROUP}/tree")
    assert view["problems"] == []
    assert [(one["slots"], [image["sha256"] for image in one["images"]]) for one in view["branches"]] == [
        ([0, 1], digests("PNG")),
        ([0], digests("JPEG", "GIF", "WEBP", "BMP")),
        ([1], digests("WEBP", "GIF", "WEBP", "BMP")),
    ]
    assert images_in((await viewer.get(f"/runs/{RUN}/groups/{GROUP}/tree")).text)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (f"image={FILES['JPEG'].sha256}", [FIRST]),
        (f"image={FILES['GIF'].sha256}", [FIRST, SECOND]),
        (f"image={'0' * 64}", []),
        ("text=on the page", [FIRST, SECOND]),
        ("text=3 links", [FIRST, SECOND]),
    ],
)
async def test_the_search_finds_texts_between_images_and_images_by_digest(
    viewer: Client, run: str, query: str, found: list[str]
) -> None:
    view = await json_of(viewer, f"/search?{query}")
    assert sorted(one["_id"] for one in view["found"]) == found
    if found:
        assert images_in((await viewer.get(f"/runs/{RUN}/search?{query}")).text)


@pytest.mark.parametrize("value", ["x", PNG.upper(), "[$ne]", "0" * 63])
async def test_a_search_for_what_is_no_digest_is_refused(viewer: Client, run: str, value: str) -> None:
    assert (await viewer.get(f"/runs/{RUN}/search", params={"image": value})).status_code == 400


async def test_a_missing_image_is_a_sentence_in_its_place(viewer: Client, store: Store) -> None:
    await insert_image_run(store)
    await store.database["images"].delete_one({"_id": PNG})
    for path in (f"rollouts/{FIRST}", f"rollouts/{FIRST}/tokens", f"groups/{GROUP}"):
        html = (await viewer.get(f"/runs/{store.run}/{path}")).text
        assert "not in the store any more" in html, path
        assert f'src="/runs/{store.run}/images/{PNG}"' not in html, path


async def test_a_reference_that_is_none_is_shown_as_text(viewer: Client, store: Store) -> None:
    """Documents that were written by hand."""
    await insert_image_run(store)
    wrong = [
        {"type": "image", "sha256": "../../x", "width": 1},
        {"type": "image", "sha256": PNG, "width": "<b>", "height": -1, "num_bytes": None},
        {"type": "text"},
        "bare",
        {"type": "video", "url": "javascript:alert(1)"},
    ]
    await store.database["dispatched_sampling_tasks"].update_one(
        {"_id": f"{FIRST}:0"},
        {
            "$set": {
                "messages": [{"role": "user", "content": wrong}],
                "images": [{"sha256": "x", "first": 9999, "count": -1}],
            }
        },
    )
    answer = await viewer.get(f"/runs/{store.run}/rollouts/{FIRST}")
    assert answer.status_code == 200
    assert "images/.." not in answer.text
    assert "<b>" not in answer.text
    assert "&#34;sha256&#34;: &#34;../../x&#34;" in answer.text
    for path in (f"rollouts/{FIRST}/tokens", f"groups/{GROUP}", f"compare?a={FIRST}&b={SECOND}"):
        assert (await viewer.get(f"/runs/{store.run}/{path}")).status_code == 200, path


# ---------------------------------------------------------------------- what is read


async def commands_of(mongod: Mongod, viewer: Client, run: str, path: str) -> list[dict[str, Any]]:
    """Of the server's profiler, on collections of images."""
    with pymongo.MongoClient(mongod.connection_string) as client:
        database = client[run]
        database.command("profile", 0)
        database.drop_collection("system.profile")
        database.command("profile", 2)
        answer = await viewer.get(f"/runs/{run}/{path}")
        database.command("profile", 0)
        assert answer.status_code == 200
        return list(database["system.profile"].find({"ns": {"$regex": r"\.image"}}))


async def test_a_page_reads_names_of_images_alone_and_one_without_images_asks_for_none(
    mongod: Mongod, viewer: Client, run: str, store: Store
) -> None:
    for path in (f"rollouts/{FIRST}", f"rollouts/{FIRST}/tokens", f"groups/{GROUP}"):
        [entry] = await commands_of(mongod, viewer, RUN, path)
        assert entry["docsExamined"] == 0, "the index alone: a document has up to 8 MB"
    await tell(store, lambda seq, slot: Told(), groups=1, slots=2)
    record = "main:train:0:t0:0:1"
    for path in (f"rollouts/{record}", f"rollouts/{record}/tokens", "groups/main:train:0:t0", "search?text=4"):
        assert await commands_of(mongod, viewer, store.run, path) == [], path


async def test_a_long_episode_is_a_small_page_whose_pictures_are_loaded_by_need(viewer: Client, store: Store) -> None:
    shots = [file_of("PNG", png(1280, 720) + bytes([at]) * 200_000, 1280, 720) for at in range(50)]
    await insert_image_run(store, screenshots=shots)
    answer = await viewer.get(f"/runs/{store.run}/rollouts/{FIRST}")
    tags = re.findall(r"<img src=[^>]*>", answer.text.partition("<main")[2])
    assert len(tags) == 56
    assert all('loading="lazy"' in tag for tag in tags)
    assert all(int(re.search(r'width="(\d+)"', tag)[1]) <= 320 for tag in tags)  # type: ignore[index]  # each tag has a width, so there is a match
    assert len(answer.content) < 250_000, "10 MB of pictures are not in it"


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((640, 480), (320, 240)),
        ((100, 50), (100, 50)),
        ((4096, 4096), (240, 240)),
        ((4, 4), (24, 24)),
        ((16_000_000, 1), (320, 1)),
        ((1, 16_000_000), (1, 240)),
        ((0, 5), None),
    ],
)
def test_a_thumbnail_has_bounded_sides(size: tuple[int, int], expected: tuple[int, int] | None) -> None:
    assert thumbnail(EpisodeImage(PNG, *size)) == expected


async def test_the_address_of_an_image_works_below_a_path_of_a_proxy(viewer: Client, run: str) -> None:
    html = (await viewer.get(f"/runs/{RUN}/rollouts/{FIRST}", headers={"x-forwarded-prefix": "/tandem"})).text
    source = re.search(r'<img src="(/tandem/runs/[^"]+)"', html)
    assert source is not None
    answer: httpx.Response = await viewer.get(source[1], headers={"x-forwarded-prefix": "/tandem"})
    assert answer.headers["content-type"] == "image/png"
