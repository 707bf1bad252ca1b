"""Refusals of parts that a command asks, each done as it says: what a manifest or a link of somebody else names."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from dilocoxd.cli.commands import new_manifest
from dilocoxd.cli.joining.newcomer import Newcomer, read_target
from dilocoxd.cli.joining.text import given_text
from dilocoxd.cli.model.first_state import joined_first_state
from dilocoxd.cli.run_dir.admission import read_keys
from dilocoxd.config.addresses import listen_ip
from dilocoxd.config.manifest import Manifest, load_manifest
from dilocoxd.config.sections.paths import PathsSection
from dilocoxd.config.site import SiteConfig
from dilocoxd.config.tokens.files import files_of
from dilocoxd.store.admission import read_secret, write_authorities
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.swarm.discovery.bootstrap import Access
from dilocoxd.swarm.discovery.identity import load
from dilocoxd.wire.admission import AuthoritySignature, MembershipProof
from dilocoxd.wire.authorities import AuthorityChange, AuthorityTerms, authorities_text, change_hash
from dilocoxd.wire.join_link import read_link
from tests.harness.published.directory import LINES
from tests.harness.published.prepared_here import prepared_here
from tests.harness.running.run_directories import link_of
from tests.remedies.refused.elsewhere import refused
from tests.remedies.refused.rows import INIT
from tests.remedies.test_findings import invoke

NOBODY: Final = Access(("unused",), 1.0, print)


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text, in the folder where we are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("".join(LINES), encoding="utf-8")
    return tmp_path / "text.txt"


def test_text_that_the_founder_named_by_its_path(text: Path) -> None:
    """Runs of before `--data`: what is joined, is the run that was made anew."""
    old = new_manifest("tiny", {"data": {"corpus": f"text:{text}"}})
    with refused("cli/joining/text.py", "make the run anew with --data NAME=PATH"):
        given_text(old, SiteConfig()).bring(NOBODY)
    with prepared_here():
        invoke(*f"{INIT} anew --api-port 0 --data mine={text}".split())
        manifest, site = open_run_dir(Path("anew")).load()
        given_text(manifest, site).bring(NOBODY)


def test_text_that_is_not_here_and_is_not_fetched(text: Path) -> None:
    with prepared_here():
        invoke(*f"{INIT} run --api-port 0 --data mine={text}".split())
        manifest = open_run_dir(Path("run")).load()[0]
        own = {"cache": "elsewhere", "corpus_bytes_max": 0}
        with refused("cli/joining/text.py", "is not on this machine: give it with --data"):
            given_text(manifest, SiteConfig(paths=PathsSection.model_validate(own))).bring(NOBODY)
        own["corpora"] = {"mine": str(text)}  # as `--data mine=PATH` has it
        given_text(manifest, SiteConfig(paths=PathsSection.model_validate(own))).bring(NOBODY)


def newcomer_with(link: str, proof: MembershipProof | None = None) -> Newcomer:
    directory = open_run_dir(Path("run"))
    key = directory.identity(SiteConfig())
    return Newcomer(read_target((link,)), key, load(key).peer_id, proof, None)


@pytest.fixture
def founded(text: Path) -> Manifest:
    """Of a run in `run`; `other` is another one."""
    for name in ("run", "other"):
        invoke(*f"{INIT} {name} --api-port 0".split())
    return load_manifest(Path("run/run.toml"))


def test_link_of_another_run(founded: Manifest) -> None:
    old, new = link_of(Path("other")), invoke("invite", "run").output.split()[-1]
    with refused("cli/joining/newcomer.py", "the peer serves another run than the link names"):
        newcomer_with(old).check(founded)
    newcomer_with(new).check(founded)


def test_invite_that_is_signed_by_nobody(founded: Manifest) -> None:
    from dilocoxd.cli.run_dir.admission import use_invite

    def with_link(text: str, signature: bytes | None = None) -> Newcomer:
        link = read_link(text)
        assert link.invite is not None
        (signed,) = link.invite.signatures
        forged = replace(link.invite, signatures=(replace(signed, signature=signature or signed.signature),))
        peer = newcomer_with(text).peer
        return newcomer_with(text, use_invite(forged, link.run, peer))

    with refused("cli/joining/newcomer.py", "the invite of the link cannot be used"):
        with_link(link_of(Path("run")), bytes(64)).check(founded)
    with_link(invoke("invite", "run").output.split()[-1]).check(founded)


def test_adapter_without_its_model(text: Path) -> None:
    from tests.harness.published.directory import VOCAB, publish
    from tests.unit.models.families import FAMILY_CONFIGS

    publish(Path("model").absolute(), FAMILY_CONFIGS["llama tied"] | {"vocab_size": VOCAB})
    with prepared_here():
        invoke(*f"{INIT} run --api-port 0 --data text.txt --init model --lora 4 --set model.seq_len=24".split())
        manifest = load_manifest(Path("run/run.toml"))
        with (
            refused("cli/model/first_state.py", "files of weights"),
            joined_first_state(manifest, None, Path("new"), NOBODY),
        ):
            pass
        scratch = manifest.model_copy(update={"init": type(manifest.init)()})  # what peers would send is not asked for
        with joined_first_state(scratch, Path("model"), Path("new"), NOBODY) as first:
            assert first.folder is None


def test_authorities_that_nobody_signed(founded: Manifest) -> None:
    run_dir = open_run_dir(Path("run"))
    terms = AuthorityTerms(founded.sha256(), 1, founded.sha256(), (bytes(range(32)),), 1, 0)
    forged = AuthorityChange(terms, (AuthoritySignature(0, bytes(64)),), ())
    write_authorities(run_dir.members_json, [forged], [])
    with refused("cli/run_dir/admission.py", "remove it, the others tell what was in it"):
        invoke("invite", "run")
    run_dir.members_json.unlink()
    invoke("invite", "run")


def test_key_of_authorities_that_were_replaced(founded: Manifest) -> None:
    """It was told that it has no key, and to bring the one that it has."""
    run_dir = open_run_dir(Path("run"))
    (old,) = read_keys(read_secret(run_dir.authority_key), "run")
    public = bytes.fromhex(invoke("authority", "new", "new.key").output.strip())
    terms = AuthorityTerms(founded.sha256(), 1, founded.sha256(), (public,), 1, 0)
    change = AuthorityChange(terms, (AuthoritySignature(0, old.sign(authorities_text(terms))),), ())
    write_authorities(run_dir.members_json, [change], [change_hash(terms)])
    with refused("cli/run_dir/members.py", "bring one of those that decide now"):
        invoke("invite", "run")
    invoke("authority", "import", "run", "new.key")
    invoke("invite", "run")


def test_host_without_an_address() -> None:
    with refused("config/addresses.py", "give an IP address of this machine with --host"):
        listen_ip("no-such-host.invalid")
    assert listen_ip("127.0.0.1") == "127.0.0.1"


def test_folder_that_is_no_token_store(text: Path) -> None:
    from dilocoxd.trainer.tokens.pack import PackOptions, pack
    from tests.harness.published.directory import VOCAB, publish
    from tests.unit.models.families import FAMILY_CONFIGS

    publish(Path("model").absolute(), FAMILY_CONFIGS["llama tied"] | {"vocab_size": VOCAB})
    with refused("config/tokens/index.py", "make one with `dilocoxd data pack`"):
        files_of(Path("store"))
    options = PackOptions(Path("model"), held_fraction=0.1)
    pack([text], Path("store"), options, lambda _: None, lambda *_: None)
    files_of(Path("store"))
