"""One model's plan while its requests come: what changed is noticed, and what is known is brought up to date (docs/watching.md).

Nothing here reads a clock or the network: what came is given, and everything it keeps is bounded.
"""

from __future__ import annotations
