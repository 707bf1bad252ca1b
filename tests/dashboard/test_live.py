"""The dashboard of a real daemon: two real sites with real network and log; only model and workers are left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.dashboard.browser import Page, chromium
from tests.harness.runs import found_run, join_run
from tests.harness.sites import sites

pytestmark = [pytest.mark.browser, pytest.mark.processes]
PATIENCE_S = 90


def test_page_follows_a_real_run_and_notices_a_killed_site(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a")
    with sites(a), chromium(tmp_path / "profile") as browser:
        a.start_without_model()
        a.wait_height(1, PATIENCE_S)
        b = join_run(tmp_path, "b", a)
        with sites(b):
            b.start_without_model()
            page = Page(browser)
            page.open(f"http://127.0.0.1:{a.port}/")
            page.until_loaded()
            page.run("window.isSamePage = true")
            page.until(lambda: "1 live" in page.text("peers-hint"), "b appears")
            joint = re.compile(r"this site, ~|~\w+, this site")
            page.until(lambda: joint.search(page.text("rounds")), "a joint round is shown")
            name = str(b.status()["peer_id"])
            assert page.run(f"return document.querySelector('tr[data-peer=\"{name}\"]').dataset.live") == "true"
            assert re.search(r"\d{1,3} [KM]?i?B", page.text("facts"))
            assert "exchange" in page.run("return document.getElementById('timeline-table').textContent")
            title = page.browser.title
            page.until(lambda: page.browser.title not in ("", title), "the height in the title follows")
            b.kill_tree()
            gone = f"return document.querySelector('tr[data-peer=\"{name}\"]').dataset.live"
            page.until(lambda: page.run(gone) == "false", "the page shows that b is gone")
            assert page.run("return window.isSamePage") is True
            assert page.errors() == []
        assert a.stop() == 0
        page.until(lambda: page.text("connection") == "connection lost", "the page shows that the daemon ended")
