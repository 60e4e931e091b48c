"""A headless Chromium, driven by its DevTools protocol."""

import itertools
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

from tests.support.waiting import LIMIT_S, wait_for

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--remote-debugging-port=0"),
)
_KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "ArrowLeft": (37, ""), "End": (35, "")}


class Page:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self._loaded: set[str] = set()
        #: What the page threw, logged as an error, or was kept from doing by its own policy.
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.do(f"{domain}.enable")
        self.do("Page.setLifecycleEventsEnabled", enabled=True)

    def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(LIMIT_S))
            if message.get("id") == number:
                assert "error" not in message, message["error"]
                return message["result"]
            self._take(message)

    def _take(self, event: dict[str, Any]) -> None:
        content = event["params"]
        match event["method"]:
            case "Runtime.exceptionThrown":
                self.problems.append(str(content["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if content["type"] in ("error", "warning"):
                self.problems.append(str(content["args"]))
            case "Log.entryAdded" if content["entry"]["level"] == "error":
                self.problems.append(f"{content['entry']['text']} {content['entry'].get('url')}")
            case "Page.lifecycleEvent" if content["name"] == "load":
                self._loaded.add(content["loaderId"])

    def get(self, url: str) -> None:
        """Open an address, and wait until the page is loaded."""
        opened = self.do("Page.navigate", url=url)["loaderId"]
        while opened not in self._loaded:
            self._take(json.loads(self._connection.recv(LIMIT_S)))

    def script(self, expression: str) -> Any:
        """Return the value of an expression in JavaScript."""
        answer = self.do(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str) -> Any:
        """Wait until an expression in JavaScript is true; return its value."""
        deadline_s = time.monotonic() + LIMIT_S
        while not (value := self.script(condition)):
            assert time.monotonic() < deadline_s, f"{condition}: not in {LIMIT_S:g} s"
            time.sleep(0.05)
        return value

    def press(self, key: str, times: int = 1) -> None:
        """Press a key, as a user does."""
        code, text = _KEYS[key]
        pressed = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        for _ in range(times):
            self.do("Input.dispatchKeyEvent", type="keyDown", text=text, **pressed)
            self.do("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def resize(self, width: int, height: int) -> None:
        """Give the page a size in pixels."""
        self.do(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip


@contextmanager
def browsing(folder: Path) -> Iterator[Page]:
    """Run a browser with its files in `folder`, and give its page."""
    process = subprocess.Popen(
        [str(CHROMIUM), *_OPTIONS, f"--user-data-dir={folder}", "about:blank"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        port = next(
            found[1] for line in process.stderr if (found := re.search(r":(\d+)/devtools/", line))
        )
        pages: list[dict[str, str]] = []

        def has_a_page() -> list[dict[str, str]]:
            listed = httpx.get(f"http://127.0.0.1:{port}/json/list").json()
            pages[:] = [one for one in listed if one["type"] == "page"]
            return pages

        # It listens before it has made its first page.
        assert wait_for(has_a_page)
        address = pages[0]["webSocketDebuggerUrl"]
        # Its pings are not answered while nobody reads the page's events.
        with connect(address, max_size=None, ping_interval=None) as connection:
            yield Page(connection)
    finally:
        process.terminate()
        process.communicate()
