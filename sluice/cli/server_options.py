"""How `sluice smdp` is told of a server: its service times and energies, what arrives at it, what is weighed, and the method.

Two groups: ``server_options`` gives the command a ``server``, which makes the problem; ``solver_options`` the ``solver``, arguments
of ``sluice.optimizer.smdp.solve`` by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import click
import numpy as np

from sluice.batching.documents import ServiceProfile
from sluice.batching.errors import NOT_GIVEN, InvalidInput, require
from sluice.batching.policy import MAX_SERVERS
from sluice.cli.arrival_options import behind_buffer, read_arrivals
from sluice.cli.groups import group
from sluice.cli.per_batch import read_per_batch
from sluice.cli.profile_files import read_profile
from sluice.cli.smdp_classes import read_classes
from sluice.cli.values import FILE, integer, number
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals import ArrivalProcess, poisson
from sluice.optimizer.service import EmpiricalLaw, ServiceLaw, law_named, smoothed_profile
from sluice.optimizer.smdp import METHODS, ClassProblem, SmdpProblem
from sluice.optimizer.smdp.problem import LEAST_LOAD

UNITS = {"s": 1.0, "ms": 1e-3}
DISTRIBUTION = "deterministic"
MOST = 4096
"""The largest batch: a table has more than twice as many rows, and its linear system a gigabyte."""

_SERVER = [
    click.option("--rho", type=number, metavar="R", help="Poisson arrivals at this part of what full batches serve, below 1."),
    click.option("--rate", type=number, metavar="R", help="Poisson arrivals, R per unit of time."),
    click.option(
        "--arrivals",
        type=FILE,
        metavar="FILE",
        help="Arrivals document, as `sluice fit --out` writes it; one with phases gets a table for each.",
    ),
    click.option("--mmpp2", metavar="L1,L2,W1,W2", help="MMPP(2): arrival rates and rates of leaving, 1/s."),
    click.option(
        "--service", metavar="L0,A", help="Mean service time L0 + A b of a batch of b, or @FILE: a JSON list, for 1, 2, ..."
    ),
    click.option(
        "--profile", type=FILE, metavar="FILE", help="Measured service times instead, as `sluice profile --out` writes them."
    ),
    click.option("--memory", "memory_mb", type=integer, metavar="MB", help="Memory size in the profile, where it has several."),
    click.option(
        "--energy",
        metavar="Z0,B",
        help="Energy (or money) Z0 + B b of a batch of b, or @FILE: a JSON list  [default: the profile's; where none is known and "
        "one is weighed, the time that a server is busy]",
    ),
    click.option(
        "--max-batch-size",
        "--batch-max",
        "batch_max",
        type=integer,
        metavar="B",
        help="Largest batch; needed unless a list or a profile says it.",
    ),
    click.option(
        "--min-batch-size",
        "--batch-min",
        "batch_min",
        type=integer,
        default=1,
        show_default=True,
        metavar="B",
        help="Smallest batch.",
    ),
    click.option("--w1", type=number, default=1.0, show_default=True, help="Weight of the mean latency, per unit of time."),
    click.option("--w2", type=number, help="Weight of the mean power, per W  [default: 1; with --slo it is what is sought]"),
    click.option(
        "--distribution",
        metavar="LAW",
        help="Law of service times: deterministic, erlang:K, exponential, hyperexponential, gamma:SHAPE  [default: deterministic]",
    ),
    click.option(
        "--unit",
        type=click.Choice(list(UNITS)),
        default="s",
        show_default=True,
        help="Unit of all times given; with ms energies are in mJ.",
    ),
]
_SOLVER = [
    click.option(
        "--method",
        type=click.Choice(METHODS),
        default=METHODS[0],
        show_default=True,
        help="How the best table is found; the other two methods cut the queue.",
    ),
    click.option("--max-state", type=integer, help="Where the other two methods cut the queue  [default: 8 of the largest batch]"),
    click.option(
        "--overflow-cost",
        type=number,
        help="Cost rate of a full queue in value iteration, the papers' c_o  [default: twice the cost of greedy]",
    ),
    click.option("--epsilon", type=number, help="Span at which value iteration stops  [default: 0.01]"),
]


@dataclass(frozen=True)
class ServerOptions:
    """What the options say of the server, as given; ``problem`` checks it."""

    rho: float | None
    rate: float | None
    arrivals: str | None
    mmpp2: str | None
    service: str | None
    profile: str | None
    memory_mb: int | None
    energy: str | None
    batch_max: int | None
    batch_min: int
    w1: float
    w2: float | None
    distribution: str | None
    unit: str

    def problem(self, servers: int = 1, weighed: bool = False) -> SmdpProblem:
        """The problem of one of ``servers`` workers, each with its share of the arrivals; ``weighed``: it needs an energy."""
        require(1 <= servers <= MAX_SERVERS, "servers", servers, f"an integer from 1 to {MAX_SERVERS}")
        law, scale = self._law(), UNITS[self.unit]
        largest = len(law.mean)
        process = self._process(float(largest / law.mean[-1]) * servers, scale)
        share = process.sped_up(1 / servers) if servers > 1 else process
        energy = self._energy(law, weighed)
        return SmdpProblem(share, law, energy, self.batch_min, self.w1 / scale, self._power_weight)

    def class_problem(self, texts: Sequence[str]) -> ClassProblem:
        """The problem of classes of NAME:RATE:WEIGHT each."""
        for name in ("rho", "rate", "arrivals", "mmpp2"):
            given, beside = getattr(self, name), "none with --class, which has the rate of each class"
            require(given is None, f"--{name}", given, beside)
        law, scale = self._law(), UNITS[self.unit]
        energy = self._energy(law)
        return ClassProblem.of(read_classes(texts, scale), law, energy, self.batch_min, self.w1 / scale, self._power_weight)

    def way(self, told: float | None, of_plan: bool) -> float:
        """s that a request is on its way: as told, or measured; ``of_plan`` through a buffer, where nobody measured it as assumed.

        A law that nobody measured may be of all that a client sees: of its plan it is said that nothing is kept free.
        """
        if told is not None:
            return told
        profile = None if self.profile is None else behind_buffer(self._profile) if of_plan else self._profile
        if profile is not None and profile.way is not None:
            return profile.way.mean
        if of_plan:
            click.echo("note: nothing of the promise is kept free for the way through the buffer (--buffer-overhead)", err=True)
        return 0.0

    @property
    def _power_weight(self) -> float:
        return 1.0 if self.w2 is None else self.w2

    @cached_property
    def _profile(self) -> ServiceProfile:
        """That which ``profile`` names, read once, as it may be a pipe."""
        return read_profile(str(self.profile))

    def _energy(self, law: ServiceLaw, weighed: bool = False) -> Array:
        """That of a batch of each size; where none is known and one is ``weighed``, by ``w2`` too, the time that it takes."""
        largest = len(law.mean)
        if self.energy is not None:
            return read_per_batch(self.energy, largest, "energy") * UNITS[self.unit]
        measured = self._measured_energy(largest)
        if measured.any() or not (weighed or self.w2):
            return measured
        click.echo("note: no energy is known (--energy): the time that a server is busy is weighed, J for s and W for 1", err=True)
        return law.mean

    def _measured_energy(self, largest: int) -> Array:
        """The profile's, or zeros."""
        if self.profile is None:
            return np.zeros(largest)
        from sluice.optimizer.recommend.offers import measured_energy  # with what searches, which a table does without

        measured = measured_energy(self._profile, largest, self.memory_mb)
        return np.zeros(largest) if measured is None else measured

    def _law(self) -> ServiceLaw:
        """Checks the numbers that stand beside it as well."""
        require(self.batch_max is None or 1 <= self.batch_max <= MOST, "batch_max", self.batch_max, f"an integer from 1 to {MOST}")
        require(0 < self.w1 < np.inf, "w1", self.w1, "a number > 0")
        require(self.w2 is None or 0 <= self.w2 < np.inf, "w2", self.w2, "a number >= 0")
        return self._measured() if self.profile is not None else self._assumed(UNITS[self.unit])

    def _measured(self) -> ServiceLaw:
        """The law that the profile's measurements have."""
        require(self.service is None, "service", self.service, "exactly one of --service and --profile")
        require(self.distribution is None, "distribution", self.distribution, "none with --profile, which has its own")
        measured = self._profile.without_way
        sizes = measured.memory_sizes or [1]
        if self.memory_mb is None and len(sizes) > 1:
            raise InvalidInput("memory", None, "one of the profile's: " + ", ".join(map(str, sizes)))
        if self.batch_max is None and measured.service_time is not None and measured.max_batch_size is None:
            raise InvalidInput("--max-batch-size", NOT_GIVEN, "a largest batch, as the profile names none")
        memory_mb = self.memory_mb or sizes[0]
        smoothed = smoothed_profile(measured, memory_mb, self.batch_max)
        largest = smoothed.service.max_batch_size
        known = self.batch_max is None or self.batch_max <= largest
        require(known, "--max-batch-size", self.batch_max, f"1 to {largest}, as the profile measured")
        if smoothed.note:
            click.echo(f"note: {smoothed.note}", err=True)
        return EmpiricalLaw(smoothed.service)

    def _assumed(self, scale: float) -> ServiceLaw:
        """The law of the mean service times given."""
        if self.service is None:
            raise InvalidInput("service", None, "exactly one of --service and --profile")
        require(self.memory_mb is None, "memory", self.memory_mb, "only with --profile")
        mean = read_per_batch(self.service, self.batch_max, "service") * scale
        return law_named(DISTRIBUTION if self.distribution is None else self.distribution, mean)

    def _process(self, throughput: float, scale: float) -> ArrivalProcess:
        """What arrives; ``throughput`` is what full batches serve, requests/s."""
        given = [value for value in (self.rho, self.rate, self.arrivals, self.mmpp2) if value is not None]
        one = "exactly one of --rho, --rate, --arrivals and --mmpp2"
        if not given:
            raise InvalidInput("arrivals", NOT_GIVEN, one)
        require(len(given) == 1, "arrivals", given, one)
        if self.rho is not None:
            meant = f"; did you mean {self.rho / 100:g}?" if 2 <= self.rho < 100 else ""
            require(LEAST_LOAD <= self.rho < 1, "rho", self.rho, f"a number from {LEAST_LOAD:g}, and below 1{meant}")
            return poisson(self.rho * throughput)
        if self.rate is not None:
            require(0 < self.rate < np.inf, "rate", self.rate, "requests per unit of time > 0")
            return poisson(self.rate / scale)
        return ArrivalProcess.of(read_arrivals(self.arrivals, None, self.mmpp2))


server_options = group("server", ServerOptions, ServerOptions.__dataclass_fields__, _SERVER)
"""The server and what arrives; the command gets ``server: ServerOptions``."""

solver_options = group("solver", dict, ("method", "max_state", "overflow_cost", "epsilon"), _SOLVER)
"""The method and its numbers; the command gets ``solver``, arguments by name."""
