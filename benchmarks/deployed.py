"""Recommendations deployed as they come: is the promise kept, and is the bill what was said, on arrivals that nobody fitted?

As a user goes, by the command line and with no option that the tutorial does not have. The function is profiled, with the way
through the buffer. Of each trace the first half of the requests is fitted and answered for; the plan is put into force at a real
buffer with its Redis, before real ``awslambdaric`` processes that run a real network; and the second half is replayed over HTTP,
with the environments there as after any busy hour. A promise is looked at in windows of some hundred requests. The bill is what a
function costs, compute and requests. It is held against what the answer says, of the arrivals that it knows, and against what
`sluice simulate` comes to on the very arrivals of the replay, which leaves out that a half is not like the other. With ``--again``
what is fitted is the stretch that is replayed, before functions that nobody has used, whose starts are billed as well: then the
bill is to be what the answer says.

Batches side by side, and the buffer beside them, slow each other on one machine, as they would not on Lambda: ``--sleeper`` takes a
function that needs no core, of which what is left are the errors of fit, prediction and way alone.

``python -m benchmarks deployed [FILE ...] [--rate 10 --rate 30] [--slo 0.2] [--seconds 60] [--sleeper] [--again]``; each file is
sped up to each rate.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.smoke import usually
from benchmarks.told import existing, positive
from sluice.batching import policy as policies
from sluice.batching.documents import Plan, PolicyDocument, read
from sluice.local.networks import write_network
from sluice.local.redis_server import RedisServer
from sluice.local.replay import Replay, replay, run
from sluice.local.stack import AWS_ENVIRONMENT, BufferProcess, LambdaProcess, buffer_process, lambda_process
from sluice.optimizer.arrays import Array
from sluice.optimizer.billing import default_prices
from sluice.optimizer.recommend.words import leaves
from sluice.optimizer.traces.trace import read_trace

ROOT = Path(__file__).parents[1]
TRACES = (ROOT / "examples" / "traces" / "azure_llm_code_excerpt.csv.gz",)
BODY = ROOT / "examples" / "request.json"
NETWORK = "mlp"
NAMED = {"SLUICE_MODEL_NAME": NETWORK}
MEMORY_SIZES = usually((442, 885, 1769), smoke=(1769,))
BATCH_SIZES = usually("1,2,4,8,16,32", smoke="1,8")
PROFILED = usually((), smoke=("--min-runs", "2", "--max-runs", "3", "--max-seconds", "2"))
SLEEPER = {"SLUICE_SLEEPER_INTERCEPT": "0.016", "SLUICE_SLEEPER_SLOPE": "0.0012"}  # s, s a request
FITTED = usually((), smoke=("--model", "poisson"))
RATES = usually((10.0, 30.0), smoke=(20.0,))  # requests/s
SECONDS = usually(60.0, smoke=2.0)
WINDOW = 100  # requests
WARM = usually(24, smoke=2)  # requests at once
STARTING = usually(3.0, smoke=0.5)  # seconds from a plan in force to the first request, in which environments start
PERCENTILE = 95
BILLED = ("compute", "requests")  # of a function whose environments are there
STARTED = (*BILLED, "init")  # of one that nobody has used


class Bench(NamedTuple):
    """What every case is deployed on: files, functions and buffer, the profile, a promise (s), and what may be there beforehand."""

    folder: Path
    cloud: LambdaProcess
    buffer: BufferProcess
    profile: Path
    slo: float
    warm: bool  # environments are there, and arrivals were not fitted

    @property
    def billed(self) -> Sequence[str]:
        """The terms of a cost that its functions are billed."""
        return BILLED if self.warm else STARTED


class Case(NamedTuple):
    """One recommendation, deployed: seconds, USD per request, windows."""

    name: str
    rate: float
    requests: int
    leaves: str
    predicted: float
    measured: float
    late: float
    windows: int
    kept: int
    said: float
    simulated: float
    billed: float


def main() -> None:
    """Print a row for each trace and rate, and in how many windows the promise was kept."""
    parser = argparse.ArgumentParser()
    parser.add_argument("traces", nargs="*", default=TRACES, type=existing)
    parser.add_argument("--rate", type=positive, action="append", help="requests/s to which each trace is sped up or slowed down")
    parser.add_argument("--slo", type=positive, default=0.2, help=f"seconds, of the {PERCENTILE}th percentile")
    parser.add_argument("--seconds", type=positive, default=SECONDS)
    sleeps = usually(False, smoke=True)  # which starts in a fifth of the time
    parser.add_argument("--sleeper", action="store_true", default=sleeps, help="a function that sleeps in place of the network")
    parser.add_argument("--again", action="store_true", help="replay what was fitted")
    options = parser.parse_args()
    os.environ.update(AWS_ENVIRONMENT)
    cases = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context((folder / "log").open("wb"))
        write_network(NETWORK, folder / "network.onnx")
        model = SLEEPER if options.sleeper else {"SLUICE_MODEL": str(folder / "network.onnx")}
        functions = [{"name": f"{NETWORK}-{mb}", "memory_mb": mb, "environment": model | NAMED} for mb in MEMORY_SIZES]
        cloud = stack.enter_context(lambda_process(functions))
        redis = stack.enter_context(RedisServer())
        (plans := folder / "plans").mkdir()
        buffer = stack.enter_context(buffer_process(redis.url, cloud.url, plans, log, log_level="warning"))
        os.environ["AWS_ENDPOINT_URL_LAMBDA"] = cloud.url
        bench = Bench(folder, cloud, buffer, profiled(buffer, folder), options.slo, warm=not options.again)
        print(f"{'':28s}   req/s requests  p95 ms: said, measured   late  windows kept   USD per million: said, simulated, billed")
        for trace in map(Path, options.traces):
            for rate in options.rate or RATES:
                cases.append(deployed(trace.name, *parts(trace, rate, options.seconds, options.again), bench))
                show(cases[-1])
    kept, windows = sum(case.kept for case in cases), sum(case.windows for case in cases)
    print(f"{kept} of {windows} windows of {WINDOW} requests kept {PERCENTILE} % within {1e3 * options.slo:g} ms.")


def show(case: Case) -> None:
    """Its row, and what the bill comes to over what was said and over what was simulated."""
    said, simulated, billed = (1e6 * cost for cost in (case.said, case.simulated, case.billed))
    print(
        f"{case.name[:28]:28s} {case.rate:7.1f} {case.requests:8d} {1e3 * case.predicted:14.1f} {1e3 * case.measured:9.1f}"
        f" {100 * case.late:5.1f}% {case.kept:6d} of {case.windows:3d}   {said:10.4f} {simulated:8.4f} {billed:8.4f}"
        f"  billed / said {billed / said:.3f}, / simulated {billed / simulated:.3f}  ({case.leaves})",
        flush=True,
    )


def profiled(buffer: BufferProcess, folder: Path) -> Path:
    """The profile of the function, with the way through the buffer, which meanwhile does not batch."""
    file = folder / "profile.json"
    function = f"{NETWORK}-{MEMORY_SIZES[-1]}:live"
    buffer.apply(Plan(model=NETWORK, function=function, policy=PolicyDocument.of(policies.no_batching())))
    sluice(
        *("profile", f"{NETWORK}-{{memory_mb}}:live", "--model", NETWORK, "--payload", BODY, "--yes", "--out", file),
        *("--memory", ",".join(map(str, MEMORY_SIZES)), "--batch-size", BATCH_SIZES, *PROFILED),
        *("--buffer", f"{buffer.url}/models/{NETWORK}"),
    )
    return file


def parts(trace: Path, rate: float, seconds: float, again: bool) -> tuple[Array, Array]:
    """Times that are fitted, and times that are sent (s): the first half and a part of the second, or that part twice."""
    recorded = read_trace(str(trace))
    times = recorded.sped_up(rate / recorded.arrival_rate).times
    known, ahead = times[: len(times) // 2], times[len(times) // 2 :]
    ahead = ahead[ahead - ahead[0] < seconds] - ahead[0]
    return (ahead if again else known), ahead


def deployed(name: str, known: Array, ahead: Array, bench: Bench) -> Case:
    """Fit the known arrivals, recommend, deploy, replay what is ahead."""
    folder = bench.folder
    arrivals, plan_file, sent = folder / "arrivals.json", folder / "recommended.json", folder / "sent.csv"
    sluice("fit", written(folder / "known.csv", known), "--kind", "timestamps", *FITTED, "--out", arrivals)
    asked = ("--profile", bench.profile, "--slo", f"p{PERCENTILE}={bench.slo:g}", "--architecture", "x86_64", "--json")
    answer = sluice("recommend", "--arrivals", arrivals, *asked, "--model", NETWORK, "--out", plan_file)
    on_these = ("--arrivals", arrivals, "--trace", written(sent, ahead), *asked)
    rehearsed = next(iter(sluice("simulate", "--policy", plan_file, *on_these)["policies"].values()))
    plan = read(Plan, plan_file.read_bytes())
    assert plan.predicted is not None
    live, billed = served(plan, ahead, bench)
    windows = np.array_split(live.latency, max(1, len(ahead) // WINDOW))
    return Case(
        name=name,
        rate=float(len(ahead) / ahead[-1]),
        requests=len(ahead),
        leaves=f"{plan.memory_mb} MB, {leaves(plan.all_routes[0].policy.policy())}",
        predicted=plan.predicted.latency[f"p{PERCENTILE}"],
        measured=percentile(live.latency),
        late=float(np.mean(live.latency > bench.slo)),
        windows=len(windows),
        kept=sum(percentile(window) <= bench.slo for window in windows),
        said=function_cost(answer["best"]["cost"], bench),
        simulated=function_cost(rehearsed["cost"], bench),
        billed=billed / len(ahead),
    )


def served(plan: Plan, times: Array, bench: Bench) -> tuple[Replay, float]:
    """The requests, sent at these times (s) with this plan in force, and what Lambda bills for them (USD)."""
    cloud = bench.cloud
    url, body, prices = f"{bench.buffer.url}/models/{NETWORK}", BODY.read_bytes(), default_prices()
    used_by = [*(route.function for route in plan.all_routes), *(beside.function for beside in plan.beside)]
    functions = {function.partition(":")[0] for function in used_by}
    if bench.warm:
        bench.buffer.apply(plan)
        run(replay(np.zeros(WARM), url, body=body))
        cloud.reset_usage()
    else:
        for function in functions:
            cloud.forget_environments(function)
        cloud.reset_usage()
        bench.buffer.apply(plan)
        time.sleep(STARTING)
    live = run(replay(times, url, body=body))
    assert live.answered.all(), live.messages
    used = [cloud.usage(function) for function in functions]
    return live, sum(of["gb_seconds"] * prices.gb_second("x86_64") + of["invocations"] * prices.function.request for of in used)


def percentile(latency: Array) -> float:
    """s."""
    return float(np.percentile(latency, PERCENTILE, method="inverted_cdf"))


def function_cost(cost: dict[str, Any], bench: Bench) -> float:
    """USD per request, of what the function bills."""
    return sum(float(cost["terms"][term]) for term in bench.billed)


def written(file: Path, times: Array) -> Path:
    """These times (s) as a trace."""
    np.savetxt(file, times, header="seconds", comments="")
    return file


def sluice(*arguments: str | Path) -> Any:
    """What a command answers as JSON; ``None`` of one that writes a file alone."""
    words: Sequence[str] = [str(argument) for argument in arguments]
    done = subprocess.run([sys.executable, "-m", "sluice.cli.main", *words], capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"sluice {' '.join(words)}: {done.stderr.decode()}")
    return json.loads(done.stdout) if "--json" in words else None


if __name__ == "__main__":
    main()
