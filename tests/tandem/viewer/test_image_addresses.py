"""The address of an image's file in the viewer: what is served, with which headers, and what is not."""

import pytest

from shared.documents.images import CHUNK_BYTES, MAX_INLINE_BYTES, StoredImage
from shared.store import Store
from tests.shared.image_files import image_file, png
from tests.tandem.viewer.conftest import TOKEN, Client, ClientOf
from tests.tandem.viewer.image_run import FILES, RUN, address, file_of, run

__all__ = ["run"]
TYPES = {kind: f"image/{kind.lower()}" for kind in FILES}
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
PNG = FILES["PNG"].sha256


@pytest.mark.parametrize("kind", FILES)
async def test_a_file_has_the_type_of_its_bytes_and_is_cached_by_the_browser(
    viewer: Client, run: str, kind: str
) -> None:
    answer = await viewer.get(address(FILES[kind].sha256))
    assert (answer.status_code, answer.content) == (200, FILES[kind].data)
    assert answer.headers["content-type"] == TYPES[kind]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "private, max-age=31536000, immutable"
    assert answer.headers["content-security-policy"].startswith("default-src 'self'; ")
    assert answer.headers["content-disposition"].startswith(f'inline; filename="{FILES[kind].sha256[:16]}.')
    again = await viewer.get(address(FILES[kind].sha256), headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    head = await viewer.head(address(FILES[kind].sha256))
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(FILES[kind].data)))


@pytest.mark.parametrize(
    "name",
    [
        "0" * 64,
        "0" * 63,
        "0" * 65,
        PNG.upper(),
        f"{PNG}:0",
        f"{PNG}%0a",
        f"{PNG}%00",
        f"{PNG}.svg",
        f" {PNG}",
        "..%2f..%2fadmin",
        "%252e%252e%252fadmin",
        "$ne",
        "{}",
        "%3Cscript%3Ealert(1)%3C/script%3E",
        "9" * 5_000,
    ],
)
async def test_a_name_of_no_image_is_status_404(viewer: Client, run: str, name: str) -> None:
    answer = await viewer.get(f"/runs/{RUN}/images/{name}")
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["cache-control"] == "no-store"
    assert "<script>alert" not in answer.text
    of_a_digest = "not in the store" if name == "0" * 64 else "names no image; expected the 64"
    assert ("there is no page" if name.lower().startswith(("..%2f", "%3c")) else of_a_digest) in answer.text
    assert len(answer.text) < 10_000, "a long name is cut"


@pytest.mark.parametrize("data", [SVG, b"<!doctype html><script>alert(1)</script>", b"%PDF-1.7", b"", b"GIF89a"])
async def test_what_is_none_of_the_five_formats_is_not_served_even_if_it_is_stored(
    viewer: Client, store: Store, data: bytes
) -> None:
    """A document written by hand, which says that it is a PNG."""
    file = image_file(data)
    await store.database["images"].insert_one(StoredImage.of(file).to_mongo())
    answer = await viewer.get(address(file.sha256, store.run))
    assert answer.status_code == 404
    assert data[:20] not in answer.content or not data


async def test_a_file_with_another_digest_than_its_name_is_not_served(viewer: Client, store: Store) -> None:
    await store.images.keep([FILES["PNG"]])
    await store.database["images"].update_one({"_id": PNG}, {"$set": {"data": FILES["GIF"].data}})
    assert (await viewer.get(address(PNG, store.run))).status_code == 404


async def test_a_large_file_is_joined_from_its_chunks_and_one_without_a_chunk_is_not_served(
    viewer: Client, store: Store
) -> None:
    large = file_of("PNG", png(4000, 4000, after=b"") + bytes(MAX_INLINE_BYTES + CHUNK_BYTES), 4000, 4000)
    await store.images.keep([large])
    answer = await viewer.get(address(large.sha256, store.run))
    assert (answer.status_code, answer.content) == (200, large.data)
    await store.database["image_chunks"].delete_one({"_id": f"{large.sha256}:1"})
    assert (await viewer.get(address(large.sha256, store.run))).status_code == 404


async def test_files_follow_the_rules_of_pages(viewer: Client, client_of: ClientOf, run: str, store: Store) -> None:
    """Another host, no token, another run, a form: as any page."""
    assert (await client_of(None, host="evil.example").get(address(PNG))).status_code == 403
    assert (await client_of(TOKEN).get(address(PNG))).status_code == 401
    allowed = await client_of(TOKEN).get(address(PNG), headers={"authorization": f"Bearer {TOKEN}"})
    assert allowed.status_code == 200
    assert (await viewer.get(address(PNG, store.run))).status_code == 404, "a run has its own images"
    assert (await viewer.get(address(PNG, "no-such-run"))).status_code == 404
    assert (await viewer.post(address(PNG))).status_code == 405
