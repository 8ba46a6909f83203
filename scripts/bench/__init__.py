"""Benchmarks and comparisons: `python -m scripts.bench.NAME --help`; `--quick` takes seconds."""
