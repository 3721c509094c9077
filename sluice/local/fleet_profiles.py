"""The profiles of a fleet of our own: what each variant of ``sluice.local.fleet_networks`` takes on each type of device, measured.

A device is one environment of a Lambda function on this machine's runtime, and its type is the memory size, which buys the share
of the CPU. Every variant has a function per memory size, and the project's own profiler sweeps memory × batch size.

    python -m sluice.local.fleet_profiles examples/fleet [--variants mlp-rank80,encoder-layers3]

makes the networks, writes ``accuracies.json`` and ``profiles/VARIANT.json``, and says how well each is known. Run it on a quiet
machine: of a share below one, what other processes take is hidden by the emulation's sleep; at a whole CPU it is not.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from pathlib import Path

import msgspec
import numpy as np

from sluice.batching.documents import PLACEHOLDER, write
from sluice.batching.errors import SluiceError
from sluice.local.fleet_networks import FAMILIES, INPUT_SEED, Family
from sluice.local.stack import AWS_ENVIRONMENT, lambda_process
from sluice.profiler.invocations import LambdaInvocations
from sluice.profiler.samples import Sample
from sluice.profiler.service_times import MeasuredServiceTimes, Sweep, measure_service_times

MEMORY_SIZES = (442, 885, 1769)
"""MB: a quarter, a half and the whole of a vCPU."""
BATCH_SIZES = (1, 2, 4, 8, 16)


def measure_variant(family: Family, variant: str, file: Path, max_seconds: float) -> MeasuredServiceTimes:
    """Sweep one variant over all types of devices; the requests are copies of one input."""
    functions = [
        {
            "name": f"{variant}-{memory_mb}",
            "memory_mb": memory_mb,
            "environment": {"SLUICE_MODEL": str(file.resolve()), "SLUICE_MODEL_NAME": variant},
        }
        for memory_mb in MEMORY_SIZES
    ]
    rng = np.random.default_rng(INPUT_SEED)
    sweep = Sweep(
        function=f"{variant}-{PLACEHOLDER}",
        memory_sizes=MEMORY_SIZES,
        batch_sizes=BATCH_SIZES,
        samples=(Sample(family.request(family.inputs(rng, 1)[0])),),
        model=variant,
        max_seconds=max_seconds,
    )
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    with lambda_process(functions) as runtime:
        return measure_service_times(sweep, LambdaInvocations(endpoint_url=runtime.url), rng, measured_at=now)


def main() -> None:
    """Make the networks, measure accuracies and profiles, and write both."""
    names = [name for family in FAMILIES for name in family.variants]
    parser = argparse.ArgumentParser(prog="python -m sluice.local.fleet_profiles", description="Measure the profiles of a fleet.")
    parser.add_argument("folder", type=Path, help="where accuracies.json and profiles/ go")
    parser.add_argument("--variants", help="profile these alone, with commas between, and leave the accuracies")
    parser.add_argument(
        "--networks", type=Path, default=Path(".networks"), help="where the networks are made  [default: .networks]"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="at most, for each variant  [default: 60]")
    arguments = parser.parse_args()
    chosen = arguments.variants.split(",") if arguments.variants else names
    if unknown := sorted(set(chosen) - set(names)):
        parser.error(f"--variants: {unknown[0]!r} is not allowed; allowed: {', '.join(names)}")
    os.environ.update(AWS_ENVIRONMENT)  # boto3 signs with it, and it means nothing to AWS
    try:
        files = {family.name: family.write(arguments.networks) for family in FAMILIES}
        (arguments.folder / "profiles").mkdir(parents=True, exist_ok=True)
        if not arguments.variants:
            accuracies = {family.name: family.measure_accuracies(files[family.name]) for family in FAMILIES}
            document = msgspec.json.format(msgspec.json.encode(accuracies))
            (arguments.folder / "accuracies.json").write_bytes(document + b"\n")
        for family in FAMILIES:
            for variant in [name for name in family.variants if name in chosen]:
                measured = measure_variant(family, variant, files[family.name][variant], arguments.seconds)
                (arguments.folder / "profiles" / f"{variant}.json").write_bytes(write(measured.profile))
                print(_summary(variant, measured), file=sys.stderr)
    except (OSError, SluiceError) as error:
        print(f"sluice.local.fleet_profiles: {error}", file=sys.stderr)
        sys.exit(2)


def _summary(variant: str, measured: MeasuredServiceTimes) -> str:
    """The mean service times in ms, a row for each memory size, and the least precise of them."""
    worst = max(point.relative_half_width for point in measured.points)
    lines = [f"{variant}: ms by batch size {', '.join(map(str, BATCH_SIZES))}; the least precise ±{worst:.1%}"]
    for memory_mb in measured.profile.memory_sizes:
        means = (f"{point.service_time.mean * 1e3:8.2f}" for point in measured.profile.points_at(memory_mb))
        lines.append(f"  {memory_mb:5d} MB {''.join(means)}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
