"""Refusals that only a running site, or a link to one, can lead to: each is done as it says, at one site for all."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from dilocoxd.cli.doctor.findings import FINDINGS
from dilocoxd.cli.joining import join, nearby
from dilocoxd.cli.run_dir.members import invited_run
from dilocoxd.cli.run_dir.requests import new_request
from dilocoxd.errors import ConfigError
from dilocoxd.ids import Digest
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.telemetry.alerts import kind_of
from dilocoxd.wire.admission import RevocationTerms
from dilocoxd.wire.join_link import JoinLink, read_link
from tests.harness.running.run_directories import common_options, found_run, free_port
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.remedies.refused.rows import INIT, Row
from tests.remedies.refused.rows_live import LIVE_ROWS
from tests.remedies.refused.test_followed import do
from tests.remedies.test_findings import invoke, set_site

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]
PATIENCE_S: Final = 90
PHASE_S: Final = 1000.0
"""Nobody trains meanwhile."""


def say(name: str, text: str) -> None:
    Path(f"{name}.said").write_text(text.strip())


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("live")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        keys = [invoke("authority", "new", name).output.strip() for name in ("one.key", "two.key")]
        invoke("authority", "new", "three.key")
        settings = (f'admission.authorities=["{keys[0]}", "{keys[1]}"]', "admission.threshold=2")
        a = found_run(folder, "a", *(part for one in settings for part in ("--set", one)))
        for name in ("one.key", "two.key"):
            invoke("authority", "import", "a", name)
        invoke(*INIT.split(), "other")
        Path("model").mkdir()
        set_site(a.run_dir, "log.recording_mib=1")
        with sites(a):
            a.start_without_model(PHASE_S)
            address = wait_until(lambda: a.status().get("join_address"), "an address", PATIENCE_S, a.describe)
            b = joined(folder, str(address))
            with sites(b):
                b.start_without_model(PHASE_S)
                tell_names(a, b)
                yield folder


def joined(folder: Path, address: str) -> SiteProcess:
    """`b`, and the links that the rows speak of; afterwards only the first key is with `a`."""
    shutil.copy("one.key", "a/authority.key")
    invoke("invite", "a", "--uses", "30")
    (request,) = Path().glob("invite-*.json")
    say("invite.json", request.name)
    invoke("authority", "sign", request.name, "two.key")
    good = link_of(invoke("invite", "a", "--signed", request.name).output)
    good = replace(good, address=address)
    other = link_of(invoke("invite", "other").output)
    assert good.invite is not None
    (first, *more) = good.invite.signatures
    forged = replace(good.invite, signatures=(replace(first, signature=bytes(64)), *more))
    for name, link in {
        "a.link": good,
        "other.link": other,
        "moved.link": replace(other, address=address),
        "head.link": replace(good, height=0, head=Digest(bytes(32))),
        "forged.link": replace(good, invite=forged),
    }.items():
        say(name, link.to_text())
    b = SiteProcess("b", folder / "b", free_port())
    invoke("join", good.to_text(), "--no-run", *common_options(b.run_dir, b.port))
    set_site(b.run_dir, "log.recording_mib=0")
    return b


def link_of(told: str) -> JoinLink:
    return read_link(told.split()[-1])


def tell_names(a: SiteProcess, b: SiteProcess) -> None:
    """Ids of both, once `a` knows that `b` is a member."""
    for site in (a, b):
        peer = str(site.says("peer_id"))
        say(f"{site.name}.id", peer)
        say(f"{site.name}.evict", f"evict-{peer[-8:]}.json")
    peer = Path("b.id.said").read_text()
    known = lambda: peer in [one["peer_id"] for one in a.get("/v1/members") or []]  # noqa: E731
    wait_until(known, "b to be a member", PATIENCE_S, a.describe)
    request_against(a)


def request_against(a: SiteProcess) -> None:
    """What one of two authorities signs to evict `a`: at `a` itself the command refuses to."""
    _, manifest, ring = invited_run(a.run_dir)
    peer = Path("a.id.said").read_text()
    (row,) = [one for one in a.get("/v1/members") or [] if one["peer_id"] == peer]
    terms = RevocationTerms(manifest.sha256(), peer, int(row["serial"], 16))
    new_request("evict", terms, ring).save(Path(Path("a.evict.said").read_text()))


def test_what_was_given_is_looked_at_before_anybody_is_asked(live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asked whether to join, and said then that the text is none of the run's."""
    monkeypatch.chdir(live)
    asked: list[str] = []
    monkeypatch.setattr(join, "show_and_ask", lambda manifest, *_, **__: asked.append(manifest.run_id))
    Path("text.txt").write_text("words of somebody's own\n" * 100)
    link = "join @a.link --no-run --host 127.0.0.1 --port 0 --api-port 0 --dir asked"
    with pytest.raises(ConfigError, match="is no text of this run"):
        do(f"{link} --data other=text.txt", monkeypatch)
    assert not asked and not Path("asked").exists()
    do(link, monkeypatch)
    assert len(asked) == 1
    shutil.rmtree("asked")


