"""The buttons of the dashboard in a real browser, against the real server: what they ask for, and the token."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from dilocoxd.answers.site import Sample
from tests.dashboard.browser import FakeDaemon, Page, chromium

pytestmark = pytest.mark.browser
TOKEN = "0123456789abcdef0123"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield Page(found)


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    made = FakeDaemon(num_rounds=8)
    made.start()
    yield made
    made.stop()


def give_token(page: Page, token: str = TOKEN) -> None:
    page.until(lambda: page.run("return !document.getElementById('token-form').hidden"), "the token is asked for")
    page.browser.find_element(By.ID, "token").send_keys(token, Keys.ENTER)


def test_token_is_asked_for_once_and_then_every_button_acts(page: Page, daemon: FakeDaemon) -> None:
    page.opened(daemon.url)
    page.run("sessionStorage.clear()")
    page.click("pause")
    assert not page.text("token-wrong"), "none was given yet"
    for wrong in ("wrong", "r\u00e4tsel \u20ac"):  # no header can carry the second: every later request was refused
        give_token(page, wrong)
        page.until(lambda: "not its token" in page.text("token-wrong"), "a wrong token is told")
        assert "wants its token" in page.text("done")
    give_token(page)
    page.until(lambda: page.text("done") == "done: pause", "the daemon's sentence is shown")
    page.click("snapshot")
    page.until(lambda: page.text("done") == "done: snapshot", "no token is asked for again")
    asked = [("pause", "asked for on the dashboard"), ("snapshot",)]
    assert daemon.control.asked == asked
    assert page.run("return localStorage.length <= 1 && !document.cookie"), "the token is kept for this tab alone"


def test_leave_is_asked_twice_and_can_be_taken_back(page: Page, daemon: FakeDaemon) -> None:
    page.opened(daemon.url)
    page.run(f"sessionStorage.setItem('dilocoxd-token', '{TOKEN}')")
    page.click("leave")
    assert daemon.control.asked == []
    page.click("leave-no")
    assert page.run("return document.activeElement.id") == "leave"
    page.click("leave")
    page.click("leave-yes")
    page.until(lambda: page.text("done") == "done: leave", "the daemon is told")
    assert daemon.control.asked == [("leave",)]


def test_a_text_of_the_model_is_asked_for_and_shown_on_a_phone(page: Page, daemon: FakeDaemon) -> None:
    written = Sample(state="done", round=1200, prompt="A cat ", written="is a small animal.\n" + "w" * 300, took_s=4.0)
    page.size(360, 800)
    page.opened(daemon.url)
    page.run(f"sessionStorage.setItem('dilocoxd-token', '{TOKEN}')")
    assert page.run("return document.getElementById('sample-text').hidden") is True
    running = Sample(state="running", text="the model of round 1200 writes")
    daemon.view.samples = [running, written]
    page.run("document.getElementById('sample-prompt').value = 'A cat '")
    page.click("sample")
    page.until(lambda: page.text("sample-state") == running.text, "it is said that the model writes")
    page.until(lambda: page.run("return !document.getElementById('sample-text').hidden"), "the text is shown")
    assert daemon.control.asked == [("sample", "A cat ")]
    assert page.text("sample-words").startswith("A cat is a small animal.\nwww")
    assert page.text("sample-round").startswith("Round 1,200, ")
    assert page.run("return document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out at 360 px"
    page.size(1400, 1000)


def test_paused_site_offers_to_resume_and_a_refusal_is_told(page: Page, daemon: FakeDaemon) -> None:
    daemon.view.state = "paused"
    page.opened(daemon.url)
    page.run(f"sessionStorage.setItem('dilocoxd-token', '{TOKEN}')")
    assert page.run("return document.getElementById('pause').hidden") is True
    assert page.text("now-h").startswith("Paused, round 8")
    daemon.control.refusal = "the site is not paused"
    page.click("resume")
    page.until(lambda: page.text("done") == "Not done: the site is not paused", "the refusal is shown")
    page.browser.get_log("browser")  # the 409


def test_join_line_can_be_copied_and_seen_as_a_code(page: Page, daemon: FakeDaemon) -> None:
    page.opened(daemon.url)
    line = page.run("return document.getElementById('join-line').value")
    assert line == "dilocoxd join /ip4/10.0.0.1/tcp/31337/p2p/QmFakeSiteA"
    permissions = {"permissions": ["clipboardReadWrite"], "origin": daemon.url.rstrip("/")}
    page.browser.execute_cdp_cmd("Browser.grantPermissions", permissions)
    page.click("copy")
    page.until(lambda: page.text("done") == "The join line is copied.", "it is copied")
    assert page.run("return navigator.clipboard.readText()") == line
    page.click("show-qr")
    page.until(
        lambda: page.run("return document.querySelectorAll('#qr-box svg path').length") == 2, "the code is drawn"
    )
    # Finder patterns stand in three corners: seven dark modules, four from the edge.
    assert "M4 4h7v1h-7z" in page.run("return document.querySelector('#qr-box .dark').getAttribute('d')")
    assert line in page.run("return document.querySelector('#qr-box svg').getAttribute('aria-label')")


def test_where_an_invite_is_needed_the_page_says_how_one_is_made(page: Page, daemon: FakeDaemon) -> None:
    daemon.view.admission = "invite"
    page.opened(daemon.url)
    line = "return document.getElementById('join-line').value"
    page.until(lambda: page.run(line) == "dilocoxd invite /run", "the command is that of this run directory")
    assert page.text("join-what") == "On this site's machine, a link for another machine is made with"
    assert page.run("return document.getElementById('show-qr').hidden"), "another machine can do nothing with it"


def test_configuration_and_snapshots_are_shown_when_opened(page: Page, daemon: FakeDaemon) -> None:
    page.opened(daemon.url)
    assert page.run("return document.getElementById('config').childElementCount") == 0
    page.run("document.getElementById('config-box').open = true")
    page.until(lambda: "1 snapshots" in page.text("config"), "they are there")
    assert "/run" in page.text("config")
    assert [m for m in page.errors() if "401" not in m and "409" not in m] == []
