"""The dashboard in a real headless Chromium: what it shows, how it lives, and that it needs nothing from elsewhere."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from dilocoxd.api.dashboard import pages
from tests.dashboard.browser import FakeDaemon, Page, chromium

pytestmark = pytest.mark.browser
PICTURES = Path(__file__).resolve().parents[2] / "docs" / "images"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def page(browser: Chrome) -> Iterator[Page]:
    browser.set_window_size(1400, 1000)
    shown = Page(browser)
    shown.errors()
    yield shown
    assert shown.errors() == []
    browser.get("about:blank")


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    made = FakeDaemon(num_rounds=120)
    made.start()
    yield made
    made.stop()


def opened(page: Page, daemon: FakeDaemon, theme: str = "light") -> Page:
    page.open(daemon.url)
    page.run(f"localStorage.setItem('dilocoxd-theme', '{theme}')")
    page.open(daemon.url)
    page.until_loaded()
    return page


def test_page_shows_what_the_daemon_knows(page: Page, daemon: FakeDaemon) -> None:
    opened(page, daemon)
    assert page.text("connection") == "live"
    assert page.text("state") == "training"
    assert "Waits for nothing" in page.text("waiting")
    assert "inner step 7 of 20" in page.text("phase-text")
    facts = page.text("facts")
    assert "120" in facts and "exchanging" in facts and "3.400" in facts
    assert "100.0 times smaller" in page.text("bytes-hint")
    peers = page.text("peers")
    assert "same as ours" in peers and "1 behind" in peers and "2.4 MiB/s" in peers and "not measured" in peers
    assert "What to do:" in page.text("alerts")
    assert "Rounds 96 to 120 of 121 known" in page.text("rounds-range")
    assert "vanished during the exchange" in page.text("rounds")
    assert "newest: r 63, H 20" in page.label("schedule-chart")
    assert "idle" in page.label("timeline-chart")
    assert "shared model 2.248 after round 119" in page.label("loss-chart")
    assert page.run("return document.querySelectorAll('.u-wrap canvas').length") == 5


def test_peer_that_vanishes_is_seen_without_reloading(page: Page, daemon: FakeDaemon) -> None:
    opened(page, daemon)
    gone = daemon.view.live[0]
    page.run("window.isSamePage = true")
    row = f'tr[data-peer="{gone}"]'
    assert page.browser.find_element(By.CSS_SELECTOR, row).get_attribute("data-live") == "true"

    def vanish(view: object) -> None:
        daemon.view.live.remove(gone)
        daemon.view.waiting_for = f"the votes of {gone}"
        daemon.view.alert_codes = ["left_out", "alone"]

    daemon.change(vanish, event="peer.lost", peer=gone)
    page.until(
        lambda: page.run(f"return document.querySelector('{row}')?.dataset.live") == "false",
        "the peer is shown as gone",
    )
    assert "dead: last heard of 90 s ago" in page.text("peers")
    page.until(lambda: "Waits for the votes of" in page.text("waiting"), "the reason for waiting is shown")
    assert "1 live" in page.text("peers-hint")
    assert page.run("return window.isSamePage") is True


def test_new_round_arrives_by_the_event_stream(page: Page, daemon: FakeDaemon) -> None:
    opened(page, daemon)

    def commit(view: object) -> None:
        daemon.view.num_rounds += 1

    daemon.change(commit, event="round.committed", round=120)
    page.until(lambda: "121 of 122 known" in page.text("rounds-range"), "the round appears")
    page.until(lambda: "height 121" in page.browser.title, "the title follows")


def test_lost_connection_is_shown_and_heals(page: Page, daemon: FakeDaemon) -> None:
    opened(page, daemon)
    page.run("window.isSamePage = true")
    daemon.stop()
    page.until(lambda: page.text("connection") == "connection lost", "the loss is shown")
    assert "Trying again" in page.text("lost")
    daemon.view.num_rounds += 5
    daemon.start()
    page.until(lambda: page.text("connection") == "live", "the connection heals")
    page.until(lambda: "125 of 126 known" in page.text("rounds-range"), "what happened meanwhile is there")
    assert page.run("return document.getElementById('lost').hidden") is True
    assert page.run("return window.isSamePage") is True


def test_ten_thousand_rounds(page: Page) -> None:
    daemon = FakeDaemon(num_rounds=10_000)
    daemon.start()
    try:
        opened(page, daemon)
        assert "of 10001 known" in page.text("rounds-range")
        assert "rounds 0 to 10000" in page.label("bytes-chart")
        drawn = page.run(
            "const t = performance.now(); document.getElementById('older').click(); return performance.now() - t"
        )
        assert "Rounds 9951 to 9975" in page.text("rounds-range")
        assert drawn < 2000
        assert page.run("return document.querySelectorAll('*').length") < 5000
    finally:
        daemon.stop()


def test_keyboard_reaches_everything_and_names_are_there(page: Page, daemon: FakeDaemon) -> None:
    opened(page, daemon)
    body = page.browser.find_element(By.TAG_NAME, "body")
    seen = []
    for _ in range(40):
        body.send_keys(Keys.TAB)
        body = page.browser.switch_to.active_element
        seen.append(body.get_attribute("id") or body.tag_name)
    assert seen[0] == "a", "the first stop skips to the content"
    assert {"theme", "loss-chart", "span-choice", "peers", "older", "timeline-chart"} <= set(seen)
    unnamed = page.run(
        "return [...document.querySelectorAll('button, select, input, [role=img], [role=region], section')].filter("
        "e => !(e.ariaLabel || e.textContent.trim() || e.labels?.length || e.getAttribute('aria-labelledby'))).map("
        "e => e.id || e.tagName)"
    )
    assert unnamed == []
    assert page.run("return document.documentElement.lang") == "en"
    assert page.run("return document.querySelectorAll('th:not([scope]):not(.u-legend th)').length") == 0


def test_page_asks_nobody_else_and_allows_nothing_else(page: Page, daemon: FakeDaemon) -> None:
    page.browser.get_log("performance")
    opened(page, daemon)
    sent = [json.loads(entry["message"])["message"] for entry in page.browser.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"]
    assert urls and all(url.startswith((daemon.url, "data:", "about:", "chrome")) for url in urls), urls
    inline = (
        "const s = document.createElement('script'); s.textContent = 'window.hasRun = true'; document.body.append(s)"
    )
    page.run(inline)
    assert page.run("return window.hasRun === undefined") is True
    assert any("Content Security Policy" in message for message in page.errors())


def test_token_is_asked_for_once(page: Page) -> None:
    daemon = FakeDaemon(num_rounds=5, read_needs_token=True)
    daemon.start()
    try:
        page.open(daemon.url)
        page.until(lambda: page.run("return !document.getElementById('token-form').hidden"), "the token is asked for")
        field = page.browser.find_element(By.ID, "token")
        field.send_keys("0123456789abcdef0123", Keys.ENTER)
        page.until_loaded()
        assert page.text("connection") == "live"
        page.open(daemon.url)
        page.until_loaded()
    finally:
        page.browser.get_log("browser")  # the browser logs the 401 that made the page ask
        daemon.stop()


def count_pixels(picture: Image.Image, colour: str, tolerance: int = 24) -> int:
    """Pixels within `tolerance` of a colour like #2463b0."""
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    raw = picture.convert("RGB").tobytes()
    near = [
        all(abs(raw[position + channel] - wanted[channel]) <= tolerance for channel in range(3))
        for position in range(0, len(raw), 3)
    ]
    return sum(near)


