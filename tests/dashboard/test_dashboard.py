"""The dashboard in a real headless Chromium: what it shows, how it lives, and that it needs nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from PIL import Image
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from dilocoxd.answers.peers import PeerNode, Probation
from dilocoxd.answers.progress import StageSpeeds
from dilocoxd.answers.status import PublicAddress
from dilocoxd.api.dashboard import pages
from tests.dashboard.browser import FakeDaemon, Page, chromium
from tests.dashboard.checks import check_page
from tests.harness.shapes import changed
from tests.harness.synthetic.fake_view import ME, NAMES, FakeView

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def page(browser: Chrome) -> Iterator[Page]:
    shown = Page(browser)
    shown.size(1400, 1000)
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


def test_page_shows_what_the_daemon_knows(page: Page, daemon: FakeDaemon) -> None:
    page.opened(daemon.url)
    assert page.text("connection") == "live"
    assert page.text("state") == "training" and page.text("site-name") == "alpha"
    assert (
        page.text("now-h")
        == "Training, round 120, 3 of 3 sites train, loss 3.400 falling, learning rate falls for 50 min more."
    )
    assert page.text("waiting") == "Nothing is waited for: training and exchange go on."
    assert "inner step 7 of 20" in page.text("phase-text")
    assert "step 2,400 of 4,400 (54.5 %)" in page.text("run-text")
    facts = page.text("facts")
    assert "6,827 tok/s" in facts and "swarm: 18,827 tok/s" in facts and "perplexity 30" in facts
    page.run("document.getElementById('more-facts-box').open = true")
    more = page.text("more-facts")
    assert "0.0025" in more and "0.72" in more and "410 GFLOP/s" in more and "1.2 GB" in more
    assert "100.0 times smaller" in page.text("bytes-hint")
    sites = page.text("sites")
    assert "alpha (this site)" in sites and "as ours" in sites and "1 behind" in sites
    assert "2.5 MB/s" in sites and "not measured" in sites
    assert page.text("sites-summary") == "3 train. 3 took part in the newest round."
    assert "What to do:" in page.text("alerts")
    assert "Rounds 96 to 120 of 121" in page.text("rounds-range")
    assert "vanished during the exchange" in page.text("rounds")
    assert "newest: r 63, H 20" in page.label("schedule-chart")
    assert "idle" in page.label("timeline-chart")
    assert "shared model 2.248 after round 119" in page.label("loss-chart")
    assert page.run("return document.querySelectorAll('.u-wrap canvas').length") == 7
    page.run("document.getElementById('past-alerts-box').open = true")
    assert "until the daemon ended" in page.text("past-alerts") and "10 min" in page.text("past-alerts")


LABELS = "return [...document.querySelectorAll('#loss-chart .u-legend .u-label')].map(e => e.textContent)"
CHOICES = "return [...document.querySelectorAll('#loss-sites option')].map(e => e.value)"


def test_losses_of_other_sites_are_shown_by_name_and_can_be_left_out(page: Page, daemon: FakeDaemon) -> None:
    page.opened(daemon.url)
    assert "inner, beta" in page.run(LABELS) and "inner, this site" in page.run(LABELS)
    assert "1 other site 2.648 to 2.648" in page.label("loss-chart")
    colours = json.loads(
        page.run(
            "const c = getComputedStyle(document.documentElement);"
            "return JSON.stringify([c.getPropertyValue('--site-1').trim()])"
        )
    )
    assert count_pixels(page.picture("loss-chart"), colours[0]) > 60
    page.choose("loss-sites", "none")
    page.drawn()
    assert not [label for label in page.run(LABELS) if "beta" in label]
    assert count_pixels(page.picture("loss-chart"), colours[0]) < 10
    page.choose("loss-sites", "each")
    page.drawn()
    assert "inner, beta" in page.run(LABELS)
    rows = (
        "return Object.fromEntries([...document.querySelectorAll('#sites tbody tr')]"
        ".map(e => [e.dataset.peer, e.cells[5].textContent]))"
    )
    assert page.run(rows) == {"QmFakeSiteA": "3.200", "QmFakeSiteB": "2.125", "QmFakeSiteC": "-"}, "one does not tell"
    page.run("for (const e of document.querySelectorAll('details')) e.open = true")
    assert "beta" in page.text("loss-table")


def test_few_sites_are_lines_and_many_are_summed_up(page: Page, daemon: FakeDaemon) -> None:
    daemon.view.num_telling = 4
    page.opened(daemon.url)
    lines = {label for label in page.run(LABELS) if label.startswith("inner, ")}
    assert lines - {"inner, this site", "inner, as measured"} == {"inner, beta", "inner, gamma", "inner, site-3"}
    assert page.run(CHOICES) == ["none", "each", "range", "QmFakeSiteB", "QmFakeSiteC", "QmFakeSite3"]
    daemon.change(lambda view: setattr(view, "num_telling", 51), event="round.committed", round=120)
    page.until(lambda: "middle of 50 other sites" in page.run(LABELS), "fifty are summed up")
    shown = page.run(LABELS)
    assert {"lowest of 50 other sites", "highest of 50 other sites"} <= set(shown) and len(shown) == 7
    assert page.run(CHOICES)[:2] == ["none", "range"] and len(page.run(CHOICES)) == 52
    page.choose("loss-sites", "QmFakeSite42")
    page.drawn()
    assert "inner, site-42" in page.run(LABELS) and len(page.run(LABELS)) == 5
    daemon.change(lambda view: setattr(view, "num_telling", 1), event="round.committed", round=121)
    page.until(
        lambda: page.run("return document.getElementById('loss-sites').disabled") is True, "nobody tells any more"
    )


NODES_SEEN = tuple(
    PeerNode(addresses=("10.0.0.2:1",), first_segment=0, stop_segment=9, is_reached=is_reached, reason="")
    for is_reached in (True, False)
)


def test_page_shows_how_sites_are_reached_and_where_this_one_is_seen(page: Page, daemon: FakeDaemon) -> None:
    seen = PublicAddress(address="/ip4/45.33.7.1/tcp/31337", num_tried=3, num_reached=2, is_announced=True)
    peers = daemon.view.peers
    daemon.view.extra = {"public_addresses": (seen,)}
    daemon.view.peers = lambda: [  # type: ignore[method-assign]
        changed(peer, way=way, nodes=nodes)
        for peer, way, nodes in zip(peers(), ("direct", "relay"), (NODES_SEEN, ()), strict=True)
    ]
    page.opened(daemon.url)
    page.run("document.getElementById('more-facts-box').open = true")
    assert {"/ip4/45.33.7.1/tcp/31337", "reached by 2 of 3 that tried, announced"} <= {
        *page.text("more-facts").splitlines()
    }
    sites = page.text("sites")
    assert "directly, data connections, 1 of 2 nodes" in sites and "through a relay" in sites


def test_page_shows_what_each_stage_computes_and_the_cut_that_would_be_faster(page: Page, daemon: FakeDaemon) -> None:
    def shown() -> str:
        row = "[...document.querySelectorAll('#more-facts > *')].find(e => e.textContent.startsWith('Stages compute'))"
        return str(page.run(f"return {row}?.textContent ?? ''"))

    page.opened(daemon.url)
    page.run("document.getElementById('more-facts-box').open = true")
    assert shown() == "Stages compute700 ms / 750 msof an inner step, along the pipeline"
    progress = daemon.view.status().progress

    def change(stages: StageSpeeds | None) -> None:
        extra = {"progress": changed(progress, stages=stages)}
        daemon.change(lambda view: setattr(view, "extra", extra), event="round.committed", round=120)

    change(StageSpeeds(compute_s=(0.5, 1.5), faster_layers=(5, 3), faster_saves=0.234))
    page.until(lambda: "layers_per_stage = [5, 3] would save 23.4 % of a step" in shown(), "the cut")
    change(StageSpeeds(compute_s=(0.5,) * 8 + (1.5,), faster_layers=(), faster_saves=None))
    page.until(lambda: "500 ms to 1.5 s" in shown(), "many are a range")
    change(None)
    page.until(lambda: not shown(), "no pipeline")


def test_site_on_probation_is_told_how_far_it_is_and_what_it_waits_for(page: Page, daemon: FakeDaemon) -> None:
    wait = "2 such sites for 1 place in a round, who took part most often first"
    daemon.view.extra = {"probation": Probation(rounds_done=3, rounds=16), "place_wait": wait}
    page.opened(daemon.url)
    assert f"trains, on probation: 3 of 16 rounds; {wait}" in page.text("sites")


def test_what_is_not_known_is_a_dash_and_never_zero(page: Page, daemon: FakeDaemon) -> None:
    status = daemon.view.status()
    daemon.view.extra = {
        "progress": changed(status.progress, eta_s=None, tokens_per_s=None, round_s=None, gradient_norm=None),
        "losses": changed(status.losses, validation=None),
        "lifetime": changed(status.lifetime, bytes_sent=None, bytes_received=None),
    }
    page.opened(daemon.url)
    figures = page.run("return [...document.querySelectorAll('#facts dd')].map(e => e.firstChild.textContent)")
    assert figures[0] == "-" and figures[1] == "-" and figures[2] == "-" and figures[4] == "-" and figures[6] == "- / -"
    assert "learning rate" not in page.text("now-h")
    under_way = page.run("return [...document.querySelectorAll('#rounds tbody tr')[0].cells].map(e => e.textContent)")
    assert under_way[1] == "under way" and set(under_way[2:13]) == {"-"}


def test_events_are_shown_as_they_come_by_level_and_by_word(page: Page, daemon: FakeDaemon) -> None:
    page.opened(daemon.url)
    daemon.change(lambda view: None, event="peer.lost", level="warning", peer="QmFakeSiteC", reason="<b>silent</b>")
    newest = "return document.querySelector('#events p')?.textContent ?? ''"
    page.until(lambda: "peer.lost" in page.run(newest), "it appears")
    assert "<b>silent</b>" in page.run(newest), "text stays text"
    page.choose("events-level", "warning")
    page.drawn()
    assert set(page.run("return [...document.querySelectorAll('#events strong')].map(e => e.textContent)")) == {
        "peer.lost",
        "round.abandoned",
    }
    page.browser.find_element(By.ID, "events-find").send_keys("silent")
    page.drawn()
    assert page.run("return document.querySelectorAll('#events p').length") == 1


def test_peer_that_vanishes_is_seen_without_reloading(page: Page, daemon: FakeDaemon) -> None:
    page.opened(daemon.url)
    gone = daemon.view.live[0]
    page.run("window.isSamePage = true")
    row = f'tr[data-peer="{gone}"]'
    is_live = f"return document.querySelector('{row}')?.dataset.live"
    assert page.run(is_live) == "true"

    def vanish(view: object) -> None:
        daemon.view.live.remove(gone)
        daemon.view.waiting_for = f"the votes of {NAMES[gone]}"
        daemon.view.alert_codes = ["left_out", "alone"]

    daemon.change(vanish, event="peer.lost", peer=gone)
    page.until(lambda: page.run(is_live) == "false", "the peer is shown as gone")
    assert "dead for 90 s" in page.text("sites")
    page.until(lambda: "Waiting for the votes of" in page.text("waiting"), "the reason for waiting is shown")
    page.until(lambda: "This site waits for beta." in page.text("waits"), "who is waited for is marked")
    assert page.run(f"return document.querySelector('{row} .tag').textContent") == "waited for"
    page.until(lambda: page.text("sites-summary").startswith("2 train, 1 is dead."), "the sum follows")
    assert page.run("return window.isSamePage") is True


def test_a_site_that_catches_up_says_so_in_its_own_row(page: Page, daemon: FakeDaemon) -> None:
    """It said `up to date`."""
    page.opened(daemon.url)
    own = f"return document.querySelector('tr[data-peer=\"{ME}\"]').cells[2].textContent"
    assert page.run(own) == "up to date"
    for number, said in ((117, "117 behind"), (None, "catches up")):

        def catch_up(view: FakeView, number: int | None = number) -> None:
            view.state, view.extra = "catching_up", {"rounds_behind": number, "took_part_last_round": None}

        daemon.change(catch_up, event="recovery.started")
        page.until(lambda said=said: page.run(own) == said, said)  # type: ignore[misc]


def test_new_round_arrives_by_the_event_stream(page: Page, daemon: FakeDaemon) -> None:
    page.opened(daemon.url)

    def commit(view: object) -> None:
        daemon.view.num_rounds += 1

    daemon.change(commit, event="round.committed", round=120)
    page.until(lambda: "to 121 of 122" in page.text("rounds-range"), "the round appears")
    page.until(lambda: "height 121" in page.browser.title, "the title follows")


def test_lost_connection_is_shown_and_heals(page: Page, daemon: FakeDaemon) -> None:
    page.opened(daemon.url)
    page.run("window.isSamePage = true")
    daemon.stop()
    page.until(lambda: page.text("connection") == "connection lost", "the loss is shown")
    assert "Trying again" in page.text("lost")
    daemon.view.num_rounds += 5
    daemon.start()
    page.until(lambda: page.text("connection") == "live", "the connection heals")
    page.until(lambda: "to 125 of 126" in page.text("rounds-range"), "what happened meanwhile is there")
    assert page.run("return document.getElementById('lost').hidden") is True
    assert page.run("return window.isSamePage") is True


def test_an_answer_that_was_lost_is_asked_for_again(page: Page, daemon: FakeDaemon) -> None:
    """As when the network changes under the browser: the stream lives on, one question fails."""
    page.browser.execute_cdp_cmd("Network.enable", {})
    page.browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*v1/alerts/history*"]})
    page.open(daemon.url)
    page.until(lambda: "to 120 of 121" in page.text("rounds-range"), "what was answered is shown")
    assert page.run("return document.body.dataset.loaded") == "false"
    page.browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    page.until_loaded()
    page.browser.get_log("browser")  # of what was blocked


def test_keyboard_reaches_everything_and_names_are_there(page: Page, daemon: FakeDaemon) -> None:
    page.opened(daemon.url)
    body = page.browser.find_element(By.TAG_NAME, "body")
    seen = []
    for _ in range(60):
        body.send_keys(Keys.TAB)
        body = page.browser.switch_to.active_element
        seen.append(body.get_attribute("id") or body.tag_name)
    assert seen[0] == "a", "the first stop skips to the content"
    assert {"theme", "pause", "leave", "join-line", "copy", "loss-chart", "loss-smooth", "site-find"} <= set(seen)
    assert {"sites", "span-choice", "timeline-chart", "older", "events", "bytes-chart"} <= set(seen)


def long_waits(view: FakeView) -> None:
    view.waiting_for = "Waiting for a proposal of QmV3nFQT4Rz4V3nFQT4Rz4V3nFQT4Rz4V3nFQT4Rz4V3nF"
    view.live.clear()


def restarted(view: FakeView) -> None:
    view.state, view.num_rounds, view.waiting_for = "starting", 0, "the outer worker to describe the model"


@pytest.mark.parametrize("change", [long_waits, restarted], ids=lambda change: change.__name__)
def test_page_fits_a_phone_in_every_state(page: Page, daemon: FakeDaemon, change: Callable[[FakeView], None]) -> None:
    change(daemon.view)
    page.size(360, 800)
    page.opened(daemon.url)
    page.run("document.getElementById('show-qr').click()")
    page.until(lambda: page.run("return !!document.querySelector('#qr-box svg')"), "the code is drawn")
    page.run("for (const name of ['token-form', 'leave-sure', 'lost']) document.getElementById(name).hidden = false")
    page.run("document.getElementById('lost').textContent = 'Connection lost: the daemon was silent for too long.'")
    check_page(page)


def test_page_asks_nobody_else_and_allows_nothing_else(page: Page, daemon: FakeDaemon) -> None:
    page.browser.get_log("performance")
    page.opened(daemon.url)
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


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_charts_have_content(page: Page, daemon: FakeDaemon, theme: str) -> None:
    page.opened(daemon.url, theme)
    colours = json.loads(
        page.run(
            "const c = getComputedStyle(document.documentElement); return JSON.stringify(Object.fromEntries("
            "['one', 'two', 'span-compute', 'span-exchange'].map(n => [n, c.getPropertyValue('--' + n).trim()])))"
        )
    )
    for chart, tones in {
        "loss-chart": ("one", "two"),
        "bytes-chart": ("one", "two"),
        "schedule-chart": ("one", "two"),
        "timeline-chart": ("span-compute", "span-exchange"),
        "heat": ("span-compute",),
    }.items():
        part = page.picture(chart)
        for tone in tones:
            found = count_pixels(part, colours[tone])
            assert found > 60, f"{chart} shows {found} pixels of {tone} ({colours[tone]})"


def test_every_file_of_the_page_is_served_and_belongs_to_it() -> None:
    names = set(pages())
    assert {"index.html", "dashboard.js", "dashboard.css", "vendor/uPlot.esm.js", "vendor/uPlot.min.css"} <= names
    text = "".join(page.body.decode() for name, page in pages().items() if not name.startswith("vendor/"))
    assert all(name.rpartition("/")[2] in text for name in names - {"index.html"})
    assert "innerHTML" not in text and "insertAdjacentHTML" not in text and " style=" not in text
    for foreign in ("http://", "https://", "//cdn"):
        assert foreign not in text.replace("http://www.w3.org/2000/svg", "")
