"""Sizes of images that every family refuses."""

from shared.errors import DataError


def require_pixels(height: int, width: int) -> None:
    """Raises DataError for an image without pixels."""
    if height < 1 or width < 1:
        raise DataError(f"an image of {height} x {width} pixels (height x width); expected at least 1 x 1")
