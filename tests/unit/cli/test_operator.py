"""Commands for operators against a served API: tables, JSON, control, completion; the doctor's checks."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click import UsageError
from click.testing import CliRunner

from dilocoxd.answers.site import ProfileStatus
from dilocoxd.api.server import serve_api
from dilocoxd.cli import control
from dilocoxd.cli.client import TOKEN_VARIABLE, ApiClient, client_for
from dilocoxd.cli.doctor import machine as checks_machine, site as checks_site
from dilocoxd.cli.doctor.findings import FINDINGS
from dilocoxd.cli.doctor.machine import FoundTorch
from dilocoxd.cli.exit_codes import EXIT_CODES, epilog
from dilocoxd.cli.main import cli
from dilocoxd.cli.run_dir.members import outside_address
from dilocoxd.config.api import ApiSection
from dilocoxd.config.site import NetworkSection, ParallelSection, SiteConfig
from dilocoxd.errors import PeerError
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.swarm.discovery.identity import load_or_create
from tests.harness.shapes import changed
from tests.harness.synthetic.fake_view import NAMES, PEERS, FakeControl, FakeView

TOKEN = "0123456789abcdef0123"


class Served:
    """The API in a thread of its own."""

    def __init__(self) -> None:
        self.view, self.control = FakeView(30), FakeControl()
        self.url = ""
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    async def _serve(self) -> None:
        async with serve_api(self.view, self.control, ApiSection(port=0), TOKEN) as (host, port):
            self.url = f"http://{host}:{port}"
            self._ready.set()
            await self._over.wait()

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(30)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(30)
        self._loop.close()


@pytest.fixture
def api() -> Iterator[Served]:
    served = Served()
    served.start()
    yield served
    served.stop()


def run(*arguments: str, token: str = TOKEN) -> tuple[int, str]:
    environment = {"COLUMNS": "200", TOKEN_VARIABLE: token}
    done = CliRunner().invoke(cli, list(arguments), standalone_mode=False, env=environment, catch_exceptions=False)
    return int(done.return_value or 0), done.output


def test_tables(api: Served) -> None:
    assert NAMES[PEERS[1]] in run("peers", api.url)[1]
    rounds = run("rounds", "--last", "25", api.url)[1]
    assert "vanished during the exchange" in rounds and "15 s" in rounds
    assert "80.0 MB" in run("snapshots", api.url)[1]
    log = run("log", "show", api.url)[1]
    assert "dropped" in log and f"{NAMES[PEERS[1]]} (" in log, "sites have the names that peers gives them"


def test_members_fit_a_terminal(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each peer id went on in a line of its own."""
    whole = run("members", api.url)[1]
    monkeypatch.setattr("dilocoxd.cli.run_dir.members.width", lambda *, is_wide: None if is_wide else 60)
    narrow = run("members", api.url)[1]
    assert "(with --wide: " in narrow and "peer id" not in narrow.splitlines()[0]
    assert run("members", "--wide", api.url)[1] == whole and PEERS[1] in whole


@pytest.mark.parametrize(
    ("mode", "said"), [("closed", "lets in those that its site.toml lists"), ("open", "whoever finds it takes part")]
)
@pytest.mark.parametrize("command", [["members"], ["authority", "show"]])
def test_run_without_members_says_who_is_let_in(
    api: Served, monkeypatch: pytest.MonkeyPatch, mode: str, said: str, command: list[str]
) -> None:
    """It was "this run asks for no membership", of a closed run, too."""
    api.view.admission = mode
    monkeypatch.setattr(api.view, "members", list)
    monkeypatch.setattr(api.view, "authorities", list)
    shown = run(*command, api.url)[1]
    assert shown.startswith(f"this run is {mode}: ") and said in shown


@pytest.mark.parametrize(
    ("command", "length"), [(["peers"], 2), (["rounds", "--last", "7"], 7), (["snapshots"], 1), (["log", "show"], 20)]
)
def test_json(api: Served, command: list[str], length: int) -> None:
    assert len(json.loads(run(*command, "--json", api.url)[1])) == length


