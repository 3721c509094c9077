"""Two stages in three processes: Scale doubles, Shift adds three."""

from sluice.lambda_fn.pipeline import Pipeline, Sequential, Stage


class Scale:
    def predict(self, x):
        return x * 2


class Shift:
    def predict(self, x):
        return x + 3


if __name__ == "__main__":
    with Pipeline(Sequential(Stage(Scale, workers=2), Stage(Shift))) as pipeline:
        print(pipeline.submit(3).result())
        print(pipeline.predict([0, 1, "two", 3]))
