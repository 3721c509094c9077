"""A function that asks another service for each of its inputs, all of a batch at once: money in one currency in, in euros out.

RATES_URL   of the service, which answers GET /USD with {"rate": 0.86}
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TypedDict
from urllib.error import HTTPError
from urllib.request import urlopen

from sluice.lambda_fn import ItemError

TIMEOUT = 2.0  # seconds; below what the buffer's callers have


class Money(TypedDict):
    amount: float
    currency: str


class Euros:
    def __init__(self) -> None:
        self.url = os.environ["RATES_URL"]
        self.threads = ThreadPoolExecutor(max_workers=16)

    def predict(self, inputs: list[Money]) -> list[object]:
        return list(self.threads.map(self.convert, inputs))

    def convert(self, money: Money) -> object:
        """The amount, or why there is none: what is returned in its place is the error of this input alone."""
        if not (money["currency"].isascii() and money["currency"].isalpha()):
            return ItemError(422, f"currency: {money['currency']!r} is not allowed; allowed: letters, such as USD")
        try:
            with urlopen(f"{self.url}/{money['currency']}", timeout=TIMEOUT) as response:
                return {"euros": round(money["amount"] * json.load(response)["rate"], 2)}
        except HTTPError as error:
            unknown = error.code == 404
            return ItemError(422 if unknown else 502, f"{money['currency']}: the service answered {error.code}")
        except OSError as error:  # no connection, or no answer in time
            return ItemError(504, f"the service does not answer: {error}")
