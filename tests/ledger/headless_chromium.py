"""A real browser for tests: Chromium without a window, spoken to over a pair of pipes in its DevTools protocol.

Messages are JSON objects, each ended by a NUL byte; the browser reads file descriptor 3 and writes 4
(https://chromedevtools.github.io/devtools-protocol, `--remote-debugging-pipe`). No driver and no socket is needed.
"""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

FLAGS = (
    "--headless",
    "--no-sandbox",  # the kernel of a container may allow none; the pages are our own
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)

PATIENCE = 60.0
"""Seconds to wait for an answer: far more than one takes, on a machine that does other things too."""

_EXEC = (
    "import os, sys; r, w = map(int, sys.argv[1:3]); os.dup2(r, 103); os.dup2(w, 104); os.dup2(103, 3); os.dup2(104, 4);"
    " os.execvp(sys.argv[3], sys.argv[3:])"
)


class Browser:
    """A Chromium with a profile of its own, gone when the block ends."""

    def __init__(self, profile: Path) -> None:
        from_us, self._write = os.pipe()
        self._read, to_us = os.pipe()
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _EXEC, str(from_us), str(to_us), *command],
            pass_fds=(from_us, to_us),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(from_us)
        os.close(to_us)
        self._number = 0
        self._buffer = b""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Sends a command and returns its result; events that arrive meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._write, json.dumps(message).encode() + b"\0")
        number = self._number
        return self._until(lambda answer: answer.get("id") == number, method)["result"]

    def wait_for(self, method: str, session: str) -> None:
        """Waits for an event that has not arrived yet."""
        self._until(lambda message: (message.get("method"), message.get("sessionId")) == (method, session), method)

    def open(self, url: str) -> "Page":
        """Opens a page in a tab of its own."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        page = Page(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Network", "Log", "Runtime", "Accessibility", "DOM"):
            page.call(f"{domain}.enable")
        page.call("Page.navigate", url=url)
        self.wait_for("Page.loadEventFired", page.session)
        return page

    def _until(self, wanted: Any, what: str) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while True:
            while b"\0" in self._buffer:
                line, _, self._buffer = self._buffer.partition(b"\0")
                message = json.loads(line)
                if "method" in message:
                    self.events.append(message)
                if wanted(message):
                    assert "error" not in message, f"{what}: {message['error']}"
                    return message
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._read, 1 << 16) if ready else b""
            assert data, f"no answer of the browser to {what}"
            self._buffer += data


class Page:
    """A tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser = browser
        self.session = session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command to the tab."""
        return self.browser.call(method, self.session, **params)

    def resize(self, width: int, height: int = 800, *, mobile: bool = False) -> None:
        """Gives the tab a screen of this size, in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def media(self, kind: str = "screen", **features: str) -> None:
        """Says what the page is shown on, and what its reader prefers."""
        told = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", media=kind, features=told)

    def evaluate(self, expression: str) -> Any:
        """Returns the value of an expression in the page; the page's own policy does not concern it."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Presses and releases a key."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def heard(self) -> list[tuple[str, str]]:
        """Returns role and name of everything in the accessibility tree that is not ignored, in order."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        shown = [node for node in nodes if not node["ignored"]]
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in shown]

    def screenshot(self, path: Path) -> None:
        """Writes a picture of the whole page."""
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def pdf(self) -> bytes:
        """Returns the page as printed on A4."""
        sheet = {"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": True, "preferCSSPageSize": False}
        return base64.b64decode(self.call("Page.printToPDF", **sheet)["data"])

    def requested(self) -> list[str]:
        """Returns the addresses that this tab asked for."""
        return [event["params"]["request"]["url"] for event in self._events("Network.requestWillBeSent")]

    def complaints(self) -> list[str]:
        """Returns what the browser logged: refused by a policy, failed to parse, thrown."""
        logged = [event["params"]["entry"]["text"] for event in self._events("Log.entryAdded")]
        return logged + [json.dumps(event["params"]) for event in self._events("Runtime.exceptionThrown")]

    def _events(self, method: str) -> list[dict[str, Any]]:
        return [event for event in self.browser.events if (event["method"], event.get("sessionId")) == (method, self.session)]
