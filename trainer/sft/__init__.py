"""Supervised fine-tuning on conversations or on records of a run: `python -m trainer.sft`."""
