"""`sluice recommend`: the cheapest setting that keeps a percentile SLO."""

from __future__ import annotations

import click
from rich.progress import Progress
from rich.table import Column, Table

from batching.documents import Slo, write
from cli import output
from cli.arrival_options import arrival_options, cost_options, read_arrivals, read_price_list, read_profile
from optimizer.arrivals.map import ArrivalProcess
from optimizer.decision.recommend import MAX_BATCH_SIZE, Recommendation, Setting, recommend


@click.command("recommend")
@arrival_options
@click.option("--profile", "profile_file", required=True, metavar="FILE", help="Service profile of `sluice profile --out`.")
@click.option("--slo", "slo_latency", type=float, required=True, metavar="SECONDS", help="Latency that the percentile must keep.")
@click.option("--percentile", type=float, default=95.0, show_default=True, help="Percent of the requests that must keep it.")
@click.option("--objective", type=click.Choice(["cost", "latency"]), default="cost", show_default=True, help="What to minimise.")
@click.option("--max-cost", type=float, metavar="USD", help="Most USD per request (1e-6: 1 USD per million).")
@click.option("--memory", "memory_sizes", type=int, multiple=True, metavar="MB", help="Consider only this size; may be repeated.")
@click.option("--max-batch-size", type=int, default=MAX_BATCH_SIZE, show_default=True, help="Largest batch considered.")
@click.option("--payload-bytes", type=int, help="Size of one request: a batch must fit into one invocation.")
@click.option("--headroom", type=float, default=0.0, show_default=True, help="Part of the SLO kept free.")
@click.option("--model", default="model", show_default=True, metavar="NAME", help="Name of the model in the plan.")
@cost_options
@click.option("--out", metavar="FILE", help="Write the plan here.")
@output.json_option
def command(
    arrivals: str | None,
    poisson_rate: float | None,
    mmpp2_rates: str | None,
    profile_file: str,
    slo_latency: float,
    percentile: float,
    objective: str,
    max_cost: float | None,
    memory_sizes: tuple[int, ...],
    max_batch_size: int,
    payload_bytes: int | None,
    headroom: float,
    model: str,
    prices_file: str | None,
    architecture: str,
    granularity: float | None,
    out: str | None,
    as_json: bool,
) -> None:
    """Find the memory size, batch size and timeout of least cost that keep a percentile SLO."""
    document = read_arrivals(arrivals, poisson_rate, mmpp2_rates)
    process = ArrivalProcess.of(document)
    profile = read_profile(profile_file)
    slo = Slo(slo_latency, percentile)
    prices = read_price_list(prices_file)
    with Progress(console=output.stderr, transient=True, disable=not output.stderr.is_terminal) as progress:
        task = progress.add_task("searching", total=1.0)
        answer = recommend(
            process,
            profile,
            slo,
            objective=objective,
            max_cost=max_cost,
            memory_sizes=memory_sizes or None,
            max_batch_size=max_batch_size,
            payload_bytes=payload_bytes,
            headroom=headroom,
            prices=prices,
            architecture=architecture,
            granularity=granularity,
            on_progress=lambda fraction: progress.update(task, completed=fraction),
        )
    plan = answer.plan(profile, model, document)
    if out:
        output.write_file(out, write(plan))
        output.stderr.print(f"wrote {out}")
    if as_json:
        output.print_json(
            {
                "version": 1,
                "plan": plan,
                "no_batching": _row(answer.no_batching, percentile) | {"keeps_slo": answer.no_batching_keeps_slo},
                "best": _row(answer.best, percentile),
                "runners_up": [_row(setting, percentile) for setting in answer.runners_up],
                "frontier": list(answer.frontier),
                "break_even_arrival_rate": answer.break_even_arrival_rate,
                "settings_compared": answer.n_settings,
                "prices_read_on": prices.read_on,
            }
        )
        return
    _show(answer, process.arrival_rate, slo)
    output.stdout.print(f"prices: {prices.region}, read {prices.read_on}; {answer.n_settings} settings compared")


def _row(setting: Setting, percentile: float) -> dict[str, object]:
    return {
        "memory_mb": setting.memory_mb,
        "batch_size": setting.batch_size,
        "timeout": setting.timeout,
        "latency": setting.latency.percentile(percentile),
        "mean_batch_size": setting.mean_batch_size,
        "cost": {
            "per_request": setting.cost.per_request,
            "compute": setting.cost.compute,
            "requests": setting.cost.requests,
            "init": setting.cost.init,
            "logs": setting.cost.logs,
            "fixed_per_month": setting.cost.fixed_per_month,
        },
    }


def _show(answer: Recommendation, arrival_rate: float, slo: Slo) -> None:
    title = f"p{slo.percentile:g} within {1000 * slo.latency:g} ms at {arrival_rate:.4g} requests/s"
    first = Column("", no_wrap=True)
    table = Table(first, "memory", "batch", "timeout", f"p{slo.percentile:g}", "mean batch", "USD per million", title=title)
    rows = [("recommended", answer.best), ("no batching", answer.no_batching)]
    rows += [(f"runner-up {i}", setting) for i, setting in enumerate(answer.runners_up, 1)]
    for name, s in rows:
        table.add_row(
            name,
            f"{s.memory_mb} MB",
            str(s.batch_size),
            "-" if s.batch_size == 1 else f"{1000 * s.timeout:.4g} ms",
            f"{1000 * s.latency.percentile(slo.percentile):.1f} ms",
            f"{s.mean_batch_size:.2f}",
            f"{1e6 * s.cost.per_request:.4f}",
        )
    output.stdout.print(table)
    frontier = Table("latency at most", "USD per million", "memory", "batch size", "timeout", title="cheapest by latency")
    for point in answer.frontier:
        frontier.add_row(
            f"{1000 * point.latency:.1f} ms",
            f"{1e6 * point.cost_per_request:.4f}",
            f"{point.memory_mb} MB",
            str(point.batch_size),
            "-" if point.batch_size == 1 else f"{1000 * point.timeout:.4g} ms",
        )
    output.stdout.print(frontier)
    if not answer.no_batching_keeps_slo:
        output.stdout.print("No batching does not keep the SLO at any memory size.")
    if answer.best.batch_size == 1 or answer.break_even_arrival_rate is None:
        output.stdout.print("Batching saves nothing here: call the function directly and deploy no buffer.")
        return
    fixed, rate = answer.best.cost.fixed_per_month, answer.break_even_arrival_rate
    verdict = "it pays" if arrival_rate > rate else "do not deploy one for this alone"
    output.stdout.print(
        f"The buffer costs {fixed:.2f} USD per month, earned from {rate:.4g} requests/s on; here {arrival_rate:.4g}: {verdict}."
    )
