"""Text in, a network in batches, words out, and another way for what is no number."""

from sluice.lambda_fn.pipeline import Ensemble, Pipeline, Sequential, Stage, Switch

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class Parse:
    def predict(self, text):
        return int(text)


class Square:
    """Stands for a network: it gets a list, and returns a list."""

    def predict(self, numbers):
        return [n * n if n >= 0 else ValueError(f"{n} is negative") for n in numbers]


class Spell:
    def predict(self, number):
        return " ".join(WORDS[int(digit)] for digit in str(number))


class Length:
    def predict(self, number):
        return len(str(number))


class Echo:
    def predict(self, text):
        return f"{text} is no number"


def part_for(text):
    return 0 if text.lstrip("-").isdecimal() else 1


def pipeline():
    """What serves: a number is parsed, squared in batches, and told of in two ways at once."""
    ways = Ensemble(Stage(Spell, processes=False), Stage(Length, processes=False), combine="{0[0]} ({0[1]} digits)".format)
    numbers = Sequential(Stage(Parse, processes=False), Stage(Square, batch_size=32, wait=0.005), ways)
    return Pipeline(Switch(part_for, numbers, Stage(Echo, processes=False)), max_items=256, deadline=10)


if __name__ == "__main__":
    with pipeline() as running:
        for output in running.predict(["12", "7", "-3", "many"]):
            print(output if isinstance(output, str) else f"{type(output).__name__}: {output}")
