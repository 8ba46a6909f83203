"""Runs the whole system on this machine: `tandem run RUN_NAME`; options in `settings.py`."""
