"""What an operator chooses is found, kept on disk, asked for until it is there; and why there is something to choose.

Rule R28."""

import asyncio
from pathlib import Path

import pytest

from dilocoxd.daemon.recovery.adoption import ALERT, read_adopted
from dilocoxd.daemon.recovery.driver import finish_turn_back
from dilocoxd.errors import CommandRefused, ConfigError
from dilocoxd.ids import PeerId
from dilocoxd.machines.recovery.branch import Branch
from dilocoxd.machines.recovery.interface import FinalKept
from dilocoxd.machines.round.inputs import BranchAdopted, Event
from dilocoxd.store.branch_aside import Aside
from dilocoxd.store.log import EntryLog, PayloadSource
from dilocoxd.wire.entry import SignedEntry, entry_hash
from tests.unit.daemon.chain.chain_maker import GENESIS, LENGTHS, RUN, chain, payload_of
from tests.unit.daemon.recovery.adoptions import Alerts, adoption_of, peer

COMMON = chain(2)
FORK = entry_hash(COMMON[-1].entry)
OURS = [*COMMON, *chain(3, start=2, parent=FORK, salt=b"ours")]
THEIRS = [*COMMON, *chain(4, start=2, parent=FORK, salt=b"theirs", tokens=20)]
HEAD = entry_hash(THEIRS[-1].entry)


def log_of(folder: Path, entries: list[SignedEntry], salt: bytes) -> EntryLog:
    folder.mkdir(exist_ok=True)
    log = EntryLog(folder / "log", RUN, GENESIS)
    write(folder, log, entries, salt)
    return log


def write(folder: Path, log: EntryLog, entries: list[SignedEntry], salt: bytes) -> None:
    path = folder / "payload"
    for signed in entries:
        index = signed.entry.round
        path.write_bytes(payload_of(index, salt if index >= len(COMMON) else b""))
        with path.open("rb") as file:
            log.append(signed, PayloadSource(file.fileno(), 0, LENGTHS))


@pytest.mark.parametrize("target", [HEAD.hex(), HEAD.hex()[:8], HEAD.hex()[:16].upper(), "barn"])
def test_a_head_or_a_site_is_found_and_kept_over_a_restart(tmp_path: Path, target: str) -> None:
    log = log_of(tmp_path, OURS, b"ours")
    adoption = adoption_of(tmp_path, log, peer("barn", 6, HEAD), peer("attic", 5, log.hash_at(5)))
    assert "head " + HEAD.hex()[:16] in adoption.adopt(target)
    assert not adoption.is_there
    assert adoption_of(tmp_path, log).place == (6, HEAD)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("ff" * 32, "no known chain head begins with 'ffff"),
        (HEAD.hex()[:7], "known: .*no other site is called"),
        ("shed", "known: .*, and no other site is called 'shed'"),
        ("new", "new has no entries"),
    ],
)
def test_what_nobody_stands_on_is_refused(tmp_path: Path, target: str, said: str) -> None:
    adoption = adoption_of(tmp_path, log_of(tmp_path, OURS, b"ours"), peer("barn", 6, HEAD), peer("new", 0, bytes(32)))
    with pytest.raises(CommandRefused, match=said):
        adoption.adopt(target)
    assert read_adopted(tmp_path / "adopted") is None


def test_false_height_of_a_head_sends_nobody_after_what_never_comes(tmp_path: Path) -> None:
    log, liar = log_of(tmp_path, OURS, b"ours"), peer("liar", 10**6, HEAD)
    adoption = adoption_of(tmp_path, log, peer("barn", 6, HEAD), liar)
    with pytest.raises(CommandRefused, match="2 known heads or heights"):
        adoption.adopt(HEAD.hex())
    own = tuple(signed.entry for signed in OURS[2:])
    adoption.kept(FinalKept(PeerId("barn"), Branch(2, tuple(THEIRS[2:])), own, 1))
    adoption.adopt(HEAD.hex())
    assert adoption.place == (6, HEAD)


