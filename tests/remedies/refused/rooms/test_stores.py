"""What a disk, the daemon and its API refuse beside configuration: broken, refused in these words, done as they say."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from dilocoxd.api import endpoints
from dilocoxd.api.guard import RequestGuard
from dilocoxd.api.settings import ApiSettings
from dilocoxd.config.api import ApiSection
from dilocoxd.daemon.chain.promise_file import PromiseFile
from dilocoxd.daemon.recovery.snapshot_fetch import SnapshotDownload
from dilocoxd.daemon.sampling import Sampler
from dilocoxd.daemon.site.record import FILE_NAME, load_record, save_record
from dilocoxd.daemon.workers.machine_files import LocalFiles
from dilocoxd.ids import Attempt, Digest, RoundIndex
from dilocoxd.machines.phase.settings import SiteRecord
from dilocoxd.store.audits import write_votes
from dilocoxd.store.branch_aside import Aside
from dilocoxd.store.durable import write_file
from dilocoxd.store.log import SUFFIX, EntryLog, PayloadSource
from dilocoxd.store.snapshots import ANCHOR_NAME, list_rounds, read_index, verify
from dilocoxd.telemetry.events import EventLog
from dilocoxd.trainer.tokens.folders import reading
from dilocoxd.wire.clip_record import NUMBER_BYTES
from dilocoxd.wire.entry import SignedEntry, SignedVote, entry_hash, genesis_hash
from tests.harness.outer_worker.run_on_disk import make_run
from tests.remedies.refused.rooms.told import asked, commanded, full, stored
from tests.unit.daemon.recovery.adoptions import adoption_of, peer
from tests.unit.daemon.recovery.test_adoption import HEAD, OURS, log_of
from tests.unit.daemon.test_visits import visits
from tests.unit.trained.test_evidence import PEERS, SIGNED, made as false_sum

TOKEN: Final = "t" * 40


def test_a_disk_that_is_full_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    with stored("store/durable.py", "check the disk and its permissions"):
        write_file(path, b"some")
    path.parent.mkdir()
    write_file(path, b"some")
    with full(2), stored("store/durable.py", "free space there, nothing was changed"):
        write_file(path, b"more")
    assert path.read_bytes() == b"some"
    write_file(path, b"more")
    assert path.read_bytes() == b"more"


def test_a_record_of_the_site_that_is_restored(tmp_path: Path) -> None:
    path, record = tmp_path / FILE_NAME, SiteRecord()
    save_record(tmp_path, record)
    good = path.read_bytes()
    path.write_text("no JSON")
    with stored("daemon/site/record.py", "cannot be read: VALUE; restore the file or start a new run"):
        load_record(tmp_path)
    path.write_text("{}")
    with stored("daemon/site/record.py", "does not have the fields VALUE; restore the file or start a new run"):
        load_record(tmp_path)
    path.write_text(json.dumps(json.loads(good) | {"phases_reserved": "many"}))
    with stored("daemon/site/record.py", "not a phase number; restore the file or start a new run"):
        load_record(tmp_path)
    path.write_bytes(good)
    assert load_record(tmp_path) == record


async def test_promises_that_are_damaged(tmp_path: Path) -> None:
    nothing: Any = None
    (tmp_path / "promise").write_bytes(b"\xc1garbage")
    with stored("daemon/chain/promise_file.py", "remove it if no other site is in the middle of a round"):
        await PromiseFile(tmp_path).load(-1, nothing)
    (tmp_path / "promise").unlink()
    assert await PromiseFile(tmp_path).load(-1, nothing) is None
    (tmp_path / "reverts").write_bytes(b"damaged")
    with stored("daemon/chain/promise_file.py", "remove it, the others tell it again"):
        await PromiseFile(tmp_path).load_reverts()
    (tmp_path / "reverts").unlink()
    assert await PromiseFile(tmp_path).load_reverts() == ()


def test_a_place_of_events_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    with stored("telemetry/events.py", "check the folder and its owner"):
        EventLog(tmp_path / "logs" / "events.jsonl")
    (tmp_path / "logs").unlink()
    EventLog(tmp_path / "logs" / "events.jsonl").close()


def test_a_text_whose_mount_is_away(tmp_path: Path) -> None:
    def read() -> str:
        with reading(tmp_path / "mount" / "text", "convert it"):
            return (tmp_path / "mount" / "text").read_text()

    with stored("trainer/tokens/folders.py", "see that its disk or mount answers, then"):
        read()
    (tmp_path / "mount").mkdir()
    (tmp_path / "mount" / "text").write_text("words")
    assert read() == "words"


def test_other_sites_by_their_names() -> None:
    people = visits(alice="attic", bob="garage", carol="garage")
    with commanded("daemon/peers/visits.py", "is this site itself; name another one"):
        people.peer_called("home")
    assert people.peer_called("attic")
    with commanded("daemon/peers/visits.py", "are called VALUE: say which of"):
        people.peer_called("garage")
    assert people.peer_called("garage~Wjhx5N")


def test_a_branch_that_is_named(tmp_path: Path) -> None:
    adoption = adoption_of(tmp_path, log_of(tmp_path, OURS, b"ours"), peer("barn", 6, HEAD), peer("new", 0, bytes(32)))
    with commanded("daemon/recovery/adoption.py", "so there is no branch to adopt; name another site"):
        adoption.adopt("new")
    several = adoption_of(
        tmp_path, log_of(tmp_path / "log", OURS, b"ours"), peer("barn", 6, HEAD), peer("liar", 9, HEAD)
    )
    with commanded("daemon/recovery/adoption.py", "give more digits, or name a site"):
        several.adopt(HEAD.hex())
    several.adopt("barn")
    adoption.adopt("barn")


async def request_of(guard: RequestGuard, method: str, **headers: str) -> web.StreamResponse:
    async def done(request: web.Request) -> web.StreamResponse:
        return web.Response(text="done")

    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return await guard.middleware(make_mocked_request(method, "/v1/status", headers=given), done)


async def test_names_and_tokens_of_requests() -> None:
    def guard_of(**fields: object) -> RequestGuard:
        return RequestGuard(ApiSettings(section=ApiSection.model_validate(fields), token=TOKEN))

    with asked("api/guard.py", "use its IP address, or add the name to api.names in"):
        await request_of(guard_of(), "GET", Host="gpu.example")
    await request_of(guard_of(), "GET", Host="127.0.0.1")
    await request_of(guard_of(names=["gpu.example"]), "GET", Host="gpu.example")
    with asked("api/guard.py", "send the header 'Authorization: Bearer TOKEN'"):
        await request_of(guard_of(), "POST", Host="127.0.0.1")
    await request_of(guard_of(), "POST", Host="127.0.0.1", Authorization=f"Bearer {TOKEN}")


def test_a_number_in_an_address() -> None:
    with asked("api/endpoints.py", "give a whole number from"):
        endpoints.LIMIT.integer(make_mocked_request("GET", "/v1/rounds?limit=some"))
    assert endpoints.LIMIT.integer(make_mocked_request("GET", "/v1/rounds?limit=3")) == 3


async def test_snapshots_that_are_damaged_or_not_there(tmp_path: Path) -> None:
    run = make_run(tmp_path, rounds=1, snapshots_at=(0, 1)).run_dir
    (first, second), sampler = (run.snapshots / "0", run.snapshots / "1"), Sampler(run, has_own_loop=False)
    values = (second / ANCHOR_NAME).read_bytes()
    (second / ANCHOR_NAME).unlink()
    with stored("store/snapshots.py", "cannot be read: VALUE; use another snapshot"):
        verify(second)
    verify(first)
    (second / ANCHOR_NAME).write_bytes(bytes(len(values)))
    with stored("store/snapshots.py", "is damaged in chunk VALUE (sha256 differs); delete the snapshot"):
        verify(second)
    (second / ANCHOR_NAME).write_bytes(values[:-1])
    with stored("store/snapshots.py", "bytes instead of VALUE; delete the snapshot"):
        verify(second)
    shutil.rmtree(second)
    assert list_rounds(run.snapshots) == [0]
    first.rename(tmp_path / "kept")
    with commanded("daemon/sampling.py", "wait for the first one, or write one"):
        await sampler.ask("some")
    (tmp_path / "kept").rename(first)
    assert "round 0 writes" in await sampler.ask("some")


def test_a_branch_that_is_put_back_without_all_of_a_snapshot(tmp_path: Path) -> None:
    made = make_run(tmp_path, rounds=2, snapshots_at=(1, 2))
    run, aside = made.run_dir, Aside(tmp_path / "aside")
    log = EntryLog(run.log, made.manifest.run_id, genesis_hash(made.manifest.run_id, made.manifest.sha256()))
    aside.leave(log, 1, [run.snapshots / "2"])
    shutil.rmtree(run.snapshots / "2")
    kept = tmp_path / "aside" / "2"
    (kept / ANCHOR_NAME).unlink()
    with stored("store/snapshots.py", "is not complete (VALUE); delete the snapshot"):
        aside.put_back(log, run.snapshots)
    shutil.rmtree(kept)
    aside.put_back(log, run.snapshots)
    assert (log.height, list_rounds(run.snapshots)) == (2, [1])


async def test_files_of_snapshots_on_each_machine(tmp_path: Path) -> None:
    files = LocalFiles()
    (tmp_path / "cut").write_bytes(b"some")
    (tmp_path / "whole").write_bytes(b"some bytes")
    with stored("daemon/workers/machine_files.py", "is too short; use another snapshot"):
        await files.read(tmp_path / "cut", 2, 9)
    assert await files.read(tmp_path / "whole", 2, 9) == b"me byte"


async def test_a_download_without_a_disk(tmp_path: Path) -> None:
    index = read_index(make_run(tmp_path, rounds=0, snapshots_at=(0,)).run_dir.snapshots / "0")
    nobody: Any = None
    root = tmp_path / "mount" / "snapshots"
    (tmp_path / "mount").write_text("it is away")
    with stored("store/durable.py", "check the disk and its permissions", "daemon/recovery/snapshot_fetch.py"):
        await SnapshotDownload(nobody, index, root).open()
    (tmp_path / "mount").unlink()
    (tmp_path / "mount").mkdir()
    download = SnapshotDownload(nobody, index, root)
    assert await download.open() == frozenset() and download.partial.is_dir()
    download.close()


def test_evidence_beside_a_log_without_its_results(tmp_path: Path) -> None:
    """What two sites offered is weighed by the results of the rounds before, which retention drops."""
    case = false_sum(tmp_path)
    plan, below = case.plan, case.case.entry
    results = [bytes([number]) * (plan.record_bytes + 8) for number in range(len(plan.segments))]
    below = replace(below, result_hashes=tuple(Digest(hashlib.sha256(one).digest()) for one in results))
    vote = SignedVote(PEERS[0], Attempt(0), 0, SIGNED)
    signed, lengths = SignedEntry(below, (SIGNED,) * 2, (vote,)), tuple(map(len, results))
    for name in ("dropped", "damaged", "whole"):
        log = EntryLog(tmp_path / name, below.run_id, below.parent)
        with (tmp_path / "payload").open("w+b") as file:
            file.write(b"".join(results))
            file.flush()
            log.append(signed, PayloadSource(file.fileno(), 0, lengths))
        if name == "dropped":
            log.drop_payloads(1)
    path, segment = tmp_path / "damaged" / f"{0:012d}{SUFFIX}", case.case.segment
    data = path.read_bytes()
    path.write_bytes(data.replace(results[segment], results[segment][::-1][:-1] + b"x"))
    false = (*below.result_hashes[:segment], Digest(b"l" * 32), *below.result_hashes[segment + 1 :])
    case.write(
        entry=replace(below, round=RoundIndex(1), parent=entry_hash(below), result_hashes=false),
        recent=results[segment][-plan.record_bytes :][:NUMBER_BYTES],
    )
    write_votes(case.folder, tuple(SignedVote(peer, Attempt(0), 0, SIGNED) for peer in PEERS[:2]))
    case.log = tmp_path / "dropped"
    with stored("trained/proof/evidence.py", "was dropped by retention; use a log that has it"):
        case.check()
    case.log = tmp_path / "damaged"
    with stored("trained/proof/evidence.py", "VALUE; use another log"):
        case.check()
    case.log = tmp_path / "whole"
    assert case.check().is_proved
