"""Benchmarks and measured comparisons: `python -m scripts.bench.NAME --help`; `--quick` runs each in seconds."""
