"""What a disk, the daemon and its API refuse beside configuration: broken, refused in these words, done as they say."""

import json
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from dilocoxd.api import endpoints
from dilocoxd.api.guard import RequestGuard
from dilocoxd.api.settings import ApiSettings
from dilocoxd.config.api import ApiSection
from dilocoxd.daemon.chain.promise_file import PromiseFile
from dilocoxd.daemon.sampling import Sampler
from dilocoxd.daemon.site.record import FILE_NAME, load_record, save_record
from dilocoxd.machines.phase.settings import SiteRecord
from dilocoxd.store.durable import write_file
from dilocoxd.store.snapshots import ANCHOR_NAME, list_rounds, verify
from dilocoxd.telemetry.events import EventLog
from dilocoxd.trainer.tokens.folders import reading
from tests.harness.outer_worker.run_on_disk import make_run
from tests.remedies.refused.rooms.told import asked, commanded, stored
from tests.unit.daemon.recovery.adoptions import adoption_of, peer
from tests.unit.daemon.recovery.test_adoption import HEAD, OURS, log_of
from tests.unit.daemon.test_visits import visits

TOKEN: Final = "t" * 40


@contextmanager
def full(size: int) -> Iterator[None]:
    """No file may become larger, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


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