@pytest.mark.parametrize(
    ("name", "theme", "width"), [("light", "light", 1400), ("dark", "dark", 1400), ("narrow", "light", 420)]
)
def test_picture_has_content(page: Page, daemon: FakeDaemon, tmp_path: Path, name: str, theme: str, width: int) -> None:
    opened(page, daemon, theme)
    page.browser.set_window_size(width, 1000)
    height = page.run("return document.documentElement.scrollHeight")
    page.browser.set_window_size(width, min(height + 200, 6000))
    page.until(
        lambda: page.run("return document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"
    )
    page.run("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    data = page.browser.get_screenshot_as_png()
    folder = PICTURES if os.environ.get("DILOCOXD_KEEP_PICTURES") else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    small = Image.open(io.BytesIO(data)).convert("RGB").quantize(128)
    small.save(folder / f"dashboard-{name}.png", optimize=True)
    colours = json.loads(
        page.run(
            "const c = getComputedStyle(document.documentElement); return JSON.stringify(Object.fromEntries("
            "['one', 'two', 'card', 'span-compute', 'span-exchange', 'bad-back'].map("
            "n => [n, c.getPropertyValue('--' + n).trim()])))"
        )
    )
    for chart, tones in {
        "loss-chart": ("one", "two"),
        "bytes-chart": ("one", "two"),
        "schedule-chart": ("one", "two"),
        "timeline-chart": ("span-compute", "span-exchange"),
    }.items():
        part = Image.open(io.BytesIO(page.browser.find_element(By.ID, chart).screenshot_as_png))
        for tone in tones:
            found = count_pixels(part, colours[tone])
            assert found > 60, f"{chart} shows {found} pixels of {tone} ({colours[tone]})"
    whole = Image.open(io.BytesIO(data))
    assert count_pixels(whole, colours["card"], 3) > whole.width * whole.height / 10


def test_every_file_of_the_page_is_served_and_belongs_to_it() -> None:
    names = set(pages())
    assert {"index.html", "dashboard.js", "dashboard.css", "vendor/uPlot.esm.js", "vendor/uPlot.min.css"} <= names
    text = "".join(page.body.decode() for name, page in pages().items() if not name.startswith("vendor/"))
    assert all(name.rpartition("/")[2] in text for name in names - {"index.html"})
    for foreign in ("http://", "https://", "//cdn"):
        assert foreign not in text.replace("http://www.w3.org/2000/svg", "")