def test_whole_log_over_several_pages(api: Served) -> None:
    api.view.num_rounds = 450
    found = json.loads(run("log", "show", "--last", "0", "--json", api.url)[1])
    assert [row["round"] for row in found] == list(range(450))


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["pause", "--reason", "a move"], ("pause", "a move")),
        (["resume"], ("resume",)),
        (["leave"], ("leave",)),
        (["snapshot"], ("snapshot",)),
        (["log-level", "debug"], ("log-level", "debug")),
        (["peers", "connect", "host:31337"], ("connect", "host:31337")),
        (["peers", "disconnect", "attic"], ("disconnect", "attic")),
        (["adopt", "attic"], ("adopt", "attic")),
    ],
)
def test_control(api: Served, arguments: list[str], asked: tuple[str, ...]) -> None:
    assert run(*arguments, api.url) == (0, f"done: {asked[0]}\n")
    assert api.control.asked == [asked]


def test_ping_says_which_way_how_far_and_how_wide(api: Served) -> None:
    assert run("ping", "beta", api.url)[1].splitlines() == [
        f"site     beta  {PEERS[1]}",
        "reached  through a relay, /ip4/10.0.0.9/tcp/31337/p2p-circuit",
        "latency  12.3 ms (worst 40.0 ms)",
        "from it  2.5 MB/s",
        "to it    not measured: nothing was sent yet",
        "clock    -0.25 s",
    ]
    assert api.control.asked == [("ping", "beta")]
    assert json.loads(run("ping", "beta", "--json", api.url)[1])["is_direct"] is False


STEPS_OF_A_PROFILE = (
    ProfileStatus(state="waiting", steps=2, text="waiting for the next inner step"),
    ProfileStatus(state="recording", steps=2, recorded_steps=1, text="recorded 1 of 2 inner steps"),
    ProfileStatus(state="recording", steps=2, recorded_steps=1, text="recorded 1 of 2 inner steps"),
    ProfileStatus(
        state="written", steps=2, recorded_steps=2, first_step=9, folder="profiles/now-step9",
        files=("rank0.json.gz", "rank1.json.gz"), total_bytes=1500, text="2 inner steps of 2 ranks, 1.5 kB",
    ),
)  # fmt: skip


def test_profile_shows_how_far_it_is_and_where_the_files_lie(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "PROFILE_POLL_S", 0.25)
    api.view.profiles = list(STEPS_OF_A_PROFILE)
    code, text = run("profile", "--steps", "2", api.url)
    assert code == 0 and api.control.asked == [("profile", "2")]
    *told, where, how = text.splitlines()
    assert told == ["waiting for the next inner step", "recorded 1 of 2 inner steps"]
    assert where.startswith("written: RUN_DIR/profiles/now-step9 (rank0.json.gz, rank1.json.gz)") and "perfetto" in how


def test_profile_of_a_run_directory_gives_a_path_that_can_be_opened(api: Served, tmp_path: Path) -> None:
    host, port = api.url.removeprefix("http://").split(":")
    folder = tmp_path / "run"
    run("init", "tiny", "--dir", str(folder), "--host", "127.0.0.1", "--api-port", port)
    assert host == "127.0.0.1"
    api.view.run_id = open_run_dir(folder).load()[0].run_id
    api.view.profiles = [STEPS_OF_A_PROFILE[-1]]
    assert f"written: {folder}/profiles/now-step9 " in run("profile", str(folder))[1]
    found = json.loads(run("profile", "--json", str(folder))[1])
    assert (found["path"], found["total_bytes"]) == (f"{folder}/profiles/now-step9", 1500)


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (ProfileStatus(state="failed", text="rank 1: No space left on device; training goes on"), "rank 1: No space"),
        (ProfileStatus(), "started again meanwhile"),
    ],
)
def test_a_profile_that_fails_says_why(api: Served, end: ProfileStatus, says: str) -> None:
    api.view.profiles = [end]
    with pytest.raises(PeerError, match=f"no profile was written: .*{says}"):
        run("profile", api.url)


def test_refused_and_impossible_profiles(api: Served) -> None:
    api.control.refusal = "a profile is being recorded already"
    with pytest.raises(PeerError, match=r"^a profile is being recorded already$"):
        run("profile", api.url)
    with pytest.raises(UsageError, match="51 is not in the range 1<=x<=50"):
        run("profile", "--steps", "51", api.url)


def test_refusals_are_told_in_the_daemons_words(api: Served) -> None:
    with pytest.raises(PeerError, match=rf"/leave wants a token: give the site's RUN_DIR .* into {TOKEN_VARIABLE}$"):
        run("leave", api.url, token="wrong")
    api.control.refusal = "the site is not paused"
    with pytest.raises(PeerError, match="the site is not paused"):
        run("resume", api.url)


