"""The dashboard of a real daemon: three real sites with real network and log; only model and workers are left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.dashboard.browser import Page, chromium
from tests.dashboard.checks import check_page
from tests.dashboard.pictures import whole_page
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.synthetic.fake_site import HOLD

pytestmark = [pytest.mark.browser, pytest.mark.processes]
PATIENCE_S = 90
LIVE = "return document.querySelector('tr[data-peer=\"{}\"]')?.dataset.live"


def is_live(page: Page, site: str) -> bool | None:
    """What the page says of a site; None: it does not list it."""
    return {"true": True, "false": False}.get(page.run(LIVE.format(site)))


def check_screens(page: Page, folder: Path, state: str) -> None:
    """Every width, light and dark."""
    for width in (360, 768, 1440):
        for theme in ("light", "dark"):
            page.size(width, 1000)
            page.choose_theme(theme)
            page.drawn()
            check_page(page)
            whole_page(page, width).save(folder / f"live-{state}-{width}-{theme}.png", optimize=True)
    page.size(1440, 1000)


def bytes_of_joint_rounds(site: SiteProcess) -> dict[int, int]:
    """What it sent in rounds that all three contributed to, and that were not over when it heard of them."""
    rows = site.rounds()
    return {row["round"]: row["bytes_sent"] for row in rows if len(row["contributors"]) == 3 and row["bytes_sent"]}


LABELS = "return [...document.querySelectorAll('#loss-chart .u-legend .u-label')].map(e => e.textContent)"


def check_losses_of_others(page: Page, site: SiteProcess, others: list[SiteProcess]) -> None:
    """Each other site's own figures are at the entries that name it, and their curves on the page, by name."""
    told = wait_until(lambda: curves(site, others), "what the others tell", PATIENCE_S, site.describe)
    for other in others:
        status, own = other.status(), phase_losses(other)
        contributors = {int(row["round"]): row["contributors"] for row in site.rounds()}
        for _, number, loss in told[status["peer_id"]]:
            (phase,) = (one["phase"] for one in contributors[int(number)] if one["peer"] == status["peer_id"])
            assert loss == pytest.approx(own[phase], abs=1e-6), "millionths travel"
        label = f"inner, {status['name']}"
        page.until(lambda wanted=label: wanted in page.run(LABELS), f"a curve: {label}")


def phase_losses(site: SiteProcess) -> dict[int, float]:
    """What the site itself measured."""
    lines = (site.run_dir / "logs" / "events.jsonl").read_text().splitlines()
    closed = (record for record in map(json.loads, lines) if record["event"] == "phase.closed")
    return {int(record["phase"]): float(record["mean_loss"]) for record in closed}


def curves(site: SiteProcess, others: list[SiteProcess]) -> dict[str, list[list[float]]] | None:
    """Peer to its points, once there are some of all."""
    found = {one["peer_id"]: one["points"] for one in (site.get("/v1/losses") or {"sites": []})["sites"]}
    return found if all(found.get(str(other.status().get("peer_id"))) for other in others) else None


def test_page_follows_a_real_run_a_killed_site_and_a_restart(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a")
    with sites(a), chromium(tmp_path / "profile") as browser:
        a.start_without_model()
        a.wait_height(1, PATIENCE_S)
        b, c = join_run(tmp_path, "b", a), join_run(tmp_path, "c", a)
        with sites(b, c):
            for site in (b, c):
                site.start_without_model()
            for site in (b, c):
                site.wait_height(1, PATIENCE_S)
            page = Page(browser)
            page.size(1440, 1000)
            page.open(f"http://127.0.0.1:{a.port}/")
            page.until_loaded()
            page.run("window.isSamePage = true")
            names = [str(site.status()["peer_id"]) for site in (b, c)]
            page.until(lambda: all(is_live(page, name) for name in names), "both others appear")
            page.until(lambda: "3 of 3 sites train" in page.text("now-h"), "the first line says so")
            shown = "return [...document.querySelectorAll('#rounds tbody tr')].map(e => e.cells[2].textContent)"
            page.until(lambda: any(text.count(",") == 2 for text in page.run(shown)), "a joint round is shown")
            assert "exchange" in page.run("return document.getElementById('timeline-table').textContent")
            check_losses_of_others(page, a, [b, c])
            title = page.browser.title
            page.until(lambda: page.browser.title not in ("", title), "the height in the title follows")
            check_screens(page, tmp_path, "trains")
            c.kill_tree()
            page.until(lambda: is_live(page, names[1]) is False, "the page shows that c is gone")
            page.until(lambda: "1 is dead" in page.text("sites-summary"), "the sum says so")
            check_screens(page, tmp_path, "lost-a-site")
            before = bytes_of_joint_rounds(a)
            assert before
            assert a.stop() == 0
            page.until(lambda: page.text("connection") == "connection lost", "the page shows that the daemon ended")
            a.start_without_model()
            page.until(lambda: page.text("connection") == "live", "the page goes on by itself")
            page.until(lambda: "2 of 3 sites train" in page.text("now-h"), "the run goes on")
            after = {row["round"]: row["bytes_sent"] for row in a.rounds()}
            assert {number: after[number] for number in before} == before, "bytes of the earlier life are there"
            assert page.run("return window.isSamePage") is True
            assert page.errors() == []
            check_catching_up(page, tmp_path, a, c)


def check_catching_up(page: Page, folder: Path, other: SiteProcess, site: SiteProcess) -> None:
    """Its own page, and what others show of it, while a site that lost its log has fetched the run and applies it."""
    (site.run_dir / "log").rename(folder / "log-away")
    (site.run_dir / HOLD).touch()
    site.start_without_model()
    page.until(lambda: "1 catches up" in page.text("sites-summary"), "the others show that it catches up")
    page.open(f"http://127.0.0.1:{site.port}/")
    page.until_loaded()
    page.until(lambda: "Catching up with the run" in page.text("now-h"), "its own first line says so")
    assert "newest round" not in page.text("sites-summary") + page.text("waits"), "it knows of none yet"
    own = f"return document.querySelector('tr[data-peer=\"{site.says('peer_id')}\"]').cells[2].textContent"
    page.until(lambda: page.run(own).endswith(" behind"), "and not that it is up to date")
    check_screens(page, folder, "catches-up")
    (site.run_dir / HOLD).unlink()
    site.wait_height(other.state()["height"], PATIENCE_S)
    page.until(lambda: "3 of 3 sites train" in page.text("now-h"), "it trains along again")
    assert page.errors() == []
