"""Making run directories: what `start` and `init` write and print, and what `join` refuses before it calls anybody."""

import json
import re
import shlex
import stat
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from dilocoxd.answers.status import PublicAddress
from dilocoxd.cli.commands import announce_run, make_run, new_manifest
from dilocoxd.cli.corpus import unnamed_text
from dilocoxd.cli.joining.join import joined_run_dir
from dilocoxd.cli.joining.newcomer import Newcomer, Target
from dilocoxd.cli.main import cli
from dilocoxd.cli.overrides import Sections
from dilocoxd.cli.run_dir.admission import invite_of, keyring
from dilocoxd.cli.run_dir.requests import load_request
from dilocoxd.config.loading import validated
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission import certificates
from dilocoxd.machines.admission.certificates import revoked
from dilocoxd.store.admission import write_authorities
from dilocoxd.store.rundir import RunDir, create_run_dir, open_run_dir
from dilocoxd.swarm.discovery.identity import create, load
from dilocoxd.wire.admission import RevocationTerms
from dilocoxd.wire.authorities import AuthorityTerms, change_hash
from dilocoxd.wire.codec import encode_struct
from dilocoxd.wire.join_link import read_link
from tests.harness.shapes import changed
from tests.unit.cli.test_operator import Served

ADDRESS = "/ip4/127.0.0.1/tcp/1/p2p/QmNobody"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, standalone_mode=False, catch_exceptions=False)


def site(**network: Any) -> SiteConfig:
    return validated(SiteConfig, {"network": network}, source="test")


def test_init_makes_a_run_directory_and_prints_the_line_for_others(tmp_path: Path) -> None:
    path = tmp_path / "run"
    done = invoke("init", "tiny", "--dir", str(path), "--host", "127.0.0.1", "--port", "0", "--set", "outer.lr=0.5")
    run_dir = open_run_dir(path)
    manifest, made = run_dir.load()
    assert manifest.outer.lr == 0.5
    assert manifest.run.created
    identity = run_dir.identity(made)
    assert stat.S_IMODE(identity.stat().st_mode) == 0o600
    wanted = f"dilocoxd join /ip4/127.0.0.1/tcp/{made.network.port}/p2p/{load(identity).peer_id}"
    assert wanted in done.output
    assert manifest.run_id in done.output
    assert "127.0.0.1, means this machine alone: sites elsewhere cannot follow it" in done.stderr
    assert "sites elsewhere" in invoke("invite", str(path)).stderr


