"""``python -m sluice.lambda_fn.worker``."""

from __future__ import annotations

import sys

from .program import run

if __name__ == "__main__":
    sys.exit(run())
