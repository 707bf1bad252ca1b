"""`config show|set`, and site.toml under options and variables: what is written, what stays, what is refused."""

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dilocoxd.cli.commands import new_manifest, with_known_texts
from dilocoxd.cli.configuration.command import _shown
from dilocoxd.cli.configuration.editing import with_values
from dilocoxd.cli.configuration.keeping import keep
from dilocoxd.cli.joining.join import joined_run_dir
from dilocoxd.cli.joining.newcomer import Newcomer, Target
from dilocoxd.cli.main import cli
from dilocoxd.cli.overrides import site_tables
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError
from dilocoxd.ids import PeerId
from dilocoxd.store.rundir import create_run_dir, open_run_dir
from tests.harness.published.directory import LINES
from tests.harness.published.prepared_here import prepared_here

PORT = "DILOCOXD_NETWORK__PORT"
BOOTSTRAP = "/ip4/127.0.0.1/tcp/2/p2p/QmNobody"
OWN = """# my notes about this machine
[network]   # the cable modem
port = 31337 # forwarded by the router since May
announce = [
    "192.0.2.1:31337", # the office
]

[paths]
[paths.corpora]
books = "/data/books"

[log]
level = "info"
"""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, standalone_mode=False, catch_exceptions=False)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = create_run_dir(tmp_path / "run", new_manifest("tiny", {"run": {"created": "x"}}), SiteConfig()).path
    (path / "site.toml").write_text(OWN)
    return path


def no_comment(section: str, field: str) -> list[str]:
    return []


def test_set_changes_values_and_leaves_every_other_line(run: Path) -> None:
    invoke("config", "set", str(run), "network.port=31338", "log.level=debug")
    wanted = OWN.replace("port = 31337 #", "port = 31338 #").replace('"info"', '"debug"')
    assert (run / "site.toml").read_text() == wanted


def test_set_keeps_the_name_that_a_field_has_in_the_file(run: Path) -> None:
    (run / "site.toml").write_text(OWN + "\n[parallel]\nstages = 1 # one GPU\n")
    invoke("config", "set", str(run), "parallel.pipeline=2")
    assert "stages = 2 # one GPU\n" in (run / "site.toml").read_text()
    assert open_run_dir(run).load()[1].parallel.pipeline == 2


def test_set_adds_a_field_that_was_not_there_with_its_meaning(run: Path) -> None:
    invoke("config", "set", str(run), "network.host=127.0.0.1", "site.name=attic")
    text = (run / "site.toml").read_text()
    assert tomllib.loads(text)["network"]["host"] == "127.0.0.1" and tomllib.loads(text)["site"]["name"] == "attic"
    assert "# Address the daemon listens on for other sites" in text
    for line in OWN.splitlines():
        assert line in text.splitlines(), "nothing of what was there is lost"


def test_lists_over_several_lines_and_tables_are_replaced_whole(run: Path) -> None:
    invoke("config", "set", str(run), 'network.announce=["192.0.2.7:5"]', 'paths.corpora={"maps" = "/data/maps"}')
    tables = tomllib.loads((run / "site.toml").read_text())
    assert tables["network"]["announce"] == ["192.0.2.7:5"]
    assert tables["paths"]["corpora"] == {"maps": "/data/maps"}
    assert tables["log"] == {"level": "info"}