def test_run_toml_of_the_operator_is_a_target_too(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(new_manifest("tiny", {"strategy": {"inner_steps": 3}, "run": {"created": "x"}}).to_toml())
    invoke("init", str(own), "--dir", str(tmp_path / "run"))
    assert open_run_dir(tmp_path / "run").load()[0].strategy.inner_steps == 3


def test_warning_of_the_manifest_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = new_manifest("tiny", {"outer": {"lr": 3.0}})
    announce_run(make_run(manifest, site(), str(tmp_path / "run")))
    assert re.search(r"warning: outer\.lr = 3\.0 .* stay below", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("options", "said", "line"),
    [
        ((), "", ""),
        (
            ("cluster.outer_parts=2", "cluster.host=10.0.0.10"),
            "for nodes: 2 outer parts; there",
            "10.0.0.10 {key} --parts 2",
        ),
        (
            (
                "cluster.stages=1",
                "parallel.pipeline=2",
                "cluster.host=fd00::a",
                "cluster.port=999",
                "cluster.key_file=my key",
            ),
            "for nodes: 1 pipeline stage; there",
            "[fd00::a]:999 --key 'my key' --stages 1",
        ),
        (
            ("cluster.outer_parts=1", "cluster.host=0.0.0.0"),
            "for nodes: 1 outer part; there",
            "HEAD {key} --parts 1",
        ),
    ],
)
def test_line_of_a_node_is_told_with_the_key_that_it_needs(
    options: tuple[str, ...], said: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    sets = [part for option in options for part in ("--set", option)]
    done = invoke("init", "tiny", "--dir", str(tmp_path / "run"), *sets)
    typed = [text.strip() for text in done.stdout.splitlines() if text.strip().startswith("dilocoxd node ")]
    assert typed == ([f"dilocoxd node {line.format(key='--key node.key')}"] if line else [])
    assert said in done.stdout and "cluster.host" not in done.stderr
    if typed:
        assert f"a copy of {tmp_path / 'run'}/" in done.stdout
        command = cli.get_command(click.Context(cli), "node")
        assert command is not None
        command.make_context("node", shlex.split(typed[0])[2:])


def test_site_that_no_node_can_come_to_is_told_so(tmp_path: Path) -> None:
    """The default of cluster.host is this machine's own."""
    done = invoke("init", "tiny", "--dir", str(tmp_path / "run"), "--set", "cluster.outer_parts=1")
    assert "cluster.host = 127.0.0.1 means this machine alone: no other machine can be a node" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["join", "10.0.0"], "write it as 203.0.113.7, host.example:31337 or"),
        (["join", "/ip4/10.0.0.1/udp/1"], "is not TCP"),
        (["join", ADDRESS, "--set", "outer.lr=1"], "belongs to the run, which is fixed already"),
        (["start", "tinny"], "there is no preset and no file 'tinny'; use one of demo, small, tiny"),
        (["start", "tiny", "--set", "network.prot=1"], r"unknown field network.prot; did you mean network.port\?"),
        (["start", "tiny", "--port", "99999"], "network.port = 99999 is wrong: give a value of at most 65535"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_made(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=sentence):
        invoke(*arguments)
    assert list(tmp_path.iterdir()) == []


def unchecked(site: SiteConfig) -> None:
    """In place of a look at this machine's ports."""


def test_joining_again_keeps_the_directory_and_options_win(tmp_path: Path) -> None:
    manifest = new_manifest("tiny", {})
    path = str(tmp_path / "run")
    key = create(tmp_path / "identity.key")
    who = Newcomer(Target((ADDRESS,), None), key.path, key.peer_id, None, None)
    first = joined_run_dir(manifest, {"network": {"bootstrap": [ADDRESS], "port": 5}}, path, unchecked, who)
    peer = load(first.identity(first.load()[1])).peer_id
    other = "/ip4/127.0.0.1/tcp/2/p2p/QmOther"
    again: Sections = {"network": {"bootstrap": [other], "port": 6}, "api": {"port": 8081}}
    second = joined_run_dir(manifest, again, path, unchecked, who)
    _, kept = second.load()
    assert kept.network.bootstrap == (other, ADDRESS)
    assert (kept.network.port, kept.api.port) == (6, 8081), "what is typed counts, and is kept"
    third = joined_run_dir(manifest, {"network": {"bootstrap": [other]}}, path, unchecked, who)
    assert third.load()[1] == kept, "what is not typed stays"
    assert load(second.identity(kept)).peer_id == peer
    with pytest.raises(ConfigError, match="give --dir another directory"):
        joined_run_dir(new_manifest("tiny", {"seeds": {"data": 5}}), {}, path, unchecked, who)


def test_folder_with_other_files_is_not_made_a_run_directory(tmp_path: Path) -> None:
    folder = tmp_path / "my-data"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    for arguments in (["init", "tiny"], ["start", "tiny", "--no-run"], ["join", ADDRESS, "--no-run"]):
        with pytest.raises(
            ConfigError, match=r"my-data: is no run directory, and has other files in it \(thesis.txt\)"
        ):
            invoke(*arguments, "--dir", str(folder))
    assert [entry.name for entry in folder.iterdir()] == ["thesis.txt"]


def test_start_that_was_cut_short_is_done_again_in_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "logs").mkdir(parents=True)
    (folder / "site.toml").write_text("")
    invoke("init", "tiny", "--dir", str(folder))
    assert open_run_dir(folder).load()[0].run.name == "tiny"


def test_what_no_start_has_left_is_not_removed(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    (folder / "snapshots" / "0").mkdir(parents=True)
    (folder / "checkpoint").write_text("of another program")
    (folder / "snapshots" / "0" / "mine").write_text("mine")
    invoke("init", "tiny", "--dir", str(folder))
    assert (folder / "checkpoint").read_text() == "of another program"
    assert (folder / "snapshots" / "0" / "mine").exists()
    (folder / "run.toml").unlink()
    (folder / "tokenizer").mkdir()
    (folder / "log" / "000000000000.entry").write_text("somebody trained here")
    with pytest.raises(ConfigError, match=r"has other files in it \(tokenizer\)"):
        invoke("init", "tiny", "--dir", str(folder))


def test_two_that_make_one_directory_do_not_meet(tmp_path: Path) -> None:
    manifest, folder = new_manifest("tiny", {}), tmp_path / "run"

    def second(made: RunDir) -> None:
        with pytest.raises(ConfigError, match="holds this directory"):
            make_run(manifest, site(), str(made.path))

    create_run_dir(folder, manifest, site(), second)
    with pytest.raises(ConfigError, match="holds a run already"):
        make_run(manifest, site(), str(folder))


def test_link_is_made_anew_when_its_invite_was_closed(tmp_path: Path) -> None:
    invoke("init", "tiny", "--dir", str(tmp_path / "run"), "--host", "127.0.0.1", "--port", "0")
    run_dir = open_run_dir(tmp_path / "run")
    manifest, _ = run_dir.load()
    before = invite_of(run_dir)
    assert before is not None
    ring = keyring(run_dir, manifest)
    terms = RevocationTerms(manifest.sha256(), PeerId("QmGone"), before.serial)
    closed = encode_struct(revoked(terms, ring.authorities, ring.keys)).hex()
    run_dir.members_json.write_text(json.dumps({"members": [], "revocations": [closed]}))
    assert invite_of(run_dir) is None
    announce_run(run_dir)
    after = invite_of(run_dir)
    assert after is not None and after.serial != before.serial


@pytest.mark.parametrize("is_announced", [True, False])
def test_link_carries_the_public_address_that_peers_confirmed(tmp_path: Path, is_announced: bool) -> None:
    served = Served()
    served.start()
    try:
        port = served.url.rpartition(":")[2]
        invoke("init", "tiny", "--dir", str(tmp_path / "run"), "--host", "127.0.0.1", "--api-port", port)
        seen = PublicAddress(address="/ip4/45.33.7.1/tcp/31337", num_tried=2, num_reached=2, is_announced=is_announced)
        status, run_id = served.view.status, open_run_dir(tmp_path / "run").load()[0].run_id
        served.view.status = lambda: changed(status(), public_addresses=(seen,), run_id=run_id)  # type: ignore[method-assign]
        shown = invoke("invite", str(tmp_path / "run"))
    finally:
        served.stop()
    address = read_link(shown.stdout.split()[-1]).address
    peer = address.rpartition("/p2p/")[2]
    assert (address == f"/ip4/45.33.7.1/tcp/31337/p2p/{peer}") == is_announced
    assert ("cannot follow it" in shown.stderr) != is_announced


def test_two_authorities_sign_an_invite_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keys = [invoke("authority", "new", name).output.strip() for name in ("one.key", "two.key")]
    listed = ", ".join(f'"{key}"' for key in keys)
    invoke(
        "init", "tiny", "--dir", "run", "--set", f"admission.authorities=[{listed}]", "--set", "admission.threshold=2"
    )
    run_dir = open_run_dir(tmp_path / "run")
    assert not run_dir.membership.exists() and not run_dir.authority_key.exists()
    with pytest.raises(ConfigError, match="this site has no authority's key"):
        invoke("invite", "run")
    invoke("authority", "import", "run", "one.key")
    assert not run_dir.membership.exists(), "one of two does not decide"
    assert "1 of 2 authorities have signed" in invoke("invite", "run").output
    (request,) = tmp_path.glob("invite-*.json")
    assert "seed" not in request.read_text()
    with pytest.raises(ConfigError, match="signed by 1 of the authorities, the run asks for 2"):
        invoke("invite", "run", "--signed", request.name)
    signed = invoke("authority", "sign", request.name, "two.key").output
    assert "signed by 2 of 2" in signed and "asks for an invite that lets 1 site take part in run" in signed
    link = read_link(invoke("invite", "run", "--signed", request.name).output.split()[-1])
    assert link.invite is not None and len(link.invite.signatures) == 2
    invoke("authority", "import", "run", "two.key")
    assert run_dir.membership.exists(), "both decide, and the founder is a member"


def test_two_authorities_sign_a_change_of_the_authorities_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("one.key", "two.key", "three.key")
    keys = [invoke("authority", "new", name).output.strip() for name in names]
    listed = ", ".join(f'"{key}"' for key in keys[:2])
    invoke(
        "init", "tiny", "--dir", "run", "--set", f"admission.authorities=[{listed}]", "--set", "admission.threshold=2"
    )
    with pytest.raises(ConfigError, match="name the new authorities with --key"):
        invoke("authority", "rotate", "run")
    with pytest.raises(ConfigError, match="there is no authority's key here"):
        invoke("authority", "rotate", "run", "--key", keys[2])
    invoke("authority", "import", "run", "one.key")
    with pytest.raises(ConfigError, match="is neither a public key"):
        invoke("authority", "rotate", "run", "--key", "nothing")
    with pytest.raises(ConfigError, match="--threshold 3, but only 2 keys are given"):
        invoke("authority", "rotate", "run", "--key", keys[2], "--key", keys[0], "--threshold", "3")
    fewer = "1 of the new authorities decide, 2 do now (--threshold)"
    assert fewer in invoke("authority", "rotate", "run", "--key", keys[2]).stderr
    Path("authorities-1.json").unlink()  # another change of one number is not begun beside it
    done = invoke("authority", "rotate", "run", "--key", "three.key", "--key", keys[0], "--threshold", "2")
    assert "warning" not in done.stderr
    told = done.output
    assert "1 of 2 authorities have signed authorities-1.json" in told
    with pytest.raises(ConfigError, match="none of these keys is an authority"):
        invoke("authority", "sign", "authorities-1.json", "three.key")
    signed = invoke("authority", "sign", "authorities-1.json", "two.key").output
    assert "signed by 2 of 2" in signed
    assert "list 1 of the authorities of run" in signed and f"2 of {keys[2][:16]}, {keys[0][:16]} decide" in signed
    request = load_request(Path("authorities-1.json"))
    assert isinstance(request.terms, AuthorityTerms)
    assert [key.hex() for key in request.terms.keys] == [keys[2], keys[0]]
    with pytest.raises(ConfigError, match="is no invite"):
        invoke("invite", "run", "--signed", "authorities-1.json")


def test_a_run_that_names_its_text_by_a_word_alone_says_so(tmp_path: Path) -> None:
    """Two machines made two texts of `english`, and trained one model on the tokens of both, without a word."""
    told = invoke("init", "tiny", "--dir", str(tmp_path / "run")).stderr
    assert "text 'english' is by this name alone" in told and "`dilocoxd start --no-run`" in told
    manifest = open_run_dir(tmp_path / "run").load()[0]
    hashes = {
        "data": manifest.data.model_copy(update={"sha256": "1" * 64}),
        "tokenizer": manifest.tokenizer.model_copy(update={"sha256": "2" * 64}),
    }
    assert unnamed_text(manifest) and not unnamed_text(manifest.model_copy(update=hashes))


def test_keys_of_the_list_in_force_are_those_that_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    new = bytes.fromhex(invoke("authority", "new", "new.key").output.strip())
    invoke("init", "tiny", "--dir", "run")
    run_dir = open_run_dir(tmp_path / "run")
    manifest, _ = run_dir.load()
    before = keyring(run_dir, manifest)
    assert invite_of(run_dir) is not None
    terms = AuthorityTerms(manifest.sha256(), 1, manifest.sha256(), (new,), 1, 5)
    write_authorities(
        run_dir.members_json, [certificates.changed(terms, before.authorities, before.keys)], [change_hash(terms)]
    )
    assert not keyring(run_dir, manifest).keys and invite_of(run_dir) is None
    invoke("authority", "import", "run", "new.key")
    link = read_link(invoke("invite", "run").output.split()[-1])
    assert link.invite is not None and link.invite.authorities == change_hash(terms)
    shown = invite_of(run_dir)
    assert shown is not None and shown.authorities == change_hash(terms), "the link for friends is made anew"
