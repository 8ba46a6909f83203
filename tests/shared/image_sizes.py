"""Sizes and pixels of images for tests, from fixed seeds."""

import numpy as np

from shared.images.families.protocol import RgbPixels


def sizes(
    number: int, *, seed: int, edges: tuple[int, ...] = (8, 14, 16, 28, 32, 128), longest: int = 1500
) -> list[tuple[int, int]]:
    """Heights and widths whose ratio is at most 200: the smallest, the most extreme ones, multiples of `edges` less or more one
    pixel, and random ones of every magnitude."""
    rng = np.random.default_rng(seed)
    found = [
        (1, 1),
        (1, 2),
        (1, 199),
        (1, 200),
        (200, 1),
        (2, 400),
        (399, 2),
        (-(-longest // 200), longest),
        (longest, longest // 100),
        (3, 3),
    ]
    while len(found) < number:
        if len(found) % 2:
            height, width = (
                int(edge * count + step)
                for edge, count, step in zip(
                    rng.choice(edges, 2), rng.integers(1, 12, 2), rng.integers(-1, 2, 2), strict=True
                )
            )
        else:
            height, width = (int(pixels) for pixels in np.exp(rng.uniform(0, np.log(longest), 2)))
        if min(height, width) >= 1 and max(height, width) / min(height, width) <= 200:
            found.append((height, width))
    return found[:number]


def noise(height: int, width: int, seed: int = 0) -> RgbPixels:
    """Random pixels, of which every channel has its own mean: equal channels would hide a wrong order."""
    rng = np.random.default_rng([seed, height, width])
    means = rng.integers(40, 216, 3)
    return np.clip(rng.normal(means, 60, (height, width, 3)), 0, 255).astype(np.uint8)
