"""`make bench`: every benchmark of seconds or minutes, one after the other; ``python -m benchmarks NAME...`` those named.

Of one alone options may follow, as in ``python -m benchmarks overload --redis``, and ``--help`` says what it measures and which it
has; with ``--smoke`` before the names each does the least that still runs all of it.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from benchmarks.smoke import VARIABLE

IN_TURN = (
    "buffer_throughput",
    "many_models",
    "analysis",
    "class_law",
    "arrival_fits",
    "simulator",
    "smdp",
    "smdp_live",
    "smdp_rates",
    "fleet_milp",
    "split_queue",
    "worker",
    "worker_path",
    "pipeline",
    "peers",
)
"""What `make bench` runs."""

BY_NAME = (
    "bodies",
    "change_tests",
    "classes_live",
    "control_day",
    "control_live",
    "control_many",
    "dead_worker",
    "deployed",
    "flood",
    "overflow_live",
    "overload",
    "rate_step",
    "sizes_live",
    "slow_worker",
    "soak",
    "throttling",
    "two_processes",
)
"""The others: of minutes each, or of half an hour."""

BENCHMARKS = (*IN_TURN, *BY_NAME)

HELP = {"-h", "--help"}


def run(arguments: Sequence[str]) -> None:
    """The benchmarks that the arguments name, with the options that follow one name; those of `make bench` where none is named."""
    smoke = arguments[:1] == ["--smoke"]
    if smoke:
        os.environ[VARIABLE] = "1"  # before any is imported: it is read where their constants stand
    rest = list(arguments[smoke:])
    names = rest[: next((i for i, word in enumerate(rest) if word not in BENCHMARKS), len(rest))]
    options = rest[len(names) :]
    helps = not HELP.isdisjoint(options)
    if helps and not names:
        print(f"{__doc__}\nNAME: {', '.join(BENCHMARKS)}")
        return
    if options and not names:
        near = difflib.get_close_matches(options[0], (*BENCHMARKS, "--smoke"), n=1)
        _refuse(options[0], ", ".join(BENCHMARKS) + "".join(f"; did you mean {word}?" for word in near))
    if len(names) > 1 and options:
        _refuse(names[0], "options of one benchmark alone")
    for name in names or IN_TURN:
        sys.argv = [f"python -m benchmarks {name}", *options]
        benchmark = importlib.import_module(f"benchmarks.{name}")
        if helps:
            print(benchmark.__doc__)
        if not hasattr(benchmark, "argparse"):  # it reads no options
            argparse.ArgumentParser(sys.argv[0]).parse_args(options)
        benchmark.main()


def _refuse(word: str, allowed: str) -> NoReturn:
    print(f"benchmark: {word!r} is not allowed; allowed: {allowed}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    run(sys.argv[1:])
