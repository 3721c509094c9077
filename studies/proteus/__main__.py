"""Compute from a folder of the published data, or take what is kept, and write the page and its figures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sluice.batching.errors import InvalidInput

from ..publishing import DATA, DOCS, publish, study_parser
from . import __doc__ as description
from .computation import Options, compute
from .drawings import LOOK, draw
from .page import page, summary
from .readers import experiments
from .results import kept_in, read, write

NEEDED = f"needs the folder of the published data as its argument: profile.csv, model_variants/, traces/ ({__package__}.readers)"


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m studies.proteus [DATA_FOLDER]`."""
    parser = _parser()
    options = parser.parse_args(arguments)
    out, kept = options.out or DOCS, options.out or DATA
    if options.folder is None:
        if not kept_in(kept):
            parser.error(f"nothing is kept in {kept.name}/; computing it {NEEDED}")
        print(f"proteus: the page again from what is kept; computing it {NEEDED}", file=sys.stderr)
    else:
        try:
            study = compute(options.folder, _options(options))
        except InvalidInput as error:
            parser.error(str(error))
        print(summary(study))
        if options.quick and options.out is None:
            return  # what is kept is of the whole study
        kept.mkdir(parents=True, exist_ok=True)
        write(study, kept)
    publish(__package__, read(kept), page, draw, LOOK, out)


def _parser() -> argparse.ArgumentParser:
    parser = study_parser(__package__, description)
    parser.add_argument("folder", nargs="?", type=_folder, help="the published data; without it the page is made from what is kept")
    parser.add_argument("--quick", action="store_true", help="the comparison of the systems alone; printed, and written with --out")
    parser.add_argument("--out", type=Path, help="where the page, its figures and its data go (docs/ and studies/data/)")
    parser.add_argument("--experiment", default=Options.experiment, help="the trace: traces/EXPERIMENT (%(default)s)")
    parser.add_argument("--slo", default=Options.slo, help="its deadline: traces/EXPERIMENT/SLO (%(default)s)")
    parser.add_argument("--batching", action="append", help="experiments that compare batching; may be given again")
    parser.add_argument(
        "--devices", action="append", type=_devices, help="a fleet, as CPU=20,AMPERE=10,PASCAL=10; may be given again"
    )
    return parser


def _options(given: argparse.Namespace) -> Options:
    usual = Options()
    return Options(
        given.experiment,
        given.slo,
        tuple(given.devices or usual.fleets),
        given.batching or usual.batching,
        parts=() if given.quick else usual.parts,
    )


def _folder(text: str) -> Path:
    folder = Path(text)
    if not (folder / "profile.csv").is_file():
        raise argparse.ArgumentTypeError(f"{text}: a folder with profile.csv, model_variants/ and traces/ is needed")
    if not experiments(folder):
        raise argparse.ArgumentTypeError(f"{text}: there are no traces in traces/EXPERIMENT/SLO/")
    return folder


def _devices(text: str) -> dict[str, int]:
    try:
        return {name: int(count) for name, count in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: TYPE=COUNT,TYPE=COUNT is needed") from None


if __name__ == "__main__":
    main()
