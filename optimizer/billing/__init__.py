"""What it costs: prices, a request's bill, cold starts, from which rate on a buffer earns its keep."""

from __future__ import annotations

from sluice.optimizer.billing.break_even import solve_break_even
from sluice.optimizer.billing.cold_starts import ColdStarts, cold_start_probability
from sluice.optimizer.billing.cost import BatchCost, Billing, invocation_costs, predict_cost
from sluice.optimizer.billing.prices import SECONDS_PER_MONTH, Prices, default_prices, read_prices

__all__ = [
    "SECONDS_PER_MONTH",
    "BatchCost",
    "Billing",
    "ColdStarts",
    "Prices",
    "cold_start_probability",
    "default_prices",
    "invocation_costs",
    "predict_cost",
    "read_prices",
    "solve_break_even",
]
