"""A scikit-learn classifier: the measures of a flower in, its species out."""

from pathlib import Path

import joblib
import msgspec

SPECIES = ("setosa", "versicolor", "virginica")


class Flower(msgspec.Struct):
    """Centimetres."""

    sepal_length: float
    sepal_width: float
    petal_length: float
    petal_width: float


class Iris:
    def __init__(self) -> None:
        self.classifier = joblib.load(Path(__file__).with_name("iris.joblib"))

    def predict(self, inputs: list[Flower]) -> list[dict[str, object]]:
        probabilities = self.classifier.predict_proba([msgspec.structs.astuple(flower) for flower in inputs])
        return [{"species": SPECIES[row.argmax()], "probability": row.max()} for row in probabilities]
