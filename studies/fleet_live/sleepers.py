"""The variants of fleet.yaml as a user's models: each sleeps for as long as its profile says, and answers with its accuracy."""

from __future__ import annotations

import time


class Sleeper:
    """A model of two numbers, s, and its accuracy, percent."""

    intercept, slope, accuracy = 0.0, 0.0, 0.0

    def predict(self, inputs: list[float]) -> list[float]:
        """Its accuracy for each input, after the time that a batch of so many takes."""
        time.sleep(self.intercept + self.slope * len(inputs))
        return [self.accuracy for _ in inputs]


class VisionAccurate(Sleeper):
    """``vision-accurate``."""

    intercept, slope, accuracy = 0.10, 0.04, 78.3


class VisionQuick(Sleeper):
    """``vision-quick``."""

    intercept, slope, accuracy = 0.03, 0.01, 69.8


class TextAccurate(Sleeper):
    """``text-accurate``."""

    intercept, slope, accuracy = 0.07, 0.03, 92.4


class TextQuick(Sleeper):
    """``text-quick``."""

    intercept, slope, accuracy = 0.02, 0.008, 83.2
