"""The arrays that the rooms hand each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Counts = NDArray[np.int64]
