"""A headless Chromium as a person uses it: pages, clicks, keys and screenshots, by the DevTools protocol."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "Tab": 9, "Enter": 13, "End": 35}


def find() -> str | None:
    """The browser's path, if there is one."""
    return next((path for path in map(shutil.which, NAMES) if path is not None), None)


class Browser:
    """One page, which ``goto`` loads anew.

    Messages end with a zero byte, on the pipes that Chromium has as files 3 and 4.
    """

    def __init__(self, executable: str, profile: Path) -> None:
        from_test, to_browser = os.pipe()
        from_browser, to_test = os.pipe()
        # a shell puts the pipes where they belong, after those of Python's that must not go over
        script = f'exec "$0" "$@" 3<&{from_test} 4>&{to_test}'
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        flags += ["--disable-dev-shm-usage", "--window-size=1280,1000", "--remote-debugging-pipe"]
        self.process = subprocess.Popen(
            ["bash", "-c", script, executable, *flags, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(from_test, to_test), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(from_test)
        os.close(to_test)
        self.output, self.input = os.fdopen(to_browser, "wb", 0), os.fdopen(from_browser, "rb")
        self.number = 0
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []
        pages = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _read(self) -> dict[str, Any]:
        message = bytearray()
        while (byte := self.input.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("the browser has ended")
            message += byte
        found: dict[str, Any] = json.loads(message)
        return found

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What a method of the protocol returns; events that come before are kept."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        self.output.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def goto(self, url: str, javascript: bool = True, dark: bool = False, width: int = 1280) -> None:
        """Loads a page and waits until it is there."""
        self.call("Emulation.setScriptExecutionDisabled", value=not javascript)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=False)
        for address in ("about:blank", url):  # from a page to another place in it nothing would be loaded
            self.events.clear()
            self.call("Page.navigate", url=address)
            while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
                self.events.append(self._read())
        self.settle()

    def complaints(self) -> list[str]:
        """Errors and warnings in the page's console since it was loaded."""
        found = []
        for event in self.events:
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded":
                found.append(event["params"]["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """What the page has asked for since it was loaded."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def settle(self) -> None:
        """Waits until what was done is drawn, by asking for a picture: that is possible without JavaScript as well."""
        self.call("Page.captureScreenshot", clip={"x": 0, "y": 0, "width": 1, "height": 1, "scale": 1})

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives in the page, as JSON would hold it."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """The mouse's main button on the middle of an element."""
        x, y = self.value(
            f"(() => {{ const element = document.querySelector({json.dumps(selector)}); element.scrollIntoView("
            "{block: 'center'}); const box = element.getBoundingClientRect(); "
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def press(self, key: str) -> None:
        """A key, by its name."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def type(self, text: str) -> None:
        """Text into the element that has the focus."""
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        """What is seen of the page, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        """Ends the browser."""
        self.session = None
        with contextlib.suppress(RuntimeError, OSError):
            self.call("Browser.close")
        self.output.close()
        self.process.wait(20)
        self.input.close()


@contextlib.contextmanager
def opened(profile: Path) -> Iterator[Browser]:
    """A running browser; there has to be one (see ``find``)."""
    executable = find()
    assert executable is not None
    browser = Browser(executable, profile)
    try:
        yield browser
    finally:
        browser.close()
