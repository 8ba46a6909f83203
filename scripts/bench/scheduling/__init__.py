"""What `python -m scripts.bench.schedule` simulates with: a workload, an engine, the order of episodes, a run."""
