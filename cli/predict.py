"""`sluice predict`: latency, batch sizes and cost of one setting."""

from __future__ import annotations

import click
import numpy as np
from rich.table import Table

from cli import output
from cli.arrival_options import arrival_options, cost_options, read_arrivals, read_price_list, read_profile
from optimizer.analysis.cost import predict_cost
from optimizer.analysis.latency import METHODS, predict_latency
from optimizer.analysis.service import service_times
from optimizer.arrivals.map import ArrivalProcess


@click.command("predict")
@arrival_options
@click.option("--profile", "profile_file", required=True, metavar="FILE", help="Service profile of `sluice profile --out`.")
@click.option("--memory", "memory_mb", type=int, required=True, metavar="MB", help="Memory size.")
@click.option("-b", "--batch-size", type=int, required=True, help="Largest batch; 1 is no batching.")
@click.option("-t", "--timeout", type=float, required=True, metavar="SECONDS", help="Longest wait for a batch to fill.")
@click.option("--percentile", "percentiles", type=float, multiple=True, help="Of the latency; repeatable. Default 50 90 95 99.")
@click.option("--method", type=click.Choice(METHODS), default="exact", show_default=True, help="batch-paper: BATCH, eqs (7)-(10).")
@cost_options
@output.json_option
def command(
    arrivals: str | None,
    poisson_rate: float | None,
    mmpp2_rates: str | None,
    profile_file: str,
    memory_mb: int,
    batch_size: int,
    timeout: float,
    percentiles: tuple[float, ...],
    method: str,
    prices_file: str | None,
    architecture: str,
    granularity: float | None,
    as_json: bool,
) -> None:
    """Predict latency, batch sizes and cost of size-or-timeout batching in front of an elastic function."""
    process = ArrivalProcess.of(read_arrivals(arrivals, poisson_rate, mmpp2_rates))
    service = service_times(read_profile(profile_file), memory_mb, batch_size)
    prices = read_price_list(prices_file)
    prediction = predict_latency(process, service, batch_size, timeout, method)
    cost = predict_cost(
        prediction.batch_size_pmf, service, prices, architecture=architecture, granularity=granularity, buffered=batch_size > 1
    )
    latency = {f"p{p:g}": prediction.percentile(p) for p in sorted(percentiles or (50.0, 90.0, 95.0, 99.0))}
    times = np.linspace(0, prediction.longest, 41)
    if as_json:
        output.print_json(
            {
                "version": 1,
                "method": method,
                "memory_mb": memory_mb,
                "batch_size": batch_size,
                "timeout": timeout,
                "arrival_rate": process.arrival_rate,
                "latency": latency,
                "cdf": [[float(t), float(p)] for t, p in zip(times, prediction.cdf(times), strict=True)],
                "batch_size_pmf": prediction.batch_size_pmf.tolist(),
                "mean_batch_size": prediction.mean_batch_size,
                "cost": {
                    "per_request": cost.per_request,
                    "compute": cost.compute,
                    "requests": cost.requests,
                    "init": cost.init,
                    "logs": cost.logs,
                    "fixed_per_month": cost.fixed_per_month,
                    "prices_read_on": prices.read_on,
                },
            }
        )
        return
    table = Table(
        "", "", title=f"{memory_mb} MB, batch size {batch_size}, timeout {1000 * timeout:g} ms ({method})", show_header=False
    )
    for name, value in latency.items():
        table.add_row(f"latency {name}", f"{1000 * value:.2f} ms")
    table.add_row("mean batch size", f"{prediction.mean_batch_size:.2f}")
    table.add_row("invocations/s", f"{process.arrival_rate / prediction.mean_batch_size:.4g}")
    for name, dollars in (
        ("compute", cost.compute),
        ("request fee", cost.requests),
        ("bill of the function", cost.per_request),
        ("logs, beside it", cost.logs),
    ):
        table.add_row(f"USD per million: {name}", f"{1e6 * dollars:.4f}")
    table.add_row("USD per month: buffer", f"{cost.fixed_per_month:.2f}")
    output.stdout.print(table)
    output.stdout.print(f"prices: {prices.region}, read {prices.read_on}")
