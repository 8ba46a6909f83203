"""A decoded image."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Picture:
    """Pixels as a person sees them: EXIF orientation applied, alpha over white, 8 bits for each of red, green and blue."""

    sha256: str  # hexadecimal, of the original bytes
    rgb_HW3: npt.NDArray[np.uint8]  # height x width x 3
