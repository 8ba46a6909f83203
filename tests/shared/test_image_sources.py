"""Where a content block's image may come from."""

import base64
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.errors import DataError
from shared.images.bounds import ImageBounds
from shared.images.decode import decode
from shared.images.source import bytes_of, load, load_all
from tests.shared.image_files import valid

PNG, JPEG = valid("PNG"), valid("JPEG")
TEXT = base64.b64encode(PNG).decode()
ANYWHERE = ImageBounds(absolute_paths=True)
LOOPBACK = ImageBounds(image_hosts=("127.0.0.1",))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With an image inside, and one outside."""
    inside = tmp_path / "data"
    (inside / "charts").mkdir(parents=True)
    (inside / "charts" / "1.png").write_bytes(PNG)
    (inside / "wrong.jpg").write_bytes(PNG)
    (tmp_path / "secret.png").write_bytes(PNG)
    return inside


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "path": "charts/1.png"},
        {"type": "image", "path": "charts/../charts/./1.png"},
        {"type": "image", "path": "wrong.jpg"},
        {"type": "image", "image": "charts/1.png"},
        {"type": "image", "url": f"data:image/png;base64,{TEXT}"},
        {"type": "image", "url": f"DATA:;base64,{TEXT}"},
        {"type": "image", "image": f"data:image/svg+xml;charset=utf-8;base64,{TEXT}"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{TEXT}", "detail": "low"}},
        {"type": "image", "base64": TEXT},
        {"type": "image", "base64": "\n".join(TEXT[at : at + 76] for at in range(0, len(TEXT), 76))},
        {"bytes": PNG, "path": "gone.png"},
        {"bytes": PNG, "path": None},
        {"bytes": None, "path": "charts/1.png"},
        {"type": "image", "image": {"bytes": PNG}},
    ],
    ids=repr,
)
def test_each_form_gives_the_same_picture(folder: Path, block: dict[str, Any]) -> None:
    picture = load(block, folder, "t.jsonl:1")
    assert picture.sha256 == decode(PNG, "a").sha256
    assert np.array_equal(picture.rgb_HW3, decode(PNG, "a").rgb_HW3)
    assert bytes_of(block, folder, "t.jsonl:1") == PNG


def refusal(block: dict[str, Any], folder: Path, bounds: ImageBounds = ImageBounds()) -> str:
    with pytest.raises(DataError) as refused:
        bytes_of(block, folder, "t.jsonl:1", bounds)
    assert str(refused.value).startswith("t.jsonl:1: ")
    return str(refused.value)


def test_a_path_leads_out_of_its_folder_only_where_the_caller_allows_it(folder: Path) -> None:
    outside = folder.parent / "secret.png"
    (folder / "link.png").symlink_to(outside)
    (folder / "up").symlink_to(folder.parent)
    (folder / "near.png").symlink_to("charts/1.png")
    for path in ("../secret.png", "charts/../../secret.png", str(outside), "link.png", "up/secret.png", "/etc/passwd"):
        assert "leads out of" in refusal({"path": path}, folder), path
        assert "leads out of" in refusal({"path": path}, folder / "charts" / ".."), path
    assert "leads out of" in refusal({"path": str(folder / "wrong.jpg")}, folder), "absolute"
    assert bytes_of({"path": "near.png"}, folder, "a") == PNG
    for path in ("../secret.png", str(outside), "link.png"):
        assert bytes_of({"path": path}, folder, "a", ANYWHERE) == PNG


def test_what_is_no_readable_file_is_refused_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe.png")
    (folder / "loop.png").symlink_to("loop.png")
    assert "no regular file" in refusal({"path": "pipe.png"}, folder)
    assert "cannot be read: Is a directory" in refusal({"path": "charts"}, folder)
    assert "no regular file" in refusal({"path": "/dev/zero"}, folder, ANYWHERE)
    assert "cannot be read: No such file" in refusal({"path": "gone.png"}, folder)
    for path in ("loop.png", "a\0b.png", "x" * 5000):
        assert "cannot be read" in refusal({"path": path}, folder), path


def test_no_source_gives_more_bytes_than_the_bound(folder: Path) -> None:
    bounds = ImageBounds(max_bytes=len(PNG) - 1)
    for block in ({"path": "wrong.jpg"}, {"base64": TEXT}, {"bytes": PNG}, {"url": f"data:;base64,{TEXT}"}):
        assert f"{len(PNG):,} bytes; expected {len(PNG) - 1:,} at most" in refusal(block, folder, bounds)
    assert "characters of base64" in refusal({"base64": "A" * 3 * len(PNG)}, folder, bounds)


def test_a_block_without_an_image_or_with_two_is_refused_and_the_error_lists_its_fields(folder: Path) -> None:
    for block, words in (
        ({"type": "image"}, "an image block with type; expected one of"),
        ({}, "an image block with nothing"),
        ({"path": "a", "base64": "b"}, "an image block with base64, path"),
        ({"path": 3}, '"path" is int; expected a text'),
        ({"bytes": "abc"}, '"bytes" is str; expected bytes'),
        ({"image": 3}, '"path" is int'),
        ({"url": "ftp://a/b.png"}, "\"url\" is 'ftp://a/b.png'; expected a data: URL"),
        ({"url": "file:///etc/passwd"}, "expected a data: URL"),
        ({"url": "data:image/svg+xml,<svg/>"}, 'expected "data:image/...;base64,..."'),
        ({"url": "data:image/png;base64"}, 'expected "data:image/...;base64,..."'),
        ({"base64": "@@@@"}, "no base64 that can be decoded"),
        ({"base64": "ÄÄÄÄ"}, "no base64 that can be decoded"),
    ):
        assert words in refusal(block, folder), block


def test_a_conversation_has_a_bounded_number_of_images(folder: Path) -> None:
    blocks = [{"path": "wrong.jpg"}, {"bytes": JPEG}, {"base64": TEXT}]
    assert [p.sha256 for p in load_all(blocks, folder, "t:1")] == [decode(d, "a").sha256 for d in (PNG, JPEG, PNG)]
    with pytest.raises(DataError, match="t:1: 3 images; expected 2 at most"):
        load_all(blocks, folder, "t:1", ImageBounds(max_images=2))
    with pytest.raises(DataError, match="t:1: image 2: "):
        load_all([blocks[0], {"base64": "AAAA"}], folder, "t:1")


class _Images(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/a.png")
            self.end_headers()
            return
        self.send_response(200 if self.path.startswith("/a") else 404)
        self.send_header("Content-Length", str(len(PNG) + (self.path == "/a_cut")))
        self.end_headers()
        self.wfile.write(PNG)

    def log_message(self, *arguments: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Images) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def test_an_image_of_the_web_comes_only_from_hosts_that_the_caller_names(server: str, folder: Path) -> None:
    assert bytes_of({"url": f"{server}/a.png"}, folder, "a", LOOPBACK) == PNG
    assert bytes_of({"image": f"{server}/a.png"}, folder, "a", LOOPBACK) == PNG
    port = server.rpartition(":")[2]
    for url in (
        f"{server}/a.png",
        f"http://localhost:{port}/a.png",
        "https://example.org/a.png",
        "HTTP://169.254.169.254/",
    ):
        assert "`image_hosts` allows none" in refusal({"url": url}, folder), url
    elsewhere = f"http://localhost:{port}/a.png"
    assert "host 'localhost'; `image_hosts` allows 127.0.0.1" in refusal({"url": elsewhere}, folder, LOOPBACK)
    for url in (f"http://127.0.0.1@localhost:{port}/", f"http://localhost:{port}\\@127.0.0.1/", f"{server}/a b.png"):
        assert "a user name, a backslash or a space" in refusal({"url": url}, folder, LOOPBACK), url


def test_a_redirection_a_status_a_cut_answer_and_a_large_one_are_refused(server: str, folder: Path) -> None:
    assert "cannot be fetched: HTTP Error 302" in refusal({"url": f"{server}/moved"}, folder, LOOPBACK)
    assert "cannot be fetched: HTTP Error 404" in refusal({"url": f"{server}/b.png"}, folder, LOOPBACK)
    assert f"{len(PNG):,} of {len(PNG) + 1} bytes received" in refusal({"url": f"{server}/a_cut"}, folder, LOOPBACK)
    small = ImageBounds(image_hosts=("127.0.0.1",), max_bytes=100)
    assert "more than 100 bytes" in refusal({"url": f"{server}/a.png"}, folder, small)
    assert "cannot be fetched" in refusal({"url": "http://127.0.0.1:1/a.png"}, folder, LOOPBACK)
