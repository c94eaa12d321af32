"""Chromium without a window, driven by its DevTools protocol over a pipe: no package, no port.

https://chromedevtools.github.io/devtools-protocol/ describes the methods. Messages are JSON, each
ended by a zero byte; Chromium reads from descriptor 3 and writes to 4.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")


class Chromium:
    """One page. `requests` are the addresses that it asked for since the last `open`."""

    def __init__(self, profile: Path) -> None:
        program = next(filter(None, map(shutil.which, NAMES)), None)
        if program is None:
            raise FileNotFoundError(f"these checks need a browser: one of {', '.join(NAMES)}")
        read_here, self._write = os.pipe()
        self._read, write_here = os.pipe()
        arguments = [*SWITCHES, f"--user-data-dir={profile}", "--remote-debugging-pipe"]
        shell = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", str(read_here), str(write_here), program, *arguments],
            pass_fds=(read_here, write_here),
            stderr=subprocess.DEVNULL,
        )
        os.close(read_here)
        os.close(write_here)
        self._buffer = b""
        self._last_id = 0
        self._session: str | None = None
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Returns the result of a method."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, address: str, width: int, is_dark: bool = False, height: int = 900) -> None:
        """Loads a page in a window of that width, as a phone does below 600 pixels."""
        self.requests.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=address)
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression, as JSON holds it."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def screenshot(self, path: Path, is_whole: bool = False) -> None:
        """Writes the window, or the whole page, as PNG."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        """Ends the browser."""
        self.call("Browser.close")
        self._process.wait(timeout=30)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = os.read(self._read, 2**20)
            assert read, f"Chromium ended with status {self._process.wait()}"
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        return message
