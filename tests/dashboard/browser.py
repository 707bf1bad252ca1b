"""A headless Chromium with a profile of its own, and an API server with made-up data that a test can change."""

from __future__ import annotations

import asyncio
import contextlib
import io
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from dilocoxd.api.server import serve_api
from dilocoxd.config.api import ApiSection
from tests.harness.running.run_directories import free_port
from tests.harness.synthetic.fake_view import FakeControl, FakeView

PATIENCE_S = 60
BROKEN = ("ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY_RESPONSE", "ERR_NETWORK_CHANGED")
"""What Chromium calls a connection that ended before its answer: the server went, or other tests changed interfaces."""
QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run", "--disable-default-apps", "--hide-scrollbars",
    "--force-color-profile=srgb",
)  # fmt: skip


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Chrome]:
    """Debian's chromium and chromium-driver; nothing is downloaded."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert binary and driver, "install the system packages chromium and chromium-driver"
    options = ChromeOptions()
    options.binary_location = binary
    for argument in (*QUIET, f"--user-data-dir={profile}", "--window-size=1400,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = Chrome(options=options, service=Service(driver))
    try:
        yield browser
    finally:
        browser.quit()


class Page:
    """The dashboard in a browser."""

    def __init__(self, browser: Chrome) -> None:
        self.browser = browser

    def open(self, url: str) -> None:
        self.browser.get(url)

    def size(self, width: int, height: int) -> None:
        """The viewport; a window would not become as narrow as a phone."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def opened(self, url: str, theme: str = "light") -> None:
        """The page in these colours, whole."""
        self.open(url)
        self.run(f"localStorage.setItem('dilocoxd-theme', '{theme}')")
        self.open(url)
        self.until_loaded()

    def choose_theme(self, theme: str) -> None:
        """By the button, on the page as it is."""
        before = {"light": "system", "dark": "light"}[theme]
        self.run(f"localStorage.setItem('dilocoxd-theme', '{before}'); document.getElementById('theme').click()")

    def click(self, element: str) -> None:
        self.run(f"document.getElementById('{element}').scrollIntoView({{block: 'center'}})")
        self.browser.find_element(By.ID, element).click()

    def choose(self, element: str, value: str) -> None:
        self.run(
            f"const e = document.getElementById('{element}'); e.value = {value!r}; e.dispatchEvent(new Event('change'))"
        )

    def drawn(self) -> None:
        """Whatever was asked for is on the screen."""
        self.run("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def picture(self, element: str) -> Image.Image:
        """The whole element: what is below the edge of the window would be cut off."""
        self.run(f"document.getElementById('{element}').scrollIntoView({{block: 'center'}})")
        self.drawn()
        return Image.open(io.BytesIO(self.browser.find_element(By.ID, element).screenshot_as_png))

    def text(self, element: str) -> str:
        return self.browser.find_element(By.ID, element).text

    def label(self, element: str) -> str:
        return self.browser.find_element(By.ID, element).get_attribute("aria-label") or ""

    def run(self, script: str) -> Any:
        return self.browser.execute_script(script)

    def until(self, condition: Callable[[], Any], what: str) -> None:
        WebDriverWait(self.browser, PATIENCE_S, 0.1).until(lambda _: condition(), f"{what} within {PATIENCE_S} s")

    def until_loaded(self) -> None:
        self.until(lambda: self.run("return document.body.dataset.loaded") == "true", "the page loads")

    def errors(self) -> list[str]:
        """What the browser complained about since the last call, apart from broken connections."""
        found = [entry["message"] for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]
        return [message for message in found if not any(cause in message for cause in BROKEN)]


class FakeDaemon:
    """The API over a FakeView on a loop in a thread; it can be stopped and started again on the same port."""

    def __init__(self, num_rounds: int, token: str = "0123456789abcdef0123", **section: Any) -> None:
        self.view, self.control = FakeView(num_rounds), FakeControl()
        self.view.is_ready, self.view.state, self.view.waiting_for = True, "training", ""
        self._token = token
        self._section = section
        self._port = free_port()  # of ours alone, also between a stop and the next start
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    def start(self) -> None:
        is_up = threading.Event()
        self.view.listeners.clear()

        async def serve() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            section = ApiSection(port=self._port, requests_per_s_max=1000, **self._section)
            async with serve_api(self.view, self.control, section, self._token):
                is_up.set()
                await self._stop.wait()

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), name="fake daemon")
        self._thread.start()
        assert is_up.wait(PATIENCE_S)

    def stop(self) -> None:
        if self._thread is None or self._loop is None or self._stop is None:
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._thread = None

    def change(self, action: Callable[[FakeView], None], **event: Any) -> None:
        """Change the view on its own loop, then tell the clients."""
        assert self._loop is not None

        def do() -> None:
            action(self.view)
            self.view.emit(**event)

        self._loop.call_soon_threadsafe(do)
