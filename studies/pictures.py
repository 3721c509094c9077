"""Pictures of the live page of a running buffer: ``python -m studies.pictures http://127.0.0.1:8080``, light, dark and on a phone.

With ``control`` behind the address it is one of a model that is controlled, with what decisions compared and corrected unfolded.

They are the figures of docs/live-page.md; a browser is needed (``headless.py``).
"""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path

from PIL import Image

from .headless import browser, find_browser

FIGURES = Path(__file__).parents[1] / "docs/figures"
SETTLED = 5.0  # s, in which the page is read again, with what all processes recorded
COLORS = 48  # of a picture: text and lines need no more
SCREENS = {"light": (1000, 2150, "light"), "dark": (1000, 900, "dark"), "phone": (360, 900, "light")}
"""Width and height in pixels, and which scheme the system prefers."""
CONTROLLED = {"control": (1000, 3300, "light")}
UNFOLD = """[...document.querySelectorAll('section.model summary')].filter((each) =>
    /compared|predicted/.test(each.textContent)).forEach((each) => each.click())"""


async def take(url: str, executable: str, folder: Path, controlled: bool = False) -> list[Path]:
    """Write the pictures; where they are."""
    written = []
    async with browser(executable) as tab:
        for name, (width, height, scheme) in (CONTROLLED if controlled else SCREENS).items():
            await tab.resize(width, height, scheme)
            await tab.open(url)
            await tab.until("document.querySelectorAll('section.model svg').length > 0")
            if controlled:
                await tab.evaluate(UNFOLD)
                await asyncio.sleep(SETTLED)
            written.append(folder / f"live-page-{name}.png")
            picture = Image.open(io.BytesIO(await tab.picture())).convert("RGB")
            picture.quantize(COLORS, dither=Image.Dither.NONE).save(written[-1], optimize=True)
    return written


def main(arguments: list[str]) -> None:
    """Take the pictures of the page at an address."""
    if len(arguments) not in (1, 2) or arguments[1:] not in ([], ["control"]):
        sys.exit("usage: python -m studies.pictures URL [control]")
    executable = find_browser()
    if executable is None:
        sys.exit("no browser: a headless Chromium is needed, as Debian's chromium-headless-shell, or BROWSER=EXECUTABLE")
    try:
        written = asyncio.run(take(arguments[0], executable, FIGURES, len(arguments) == 2))
    except TimeoutError:
        sys.exit(f"{arguments[0]}: no buffer shows a model there")
    for path in written:
        print(f"wrote docs/figures/{path.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
