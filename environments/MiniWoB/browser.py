"""A Chromium without a window that shows one page. It ends with this program, even if the program is killed."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import tempfile
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.proxy import Proxy, ProxyType
from selenium.webdriver.remote.client_config import ClientConfig
from urllib3.exceptions import HTTPError

from relaax.client import command
from relaax.client.connection.failure import Failure
from relaax.client.program.families import ProcessReaper

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
MISSING = "install Chromium and its driver; Debian: apt-get install chromium chromium-driver"
_OPTIONS = (
    "--headless",
    "--disable-gpu",
    "--disable-dev-shm-usage",  # /dev/shm is small in a container
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-breakpad",
    "--hide-scrollbars",
    "--mute-audio",
    "--no-first-run",
    "--remote-debugging-pipe",  # the browser exits when the pipe closes
)


def binaries() -> tuple[str, str]:
    """Return the paths of browser and driver. Raises command.UsageError if one of them is not installed."""
    browser = os.environ.get("MINIWOB_CHROME_BINARY") or next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = os.environ.get("MINIWOB_CHROMEDRIVER") or shutil.which("chromedriver")
    for name, path in (("chromium", browser), ("chromedriver", driver)):
        if path is None or shutil.which(path) is None:
            raise command.UsageError(f"there is no {path or name} on this machine: {MISSING}")
    assert browser is not None
    assert driver is not None
    return browser, driver


class Browser:
    """A browser that shows the upper left part of the page at `url`, scaled by `scale`.

    Raises Failure if the browser does not respond. The driver leads a process group that contains its browsers. A
    ProcessReaper ends the group when the program closes the browser, and also if the program is killed.
    """

    def __init__(self, url: str, width: int, height: int, scale: float) -> None:
        self._size = {"width": width, "height": height}
        browser, driver = binaries()
        options = webdriver.ChromeOptions()
        options.binary_location = browser
        self._folder = tempfile.mkdtemp(prefix="relaax-chromium-")
        for option in (*_OPTIONS, f"--user-data-dir={self._folder}"):
            options.add_argument(option)
        # As root, and in a container without namespaces, Chromium starts only without its sandbox.
        if os.geteuid() == 0 or os.environ.get("MINIWOB_NO_SANDBOX") == "1":
            options.add_argument("--no-sandbox")
        service = Service(
            driver,
            log_output=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": self._folder},
            popen_kw={"start_new_session": True},
        )
        self._service = service
        self._reaper = ProcessReaper(self._folder)
        try:
            service.start()
            self._reaper.register(-service.process.pid)
            # The driver listens on a local port, which a proxy cannot reach.
            direct = ClientConfig(service.service_url, proxy=Proxy({"proxyType": ProxyType.DIRECT}))
            self._driver = webdriver.Remote(service.service_url, options=options, client_config=direct)
            self._devtools(
                "Emulation.setDeviceMetricsOverride", {**self._size, "deviceScaleFactor": scale, "mobile": False}
            )
            self._driver.get(url)
        except (WebDriverException, HTTPError, OSError) as error:
            self.close()
            raise Failure(f"Chromium did not start: {_one_line(error)}") from error
        except BaseException:
            self.close()
            raise

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript in the page and return its result."""
        return self._execute("w3cExecuteScript", {"script": script, "args": list(arguments)})

    def click(self, x: int, y: int) -> None:
        """Press and release the left button of the mouse at this pixel of the page."""
        steps = [
            {"type": "pointerMove", "duration": 0, "x": x, "y": y, "origin": "viewport"},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": steps}
        self._execute("actions", {"actions": [mouse]})

    def screenshot(self, zoom: float = 1.0) -> npt.NDArray[np.uint8]:
        """Return the page, uint8 [height * scale * zoom, width * scale * zoom, 3]."""
        clip = {"clip": {"x": 0, "y": 0, **self._size, "scale": zoom}} if zoom != 1 else {}
        capture = self._devtools("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": True, **clip})
        pixels = np.frombuffer(base64.b64decode(capture["data"]), np.uint8)
        image: Any = cv2.imdecode(pixels, cv2.IMREAD_COLOR_RGB)
        return np.asarray(image, np.uint8)

    def close(self) -> None:
        """End the browser and its driver."""
        self._reaper.close()
        process = getattr(self._service, "process", None)
        if process is not None:
            process.kill()
            process.wait()
            process.stdin.close()
            self._service.process = None  # otherwise Service would stop it again

    def _devtools(self, name: str, parameters: dict[str, Any]) -> Any:
        return self._execute("executeCdpCommand", {"cmd": name, "params": parameters})

    def _execute(self, name: str, parameters: dict[str, Any]) -> Any:
        try:
            answer: Any = self._driver.execute(name, parameters)
            return answer["value"]
        except (WebDriverException, HTTPError, OSError) as error:
            raise Failure(f"Chromium does not respond: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
