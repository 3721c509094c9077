"""Pictures of the live page of a running buffer: ``python -m studies.pictures http://127.0.0.1:8080``, light, dark and on a phone.

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
COLORS = 48  # of a picture: text and lines need no more
SCREENS = {"light": (1000, 2150, "light"), "dark": (1000, 900, "dark"), "phone": (360, 900, "light")}
"""Width and height in pixels, and which scheme the system prefers."""


async def take(url: str, executable: str, folder: Path) -> list[Path]:
    """Write the pictures; where they are."""
    written = []
    async with browser(executable) as tab:
        for name, (width, height, scheme) in SCREENS.items():
            await tab.resize(width, height, scheme)
            await tab.open(url)
            await tab.until("document.querySelectorAll('section.model svg').length > 0")
            written.append(folder / f"live-page-{name}.png")
            picture = Image.open(io.BytesIO(await tab.picture())).convert("RGB")
            picture.quantize(COLORS, dither=Image.Dither.NONE).save(written[-1], optimize=True)
    return written


def main(arguments: list[str]) -> None:
    """Take the pictures of the page at an address."""
    if len(arguments) != 1:
        sys.exit("usage: python -m studies.pictures URL")
    executable = find_browser()
    if executable is None:
        sys.exit("no browser: a headless Chromium is needed, as Debian's chromium-headless-shell, or BROWSER=EXECUTABLE")
    try:
        written = asyncio.run(take(arguments[0], executable, FIGURES))
    except TimeoutError:
        sys.exit(f"{arguments[0]}: no buffer shows a model there")
    for path in written:
        print(f"wrote docs/figures/{path.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
