"""Within what a model's plan may be tuned: its profile where there is one, and what its plan in force says where there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from sluice.batching.documents import Plan, ServiceProfile, Slo
from sluice.batching.errors import InvalidInput, require
from sluice.batching.urls import is_http, without_password
from sluice.optimizer.billing import Billing
from sluice.optimizer.recommend.offers import WorkerOffer, machine_offer
from sluice.optimizer.simulation.function import LARGEST_BATCH
from sluice.optimizer.tuning.setup import TuningSettings, TuningSetup
from sluice.optimizer.tuning.tuner import Tuner


@dataclass(frozen=True)
class ModelSetups:
    """What is known of the models that are controlled.

    Parameters
    ----------
    profiles
        By model.
    slos
        Of every model; where there are none, those of its plan.
    function
        As plans name it, ``{memory_mb}`` standing for its memory size; ``""``: as its profile does, or its plan.
    memory_sizes
        MB, of those that may be chosen; where there are none, those of its profile, or that of its plan.
    billing, max_batch_size, settings
        Of every model.
    servers
        So many workers are there of each model, whose profile is theirs, and nothing else serves it.
    offers
        By model, workers that may serve in the place of its function, or with it beside them.
    """

    profiles: Mapping[str, ServiceProfile] = field(default_factory=dict)
    slos: tuple[Slo, ...] = ()
    function: str = ""
    memory_sizes: tuple[int, ...] = ()
    billing: Billing = field(default_factory=Billing)
    max_batch_size: int = LARGEST_BATCH
    settings: TuningSettings = field(default_factory=TuningSettings)
    servers: int | None = None
    offers: Mapping[str, tuple[WorkerOffer, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for profile in self.profiles.values():
            for memory_mb in self.memory_sizes if profile.points else ():
                known = ", ".join(map(str, profile.memory_sizes))
                require(
                    memory_mb in profile.memory_sizes, "--memory", memory_mb, f"one of the profile's of {profile.model}: {known}"
                )

    def tuner(self, plan: Plan) -> Tuner:
        """The tuner of a model with this plan.

        Raises
        ------
        InvalidInput
            No SLO is known, or no memory size; what a ``TuningSetup`` may not be.
        """
        profile = self.profiles.get(plan.model)
        slos = self.slos or tuple(slo for slo in (plan.slo, *plan.other_slos) if slo is not None)
        require(bool(slos), "slo", None, "an SLO in the plan, or --slo")
        sizes, function = self.memory_sizes, self.function
        if profile is None:
            function = function or plan.function
            sizes = sizes or ((plan.memory_mb,) if plan.memory_mb is not None else ())
            require(bool(sizes), "memory_mb", None, "a memory size in the plan, or --memory, where the model has no --profile")
        offers = self.offers.get(plan.model, ())
        if self.servers is not None:
            require(profile is not None, "--profile", None, f"that of {plan.model}'s workers, with --servers")
            assert profile is not None
            named = function or plan.function  # all of them, of which one may have been measured
            if all(map(is_http, addresses := named.split(","))):
                one_each = f"{self.servers} addresses with commas between, or one before all of them"
                require(len(addresses) in (1, self.servers), "plan.function", without_password(named), one_each)
                profile, function = replace(profile, function=named), named
            offers = (machine_offer(without_password(profile.function), profile, 0.0, self.max_batch_size),)
        warm = next((route for route in plan.all_routes if route.warm and route.warm.provisioned), None)
        setup = TuningSetup(
            plan.model,
            slos,
            profile,
            function,
            sizes,
            self.billing,
            max_batch_size=self.max_batch_size,
            offers=offers,
            servers=self.servers,
            warm=None if warm is None else warm.warm or None,
            warm_function="" if warm is None else warm.function,
        )
        return Tuner(setup, self.settings)


def by_model(profiles: Iterable[tuple[str, ServiceProfile]]) -> dict[str, ServiceProfile]:
    """Profiles with the names of their files, by model; raises ``InvalidInput`` where two are of one model."""
    found: dict[str, ServiceProfile] = {}
    for path, profile in profiles:
        if profile.model in found:
            raise InvalidInput("--profile", path, f"one profile a model, and {profile.model} has another")
        found[profile.model] = profile
    return found