def test_own_head_takes_back_what_was_chosen_before(tmp_path: Path) -> None:
    log = log_of(tmp_path, OURS, b"ours")
    adoption = adoption_of(tmp_path, log, peer("barn", 6, HEAD))
    adoption.adopt("barn")
    assert "final" in adoption.adopt(log.hash_at(5).hex())
    assert adoption.is_there and adoption.place == (5, log.hash_at(5))


def test_damaged_file_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "adopted").write_text("5 xyz\n")
    (tmp_path / "adopted").chmod(0o600)
    with pytest.raises(ConfigError, match=r"damaged .*remove it, and run `dilocoxd adopt` again"):
        read_adopted(tmp_path / "adopted")


def test_alert_names_both_heads_and_who_stands_where(tmp_path: Path) -> None:
    log, alerts = log_of(tmp_path, OURS, b"ours"), Alerts()
    rows = [peer("barn", 6, HEAD), peer("attic", 5, log.hash_at(5)), peer("shed", 9, bytes(32))]
    adoption = adoption_of(tmp_path, log, *rows, alerts=alerts)
    own = tuple(signed.entry for signed in OURS[2:])
    adoption.kept(FinalKept(PeerId("barn"), Branch(2, tuple(THEIRS[2:])), own, 1))
    text = alerts.standing[ALERT]
    assert f"ours is {log.hash_at(5).hex()[:16]} at height 5 with 60 tokens since the fork (this site, attic)" in text
    assert f"the other is {HEAD.hex()[:16]} at height 6 with 160 tokens since the fork (barn)" in text
    assert "lacks 1 of our entries that are final (fork at height 2)" in text


def test_branch_that_was_seen_can_be_chosen_when_nobody_stands_at_its_tip_any_more(tmp_path: Path) -> None:
    alerts = Alerts()
    adoption = adoption_of(tmp_path, log_of(tmp_path, OURS, b"ours"), alerts=alerts)
    own = tuple(signed.entry for signed in OURS[2:])
    adoption.kept(FinalKept(PeerId("barn"), Branch(2, tuple(THEIRS[2:])), own, 1))
    adoption.adopt(HEAD.hex())
    assert adoption.place == (6, HEAD) and ALERT in alerts.standing


async def test_recovery_is_asked_for_until_the_chain_is_there(tmp_path: Path) -> None:
    log, alerts = log_of(tmp_path, OURS, b"ours"), Alerts()
    adoption = adoption_of(tmp_path, log, peer("barn", 6, HEAD), peer("gone", 6, HEAD, is_live=False), alerts=alerts)
    told: asyncio.Queue[Event] = asyncio.Queue()
    running = asyncio.create_task(adoption.run(told.put_nowait))
    await asyncio.sleep(0)
    assert told.empty()
    adoption.adopt("barn")
    assert await asyncio.wait_for(told.get(), 60) == BranchAdopted((PeerId("barn"),))
    running.cancel()
    alerts.standing[ALERT] = "two branches"
    adoption.settle()
    assert ALERT in alerts.standing
    there = adoption_of(tmp_path, log_of(tmp_path / "b", THEIRS, b"theirs"), peer("barn", 6, HEAD), alerts=alerts)
    there.settle()
    assert there.is_there and ALERT not in alerts.standing


def test_who_dies_with_the_chosen_branch_whole_stays_on_it(tmp_path: Path) -> None:
    """It is the lighter one: without the operator's word the start would go back."""
    for adopted, kept in ((None, THEIRS), ((5, entry_hash(OURS[-1].entry)), OURS)):
        folder = tmp_path / str(len(kept))
        folder.mkdir()
        log, aside = log_of(folder, THEIRS, b"theirs"), Aside(folder / "aside")
        aside.keep(log, 2)
        log.roll_back(2)
        write(folder, log, OURS[2:], b"ours")
        finish_turn_back(log, aside, folder / "snapshots", lambda choice: None, adopted)
        assert [entry_hash(s.entry) for s in log.entries()][:5] == [entry_hash(s.entry) for s in kept][:5]
