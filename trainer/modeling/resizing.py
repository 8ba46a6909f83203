"""Resizing of images in the trainer: that of the engines, the local one among them."""

from shared.images.torch_resizing import by_torch

__all__ = ["by_torch"]
