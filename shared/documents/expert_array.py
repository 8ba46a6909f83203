"""The type of arrays of routed experts, [tokens, choices]; apart from their documents, which are read without numpy."""

import numpy as np
import numpy.typing as npt

Experts = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
