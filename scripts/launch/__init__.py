"""The whole system on this machine with one command: `python -m scripts.launch RUN_NAME`, see `settings.py` for its options."""