def test_watch_shows_events_and_heals(api: Served) -> None:
    code, text = run("watch", "--once", api.url)
    assert code == 0 and "fake-0123456789abcdef" in text
    code, text = run("watch", "--seconds", "0.5", "127.0.0.1:9")
    assert code == 0 and "connection lost" in text


def test_completion_scripts() -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_DILOCOXD_COMPLETE" in run("completion", shell)[1]
    environment = {**os.environ, "_DILOCOXD_COMPLETE": "bash_complete", "COMP_WORDS": "dilocoxd sna", "COMP_CWORD": "1"}
    code = "import sys; sys.argv = ['dilocoxd']; from dilocoxd.cli.main import cli; cli(prog_name='dilocoxd')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert {line.split(",")[1] for line in done.stdout.splitlines()} == {"snapshot", "snapshots"}


def test_help_names_every_exit_code_and_command() -> None:
    text = run("--help")[1]
    for word in ("doctor", "watch", "pause", "completion", "snapshots"):
        assert word in text
    assert all(str(row.code) in epilog() for row in EXIT_CODES)


def test_run_directory_gives_url_and_token(tmp_path: Path) -> None:
    run("init", "tiny", "--dir", str(tmp_path / "run"), "--host", "127.0.0.1", "--api-port", "1234")
    (tmp_path / "run" / "api.token").write_text("secret-secret-secret\n")
    os.environ.pop(TOKEN_VARIABLE, None)
    client = client_for(str(tmp_path / "run"))
    assert (client.url, client.token) == ("http://127.0.0.1:1234", "secret-secret-secret")


def test_daemon_of_another_site_is_not_taken_for_that_of_a_run_directory(api: Served, tmp_path: Path) -> None:
    """`dilocoxd status DIR` showed whatever run answered at api.port, as if it were that of DIR.

    `rounds`, `members` and all --json still did.
    """
    own = str(tmp_path / "run")
    run("init", "tiny", "--dir", own, "--host", "127.0.0.1", "--api-port", api.url.rpartition(":")[2])
    run_id = open_run_dir(Path(own)).load()[0].run_id
    commands = ["status", "peers", "rounds", "snapshots", "members", "authority show"]
    for command in (*commands, *(f"{one} --json" for one in commands)):
        with pytest.raises(PeerError, match=rf"is of run fake-0123456789abcdef, and {own} of run {run_id}: two sites"):
            run(*command.split(), own)
    with pytest.raises(PeerError, match=rf"does not take the token of {own}: another site's daemon answers there"):
        run("pause", own, token="of-another-site")
    assert api.control.asked == []


def test_daemon_that_does_not_run_is_started_by_the_words_of_the_message(tmp_path: Path) -> None:
    own = str(tmp_path / "run")
    run("init", "tiny", "--dir", own, "--host", "127.0.0.1", "--api-port", "9")
    with pytest.raises(PeerError, match=rf"\(Connection refused\); .*start it with `dilocoxd run {own}`$"):
        run("pause", own)


# --- doctor -----------------------------------------------------------------------------------------------------------


def test_machine_checks_name_only_documented_findings() -> None:
    site = SiteConfig(parallel=ParallelSection(stages=2))
    found = [
        checks_machine.python_finding(),
        checks_machine.clock_finding(),
        checks_machine.disk_finding(Path("/"), None),
        checks_machine.memory_finding(None),
        checks_machine.shm_finding(site),
        checks_machine.files_finding(),
    ]
    assert {finding.check for finding in found} <= set(FINDINGS)
    assert all(finding.text for finding in found)
    assert all(bool(f.remedy) == (f.level in ("warning", "error")) for f in found)


def test_gpu_is_needed_only_where_configured() -> None:
    cuda = SiteConfig(parallel=ParallelSection(stages=2, device="cuda", backend="nccl"))
    torch = FoundTorch(gpus=("A",), nccl="2.28.0")
    assert checks_machine.gpu_finding(torch, None).level == "info"
    assert checks_machine.gpu_finding(torch, cuda).level == "error"
    assert checks_machine.gpu_finding(FoundTorch(gpus=("A", "B"), nccl="2.28.0"), cuda).level == "ok"


def test_torch_that_cannot_be_imported_is_an_error() -> None:
    finding = checks_machine.torch_finding(FoundTorch(error="no module"))
    assert finding.level == "error" and "with pip" in finding.remedy
    assert checks_machine.torch_finding(FoundTorch(version="2.13.0")).level == "ok"


