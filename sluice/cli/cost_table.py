"""How costs are shown to people: every term, in a table."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Column, Table

from sluice.optimizer.billing.cost import BatchCost
from sluice.optimizer.report.wording import named, named_part, per_million


def cost_table(costs: Mapping[str, BatchCost]) -> Table:
    """USD per million requests by term, one column for each alternative, and USD per month below."""
    table = Table(Column("USD per million requests", no_wrap=True), title="cost, term by term")
    for name in costs:
        table.add_column(name, justify="right")
    terms = [cost.terms() for cost in costs.values()]
    for term in terms[0]:
        table.add_row(named(term), *(per_million(by_term[term]) if by_term[term] else "-" for by_term in terms))
    table.add_section()
    table.add_row("all by the request", *(per_million(cost.by_request) for cost in costs.values()))
    table.add_section()
    for part in dict.fromkeys(part for cost in costs.values() for part in cost.fixed_terms):
        table.add_row(f"{named_part(part)}, per month", *(_dollars(cost.fixed_terms.get(part, 0.0)) for cost in costs.values()))
    table.add_row("fixed, per month", *(_dollars(cost.fixed_per_month) for cost in costs.values()))
    return table


def _dollars(usd: float) -> str:
    return f"{usd:.2f}" if usd else "-"
