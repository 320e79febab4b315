"""Screenshots of environments, by a VNC client and by noVNC in a browser."""

from __future__ import annotations

import base64
import io
import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from support.processes import project_command

PASSWORD = "s3cret!"
CARD = """
import gymnasium, numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
class Card(CartPoleEnv):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    def render(self):
        blocks = np.random.default_rng(7).integers(0, 255, (10, 15, 3), np.uint8)
        return blocks.repeat(40, 0).repeat(40, 1)
gymnasium.register(id="Card-v0", entry_point=Card)
"""
"""A module with the environment Card-v0: a CartPole that always renders the same unique image."""


def card() -> npt.NDArray[np.uint8]:
    """Return the image of Card-v0, uint8 [400, 600, 3]."""
    blocks = np.random.default_rng(7).integers(0, 255, (10, 15, 3), np.uint8)
    return blocks.repeat(40, 0).repeat(40, 1)


def variables(vnc: int, page: int) -> dict[str, str]:
    """Return variables that make a program without a screen serve its pictures at these ports, by VNC and noVNC."""
    return {
        "RELAAX_VNC_PASSWORD": PASSWORD,
        "RELAAX_VNC_BIND": f"127.0.0.1:{vnc}",
        "RELAAX_NOVNC_BIND": f"127.0.0.1:{page}",
        **{"DISPLAY": "", "WAYLAND_DISPLAY": "", "SDL_VIDEODRIVER": ""},
    }


def vnc_screenshot(port: int, password: str | None, folder: Path) -> npt.NDArray[np.uint8] | None:
    """Return a VNC client's screenshot, uint8 [H, W, 3]; None if it is refused or cannot connect."""
    file = folder / "seen.png"
    file.unlink(missing_ok=True)
    asked = [] if password is None else ["--password", password]
    command = [project_command("vncdo"), "--server", f"127.0.0.1::{port}", "--timeout", "30", *asked, "capture", file]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=120, check=False)
    return np.asarray(Image.open(file).convert("RGB")) if done.returncode == 0 and file.is_file() else None


def _home_that_trusts(authority: Path, home: Path) -> Path:
    """Make a home folder in which Chromium trusts a certificate authority."""
    store = home / ".pki/nssdb"
    store.mkdir(parents=True)
    for command in (["-N", "--empty-password"], ["-A", "-n", "authority", "-t", "C,,", "-i", str(authority)]):
        subprocess.run(["certutil", "-d", f"sql:{store}", *command], check=True, timeout=60)
    return home


class Browser:
    """A headless Chromium."""

    def __init__(self, stack: ExitStack, folder: Path, authority: Path | None = None) -> None:
        """`folder`: folder of its profile. `authority`: PEM file of an additional certificate authority to trust."""
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        options.binary_location = str(shutil.which("chromium"))
        home = {} if authority is None else {"HOME": str(_home_that_trusts(authority, folder.with_name("home")))}
        service = webdriver.ChromeService(str(shutil.which("chromedriver")), env={**os.environ, **home})
        self._driver = webdriver.Chrome(options, service)
        stack.callback(self._driver.quit)

    def go(self, url: str) -> None:
        """Open a URL."""
        self._driver.get(url)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the page in CSS pixels, also below the minimum of a window."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Set the preferred colour scheme: "light" or "dark"."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def console_errors(self) -> list[str]:
        """Return the errors in the console since the last call."""
        return [entry["message"] for entry in self._driver.get_log("browser") if entry["level"] == "SEVERE"]

    @property
    def title(self) -> str:
        """Title of the page."""
        return str(self._driver.title)

    def text(self, element: str) -> str:
        """Return the text of an element by its id; empty if there is none."""
        return str(self.execute("return document.getElementById(arguments[0])?.textContent ?? ''", element))

    def execute(self, script: str, *arguments: str) -> object:
        """Run a script in the page and return its result."""
        return self._driver.execute_script(script, *arguments)

    def execute_async(self, script: str) -> object:
        """Run a script in the page and return what it passes to its callback, the last argument."""
        return self._driver.execute_async_script(script)

    def screenshot(self, file: Path) -> None:
        """Write a screenshot of the window as PNG."""
        self._driver.save_screenshot(str(file))

    def open(self, port: int, password: str) -> None:
        """Open the page of noVNC and log in."""
        self._driver.get(f"http://127.0.0.1:{port}/vnc.html?autoconnect=1&password={password}")

    def canvas(self) -> npt.NDArray[np.uint8] | None:
        """Return the image that noVNC has drawn, uint8 [H, W, 3]; None if it has not drawn yet."""
        script = "const c = document.querySelector('#noVNC_container canvas'); return c && c.toDataURL('image/png')"
        data = base64.b64decode((self._driver.execute_script(script) or "").partition(",")[2])
        if not data:  # there is no canvas yet, or it has no size
            return None
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))

    def status(self) -> str:
        """Return the status line of noVNC, such as the reason of a refusal."""
        return str(self._driver.execute_script("return document.querySelector('#noVNC_status').textContent"))


def middle(seen: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.uint8]:
    """Return the middle of a screen, where the window is."""
    top, left = (seen.shape[0] - height) // 2, (seen.shape[1] - width) // 2
    return seen[top : top + height, left : left + width]
