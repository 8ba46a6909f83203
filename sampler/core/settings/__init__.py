"""The core's settings, a file for each class of them: those of every process are `core_config.py`."""