def test_ports_and_bootstrap_addresses() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert checks_site.port_finding("port_network", "127.0.0.1", port, is_running=True).level == "ok"
        assert checks_site.port_finding("port_api", "127.0.0.1", port, is_running=False).level == "error"
        assert checks_site.bootstrap_finding((f"127.0.0.1:{port}",)).level == "ok"
    assert checks_site.port_finding("port_api", "127.0.0.1", port, is_running=False).level == "ok"
    assert checks_site.port_finding("port_network", "127.0.0.1", port, is_running=True).level == "error"
    assert checks_site.bootstrap_finding((f"127.0.0.1:{port}", "127.0.0.1:1")).level == "error"


@pytest.mark.parametrize("is_on", [False, True])
def test_doctor_judges_data_connections_only_where_they_are_on(api: Served, tmp_path: Path, is_on: bool) -> None:
    site = SiteConfig(network=NetworkSection(data_connections=8 if is_on else 0))
    found = {one.check: one for one in checks_site.site_findings(tmp_path, site, ApiClient(api.url, TOKEN))}
    assert (found["data"].text == "network.data_connections is 0") == (not is_on)


def test_sites_that_only_a_relay_leads_to_are_named() -> None:
    first, *others = FakeView().peers()
    assert checks_site.ways_finding([]).level == "info"
    assert checks_site.ways_finding([changed(first, way="direct")]).level == "ok"
    found = checks_site.ways_finding([changed(first, way="relay"), *others])
    assert (found.level, found.text.partition(": ")[2]) == ("warning", first.name)


def test_addresses_that_others_cannot_use_are_warned_of() -> None:
    site = SiteConfig()
    status = FakeView().status()
    assert checks_site.announce_finding(site, changed(status, addresses=("/ip4/127.0.0.1/tcp/1",))).level == "warning"
    assert checks_site.announce_finding(site, changed(status, addresses=("/ip4/203.0.113.7/tcp/1",))).level == "ok"


MAPPED = "/ip4/203.0.113.7/tcp/50175"


def test_port_that_the_router_opened_is_told_and_stands_in_links() -> None:
    own, relayed = "/ip4/192.168.1.2/tcp/31337", f"{MAPPED}/p2p/{FakeView().peers()[0].peer_id}/p2p-circuit"
    assert checks_site.port_map_finding((own, relayed)).level == "warning"
    found = checks_site.port_map_finding((own, f"{MAPPED}/p2p/{FakeView().status().peer_id}"))
    assert (found.level, found.text) == ("ok", f"others are told {MAPPED}")
    status = changed(FakeView().status(), addresses=(own, MAPPED), public_addresses=())
    assert outside_address(status, is_mapped=True) == MAPPED
    assert outside_address(status, is_mapped=False) == "", "an address that nobody reached may be anything"


@pytest.mark.parametrize("is_asked", [False, True])
def test_doctor_looks_for_a_port_of_the_router_only_where_it_was_asked_for(
    api: Served, tmp_path: Path, is_asked: bool
) -> None:
    site = SiteConfig(network=NetworkSection(nat_port_map=is_asked))
    found = {one.check for one in checks_site.site_findings(tmp_path, site, ApiClient(api.url, TOKEN))}
    assert ("port_map" in found) == is_asked


def test_key_that_others_can_read_is_an_error(tmp_path: Path) -> None:
    key = tmp_path / "identity.key"
    assert checks_site.identity_finding(key).level == "error", "a missing one too: nobody makes it at the start"
    load_or_create(key)
    key.chmod(0o644)
    assert checks_site.identity_finding(key).level == "error"
    key.chmod(0o600)
    assert checks_site.identity_finding(key).level == "ok"


def test_doctor_speaks_in_the_units_of_all_other_tables() -> None:
    assert re.fullmatch(r"/dev/shm has [\d.]+ (MB|GB|TB), 67\.1 MB wanted", checks_machine.shm_finding(None).text)
    told = [checks_machine.threads_finding(SiteConfig(parallel=ParallelSection(stages=n))).text for n in (1, 2)]
    assert [text.partition(":")[0] for text in told] == [
        "threads of the one trainer process",
        "threads of each of 2 trainer processes",
    ]


def test_doctor_draws_no_box_in_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "run.toml").touch()
    text = run("doctor", str(tmp_path))[1]
    first = next(line for line in text.splitlines() if line.startswith("config"))
    assert first.split()[1] == "error" and str(tmp_path) in first, "a finding is one line"
    assert text.isascii() and "\n    -> " in text
