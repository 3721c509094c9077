"""A headless Chromium, spoken to in its DevTools protocol: to open a page as a person would, and to take pictures of it.

No driver is needed beside the browser, which is one of ``NAMES`` on the path or what ``BROWSER`` names in the environment. On
Debian: ``apt-get install chromium-headless-shell``.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome")
STARTS_IN = 20.0  # s
POLL = 0.02  # s between two looks


def find_browser() -> str | None:
    """The executable, where there is one."""
    return os.environ.get("BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """One page in the browser, over its own connection; ``errors`` are what its console and its policy complained of."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.errors: list[str] = []
        self._socket = socket
        self._serials = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.ensure_future(self._read())

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What the browser answers to a method of the protocol."""
        serial = next(self._serials)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[serial] = answer
        await self._socket.send_json({"id": serial, "method": method, "params": parameters})
        return await answer

    async def open(self, url: str) -> None:
        """Load a page, which from here on tells its errors."""
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise ValueError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    async def until(self, expression: str, within: float = 10.0) -> Any:
        """Wait until an expression is true, and return its value."""
        async with asyncio.timeout(within):
            while not (value := await self.evaluate(expression)):
                await asyncio.sleep(POLL)
        return value

    async def press(self, key: str, code: int) -> None:
        """A key goes down and up."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    async def resize(self, width: int, height: int, scheme: str = "light") -> None:
        """As on a screen of so many pixels, whose system prefers this scheme."""
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def picture(self) -> bytes:
        """What is to be seen, as a PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])

    async def close(self) -> None:
        """Hang up."""
        self._reading.cancel()
        await self._socket.close()

    async def _read(self) -> None:
        async for message in self._socket:
            told = message.json()
            match told:
                case {"id": serial}:
                    answer = self._answers.pop(serial)
                    if "error" in told:
                        answer.set_exception(ValueError(told["error"]["message"]))
                    else:
                        answer.set_result(told["result"])
                case {"method": "Runtime.exceptionThrown", "params": {"exceptionDetails": details}}:
                    self.errors.append(str(details))
                case {"method": "Log.entryAdded", "params": {"entry": {"level": "error" | "warning", "text": text}}}:
                    self.errors.append(text)


@asynccontextmanager
async def browser(executable: str) -> AsyncIterator[Tab]:
    """A browser of its own, with nothing remembered, and its one tab."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        options = ["--remote-debugging-port=0", f"--user-data-dir={folder}", "--disable-gpu", "--hide-scrollbars", "--headless"]
        if os.geteuid() == 0:
            options.append("--no-sandbox")  # which root cannot have
        nowhere = asyncio.subprocess.DEVNULL
        # In a session of its own: Debian's executable is a script, and what it starts is ended with it.
        process = await asyncio.create_subprocess_exec(
            executable, *options, "about:blank", stdout=nowhere, stderr=nowhere, start_new_session=True
        )
        try:
            port = await _port(Path(folder) / "DevToolsActivePort")
            async with aiohttp.ClientSession() as http:
                async with http.get(f"http://127.0.0.1:{port}/json") as response:
                    (page,) = [target for target in await response.json() if target["type"] == "page"]
                tab = Tab(await http.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0))
                try:
                    yield tab
                finally:
                    await tab.close()
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _port(file: Path) -> str:
    """Where the browser listens, as it writes once it does."""
    async with asyncio.timeout(STARTS_IN):
        while not (file.exists() and file.read_text().strip()):
            await asyncio.sleep(POLL)
    return file.read_text().splitlines()[0]
