"""Runs the whole system on this machine: `python -m scripts.launch RUN_NAME`; options in `settings.py`."""
