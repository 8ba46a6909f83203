"""What a GPU must show, in ten minutes: `python -m scripts.gpu_check`."""
