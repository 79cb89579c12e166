"""Opens pages in Chromium over its debugging pipe (Chrome DevTools Protocol), with the sizes of a desktop and a phone.

    python -m tests.docs.browser build/site/index.html shot.png [phone] [dark]
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

SIZES: Final = {"desktop": (1280, 900, False), "phone": (390, 844, True)}
SECONDS: Final = 60

_OPTIONS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--allow-file-access-from-files", "--remote-debugging-pipe", "--hide-scrollbars",
)  # fmt: skip


def chromium() -> str | None:
    """Returns where Chromium is, if it is."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page of a browser that runs."""

    def __init__(self, to: Any, answers: Any) -> None:
        self._to, self._from, self._number = to, answers, 0
        self.asked: list[str] = []
        """Addresses that pages asked for."""
        self._events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")

    _session: str | None = None

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """Sends a command and returns its answer; keeps the events that come before it."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": given}
        if self._session is not None:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        found = bytearray()
        if not select.select([self._from], [], [], SECONDS)[0]:
            raise TimeoutError(f"the browser said nothing for {SECONDS} seconds")
        while (byte := self._from.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("the browser ended")
            found += byte
        answer: dict[str, Any] = json.loads(found)
        if answer.get("method") == "Network.requestWillBeSent":
            self.asked.append(answer["params"]["request"]["url"])
        if "method" in answer:
            self._events.append(answer)
        return answer

    def open(self, address: str, size: str = "desktop", *, dark: bool = False) -> None:
        """Opens an address and waits until it is loaded."""
        width, height, mobile = SIZES[size]
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        # With its fragment a page that is open already would load nothing, and be waited for in vain.
        page, _, fragment = address.partition("#")
        self.call("Page.navigate", url=page)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._read()
        if fragment:
            self.value(f"location.hash = {json.dumps(fragment)}")

    def value(self, expression: str) -> Any:
        """Returns what an expression of JavaScript is on the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return found["result"].get("value")

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Writes what is seen, or the whole page, as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]))


@contextmanager
def browser() -> Iterator[Browser]:
    """Starts Chromium with an empty profile, and ends it."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()

    with tempfile.TemporaryDirectory() as profile:
        # The pipe's ends have to be 3 and 4 in the child; ours are moved out of their way first.
        ends = [os.dup(end) for end in (to_read, from_write)]
        moved = f'exec "$0" "$@" 3<&{ends[0]} 4>&{ends[1]}'
        process = subprocess.Popen(
            ["bash", "-c", moved, str(chromium()), *_OPTIONS, f"--user-data-dir={profile}"],
            pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for end in (*ends, to_read, from_write):
            os.close(end)
        try:
            with open(to_write, "wb") as to, open(from_read, "rb", buffering=0) as answers:
                yield Browser(to, answers)
        finally:
            process.terminate()
            process.wait(timeout=SECONDS)


if __name__ == "__main__":
    with browser() as shown:
        shown.open(Path(sys.argv[1]).resolve().as_uri(), "phone" if "phone" in sys.argv else "desktop", dark="dark" in sys.argv)
        shown.picture(Path(sys.argv[2]), whole="whole" in sys.argv)
