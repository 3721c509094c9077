"""Proteus (Ahmad et al., ASPLOS'24) by this project's planner, control loop and simulator: writes docs/proteus.md and its figures.

    python studies/proteus.py DATA_FOLDER [--quick] [--out FOLDER] [--experiment NAME] [--slo NAME] [--devices CPU=20]

The folder holds profiles, variants and traces in the formats of Proteus's published artefact (fleet_study/readers.py), whose
licence allows comparison only: nothing of it is kept but what came out of the runs, in studies/proteus-*.csv and -facts.json.
The page and the figures are made from these; without a folder, from those that are there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import matplotlib
from fleet_study.computation import Options, compute
from fleet_study.drawings import STYLE, draw
from fleet_study.page import page, summary
from fleet_study.readers import experiments
from fleet_study.results import FILES, Study, read, write

from sluice.batching.errors import InvalidInput

DOCS = Path(__file__).parents[1] / "docs"
NEEDED = "needs the folder of the published data as its argument: profile.csv, model_variants/, traces/ (see the head of this file)"


def main(arguments: list[str] | None = None) -> int:
    """Compute from a folder, or take what is kept, and write the page; the exit code."""
    options = _parser().parse_args(arguments)
    out = options.out or DOCS
    kept = out / "studies" if (out / "studies").is_dir() else out
    if options.folder is None:
        if not all((kept / name).exists() for name in FILES):
            print(f"proteus.py: nothing is kept in {kept.name}/; computing it {NEEDED}", file=sys.stderr)
            return 2
        print(f"proteus.py: the page again from what is kept; computing it {NEEDED}", file=sys.stderr)
        study = read(kept)
    else:
        try:
            defaults = Options()
            study = compute(
                options.folder,
                Options(
                    options.experiment,
                    options.slo,
                    tuple(options.devices or defaults.fleets),
                    options.batching or defaults.batching,
                    parts=() if options.quick else defaults.parts,
                ),
            )
        except InvalidInput as error:
            print(f"proteus.py: {error}", file=sys.stderr)
            return 2
        print(summary(study))
        if options.quick and options.out is None:
            return 0  # what is kept is of the whole study
        out.mkdir(parents=True, exist_ok=True)
        write(study, kept)
        study = read(kept)
    render(study, out)
    return 0


def render(study: Study, out: Path) -> None:
    """Write the page and its figures."""
    (out / "figures").mkdir(exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for name, figure in draw(study).items():
            figure.savefig(out / "figures" / name, metadata={"Date": None})
    (out / "proteus.md").write_text(page(study), encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=_folder, help="the published data; without it the page is made from what is kept")
    parser.add_argument("--quick", action="store_true", help="the comparison of the systems alone; printed, and written with --out")
    parser.add_argument("--out", type=Path, help="where the page, its figures and its data go (docs/)")
    parser.add_argument("--experiment", default=Options.experiment, help="the trace: traces/EXPERIMENT (%(default)s)")
    parser.add_argument("--slo", default=Options.slo, help="its deadline: traces/EXPERIMENT/SLO (%(default)s)")
    parser.add_argument("--batching", action="append", help="experiments that compare batching; may be given again")
    parser.add_argument(
        "--devices", action="append", type=_devices, help="a fleet, as CPU=20,AMPERE=10,PASCAL=10; may be given again"
    )
    return parser


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
    sys.exit(main())