def test_what_cannot_be_changed_in_place_is_left_alone() -> None:
    text = "network = { port = 1 }\n"
    with pytest.raises(ConfigError, match=r"site.toml: network.port cannot be changed in place.*by hand"):
        with_values(text, {"network": {"port": 2}}, source="site.toml", comment=no_comment)


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("model.seq_len=64", "belongs to run.toml, which is the same.*start --from .*run --set model.seq_len"),
        ("network.prot=1", r"unknown field network.prot; did you mean network.port\?"),
        ("netwrk.port=1", r"unknown section netwrk; did you mean network\?"),
        ("network.port=many", "network.port = 'many' is wrong: give a whole number$"),
        ("workers.step_timeout_s=5s", "step_timeout_s = '5s' is wrong: give a number without a unit .*--explain"),
        ("parallel.stages=99", "99 pipeline stages do not fit a model of"),
    ],
)  # fmt: skip
def test_set_refuses_what_the_daemon_would_refuse(assignment: str, sentence: str, run: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        invoke("config", "set", str(run), assignment)
    assert (run / "site.toml").read_text() == OWN


def test_show_tells_value_and_origin(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PORT, "31400")
    lines = invoke("config", "show", str(run)).output.splitlines()
    assert f"network.port = 31400    # {PORT} (site.toml: 31337)" in lines
    assert 'log.level = "info"    # site.toml' in lines
    assert 'network.host = "0.0.0.0"    # default' in lines
    assert 'run.name = "tiny"    # run.toml' in lines
    changed = invoke("config", "show", str(run), "network", "log.level", "--changed").output
    assert [line.partition(" ")[0] for line in changed.splitlines()] == ["network.port", "network.announce"]
    (row,) = json.loads(invoke("config", "show", str(run), "network.port", "--json").output)
    assert row == {"name": "network.port", "value": 31400, "origin": PORT, "hidden": 31337}
    with pytest.raises(ConfigError, match="there is no section and no field netwrk"):
        invoke("config", "show", str(run), "netwrk")


def test_a_long_value_is_whole_in_a_pipe_and_where_its_field_is_named(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = [f"/ip4/198.51.100.{number}/tcp/31337/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wX" for number in (1, 2)]
    invoke("config", "set", str(run), f"network.bootstrap={json.dumps(addresses)}")
    whole = f"network.bootstrap = {json.dumps(addresses)}    # site.toml"
    assert whole in invoke("config", "show", str(run)).output.splitlines()
    assert _shown(addresses, is_cut=True).endswith("...") and _shown(addresses, is_cut=False) == json.dumps(addresses)
    monkeypatch.setattr("dilocoxd.cli.configuration.command.VALUE_CHARS_MAX", 0)
    assert whole in invoke("config", "show", str(run), "network.bootstrap").output.splitlines()


def test_the_other_name_of_a_field_is_answered_with_its_own(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "site.toml").write_text(OWN + "\n[parallel]\nstages = 2\n")
    assert invoke("config", "show", str(run), "parallel.stages").output == "parallel.pipeline = 2    # site.toml\n"
    assert invoke("config", "show", str(run), "parallel", "--changed").output.startswith("parallel.pipeline = 2 ")
    result = invoke("config", "set", str(run), "parallel.stages=1")
    assert "parallel.stages is another name of parallel.pipeline" in result.stderr
    assert open_run_dir(run).load()[1].parallel.pipeline == 1
    monkeypatch.setenv("DILOCOXD_PARALLEL__STAGES", "2")
    shown = invoke("config", "show", str(run), "parallel.pipeline").output
    assert shown == "parallel.pipeline = 2    # DILOCOXD_PARALLEL__STAGES (site.toml: 1)\n"
    hidden = invoke("config", "set", str(run), "parallel.pipeline=1").stderr
    assert "DILOCOXD_PARALLEL__STAGES is in the environment here, and wins over parallel.pipeline" in hidden


def test_set_says_when_a_variable_hides_the_value(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PORT, "31400")
    result = invoke("config", "set", str(run), "network.port=5")
    assert f"{PORT} is in the environment here, and wins over network.port" in result.stderr
    assert tomllib.loads((run / "site.toml").read_text())["network"]["port"] == 5


def test_variables_hold_for_start_but_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    monkeypatch.setenv(PORT, "31400")
    monkeypatch.setenv("DILOCOXD_PATHS__IDENTITY", "keys.key")
    text = tmp_path / "text.txt"
    text.write_text("".join(LINES), encoding="utf-8")
    where = ("--dir", str(path), "--cache", str(tmp_path / "cache"), "--data", f"numbers={text}")
    with prepared_here():
        done = invoke("start", "tiny", "--no-run", "--host", "127.0.0.1", *where)
    assert "/tcp/31400/p2p/" in done.output
    tables = tomllib.loads((path / "site.toml").read_text())
    assert (tables["network"]["port"], tables["network"]["host"]) == (31337, "127.0.0.1")
    assert tables["paths"]["identity"] == "identity.key"
    assert (path / "keys.key").exists(), "the key is where the daemon will look for it"


def test_joining_again_does_not_write_variables_nor_lose_comments(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DILOCOXD_NETWORK__BOOTSTRAP", f'["{BOOTSTRAP}"]')
    monkeypatch.setenv(PORT, "31400")
    manifest = new_manifest("tiny", {"run": {"created": "x"}})
    seen: list[SiteConfig] = []
    other = BOOTSTRAP.replace("/2/", "/3/")
    key = run.parent / "fresh.key"
    key.write_bytes(b"made before the run directory is known")
    who = Newcomer(Target((other,), None), key, PeerId("QmMe"), None, open_run_dir(run))
    joined_run_dir(manifest, {"network": {"bootstrap": [other]}, "api": {"port": 8081}}, str(run), seen.append, who)
    text = (run / "site.toml").read_text()
    assert seen[0].network.port == 31400, "checked is what will hold"
    tables = tomllib.loads(text)
    assert (tables["network"]["port"], tables["network"]["bootstrap"]) == (31337, [other])
    assert "# forwarded by the router since May" in text
    assert open_run_dir(run).load()[1].api.port == 8081


def test_text_that_moved_is_named_without_forgetting_the_others(run: Path) -> None:
    text = OWN.replace('books = "/data/books"', 'books = "/data/books"\nmaps = "/data/maps"')
    (run / "site.toml").write_text(text)
    given = {"maps": "/disk2/maps"}
    keep(open_run_dir(run), with_known_texts(site_tables({}, {}, given), given, run / "site.toml"))
    assert open_run_dir(run).load()[1].paths.corpora == {"books": "/data/books", "maps": "/disk2/maps"}


def test_first_join_names_only_what_is_given(tmp_path: Path) -> None:
    given = {"maps": "/disk2/maps"}
    tables = site_tables({}, {}, given)
    assert with_known_texts(tables, given, tmp_path / "site.toml") == tables
    assert "corpora" not in with_known_texts(site_tables({}, {}), {}, tmp_path / "site.toml").get("paths", {})


def test_option_that_a_variable_hides_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PORT, "31400")
    with pytest.raises(ConfigError, match=f"network.port = 5 was asked for, but {PORT}=31400 is in the environment"):
        invoke("run", str(run), "--port", "5")
    assert (run / "site.toml").read_text() == OWN


def test_the_other_name_of_a_field_hides_nothing_in_silence(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DILOCOXD_PARALLEL__STAGES", "4")
    with pytest.raises(ConfigError, match=r"parallel\.pipeline = 2 was asked for, but DILOCOXD_PARALLEL__STAGES=4"):
        invoke("run", str(run), "--stages", "2")
