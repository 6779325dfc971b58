# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium for tests, driven over its debugging pipe (Chrome DevTools Protocol).

Every message is JSON that ends in a zero byte: to file descriptor 3 of the browser, from its 4.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-quic", "--disable-extensions", "--disable-dev-shm-usage", "--mute-audio"),
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)
PATIENCE_S = 60.0


def find() -> str | None:
    """Return the path of an installed Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """A page in a browser of its own.

    Parameters
    ----------
    profile
        An empty folder for the browser's files.
    width, height
        Of the window, in CSS pixels.
    """

    def __init__(self, profile: Path, *, width: int = 1280, height: int = 900) -> None:
        program = find()
        assert program is not None
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)]

        def place() -> None:
            """Give the browser its ends of the pipes as 3 and 4, as it wants them."""
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            command,
            pass_fds=(3, 4),
            preexec_fn=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (theirs_in, theirs_out, *ends):
            os.close(end)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Network.emulateNetworkConditions",
            offline=True,
            latency=0,
            downloadThroughput=0,
            uploadThroughput=0,
        )
        self.resize(width, height)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            found = os.read(self._in, 1 << 20)
            if not found:
                raise ConnectionError("the browser has ended")
            self._buffer += found
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE_S
        while True:
            answer = self._receive(until)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Give the page another size, and the colours that its reader prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: Path, *, ready: str = "document.readyState === 'complete'") -> None:
        """Load a file and wait until an expression is true."""
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait(ready)

    def wait(self, expression: str) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + PATIENCE_S
        while not self.run(expression):
            if time.monotonic() > until:
                raise TimeoutError(expression)
            time.sleep(0.05)

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def click(self, x: float, y: float) -> None:
        """Press and release the left button at a place of the window."""
        at = {"x": x, "y": y, "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.call("Input.dispatchMouseEvent", type="mousePressed", **at)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **at)

    def press(self, key: str, *, code: str = "", number: int = 0) -> None:
        """Press and release a key."""
        given: dict[str, Any] = {"key": key, "code": code or key, "windowsVirtualKeyCode": number}
        text = key if len(key) == 1 else ("\r" if key == "Enter" else "")
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **given)
        self.call("Input.dispatchKeyEvent", type="keyUp", **given)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write what the window, or the whole page, looks like as PNG."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def print(self, path: Path) -> bytes:
        """Write the page as PDF, as its own style sheet for paper says, and return it."""
        found = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        data = base64.b64decode(found["data"])
        path.write_bytes(data)
        return data

    def complaints(self) -> list[str]:
        """Return what the console said, and every request that left the file."""
        self.run("0")
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            match event.get("method"):
                case "Runtime.exceptionThrown":
                    found.append(str(parameters["exceptionDetails"]))
                case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning"):
                    found.append(str(parameters["args"]))
                case "Log.entryAdded":
                    found.append(str(parameters["entry"]))
                case "Network.requestWillBeSent":
                    url = parameters["request"]["url"]
                    if not url.startswith(("file:", "data:")):
                        found.append(f"asked for {url}")
        return found
