"""The Python packages of this environment that a machine with torch alone lacks: python -m scripts.gpu_check.bundle OUT.tar.gz

It packs what is installed here, without a network, and prints the size. The other machine needs Linux, the same processor and the
same version of Python. There, in the root of the checkout:

    tar xf OUT.tar.gz -C .packages && PYTHONPATH=.packages python -m scripts.gpu_check
"""

import argparse
import importlib.metadata
import sys
import tarfile
from pathlib import Path

PACKED = (  # imports of the trainer and its tests; torch, NumPy and what torch needs are the lender's
    *(
        "transformers",
        "tokenizers",
        "safetensors",
        "accelerate",
        "peft",
        "huggingface_hub",
        "regex",
        "tqdm",
        "packaging",
    ),
    *("pymongo", "dnspython", "pydantic", "pydantic_core", "pydantic-settings", "annotated-types", "typing-inspection"),
    *("python-dotenv", "pyyaml", "typer", "rich", "markdown-it-py", "mdurl", "pygments", "click", "shellingham"),
    *("pytest", "pluggy", "iniconfig", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "execnet", "hypothesis"),
    *("sortedcontainers", "psutil", "pillow", "httpx", "httpcore", "h11", "anyio", "sniffio", "idna", "certifi"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    with tarfile.open(args.out, "w:gz") as archive:
        for name in PACKED:
            try:
                found = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                sys.stderr.write(f"{name} is not installed here, and not packed\n")
                continue
            for file in found.files or ():
                if ".." not in file.parts and file.suffix != ".pyc" and Path(str(found.locate_file(file))).is_file():
                    archive.add(str(found.locate_file(file)), str(file))
    sys.stdout.write(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB\n")


if __name__ == "__main__":
    main()