def test_one_identity_twice_and_an_address_where_nobody_is(live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What whole daemons say of both, and the words of it: another identity, and a current join line."""
    monkeypatch.chdir(live)
    assert "run `dilocoxd identity new RUN_DIR` there, and start it again" in kind_of("identity_twice").remedy
    assert "current join line" in FINDINGS["bootstrap"][1]
    one, twin = (SiteProcess(name, live / name, free_port()) for name in ("one", "twin"))
    invoke("join", Path("a.link.said").read_text(), "--no-run", *common_options(one.run_dir, one.port))
    shutil.copytree(one.run_dir, twin.run_dir)
    set_site(twin.run_dir, f"network.port={free_port()}", f"api.port={twin.port}")
    with sites(one, twin):
        for site in (one, twin):
            site.start_without_model(PHASE_S)
            site.says("peer_id")
        told = lambda: [site for site in (one, twin) if "identity_twice" in str(site.status().get("alerts"))]  # noqa: E731
        wait_until(told, "the alert", PATIENCE_S, one.describe)
        assert twin.stop() == 0
        assert "go on with: dilocoxd run" in invoke("identity", "new", "twin").output, "the link lets more than one in"
        good = open_run_dir(twin.run_dir).load()[1].network.bootstrap
        (twin.run_dir / "peers.json").unlink(missing_ok=True)
        closed = free_port()
        set_site(twin.run_dir, f'network.bootstrap=["127.0.0.1:{closed}"]')
        twin.start_without_model(PHASE_S)
        waits = lambda: f"127.0.0.1 port {closed} is closed" in twin.status().get("waiting_for", "")  # noqa: E731
        wait_until(waits, "what it waits for", PATIENCE_S, twin.describe)
        assert twin.status()["state"] == "joining" and "must not start a second run" in twin.status()["waiting_for"]
        assert twin.stop() == 0
        set_site(twin.run_dir, f"network.bootstrap={json.dumps(list(good))}")  # as `join` with that line does
        twin.start_without_model(PHASE_S)
        assert twin.says("peer_id") != one.says("peer_id")
        wait_until(
            lambda: twin.status().get("state") not in (None, "starting", "joining"), "peers", PATIENCE_S, twin.describe
        )
        assert "identity_twice" not in str(twin.status()["alerts"])


@pytest.mark.parametrize("row", LIVE_ROWS, ids=[f"{row.file}-{row.words}" for row in LIVE_ROWS])
def test_what_a_refusal_of_a_running_site_says_works(row: Row, live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(live)
    monkeypatch.setattr(nearby, "look", lambda listen_s: [])  # nobody tells of a run on this network
    for line in row.before.splitlines():
        do(line, monkeypatch)
    with pytest.raises(ConfigError) as refused:
        do(row.wrong, monkeypatch)
    assert refused.value.exit_code == 78 and row.words in str(refused.value)
    for line in row.right.splitlines():
        do(line, monkeypatch)
    shutil.rmtree("new", ignore_errors=True)
