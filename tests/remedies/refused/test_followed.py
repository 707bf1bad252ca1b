"""What refusals of the command line, of configuration and of start-up say to do is done, and works.

Beside these rows, those of test_live.py follow what needs a running site, those of test_packing.py what `dilocoxd data`
says, those in rooms/ what is said below the commands, and tests of their own what is in elsewhere.py; what nobody
follows stands in UNFOLLOWED with the reason, so that one more is a decision.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch

import dilocoxd
from dilocoxd.cli import commands
from dilocoxd.cli.cluster import node
from dilocoxd.cli.commands import announce_run
from dilocoxd.daemon.settings import membership_of
from dilocoxd.errors import ConfigError
from dilocoxd.ipc.sealed import KEY_BYTES
from dilocoxd.store.admission import write_secret
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.swarm.discovery.identity import load
from dilocoxd.trainer.tokens.pack import PackOptions, pack
from tests.harness.published.directory import LINES, VOCAB as VOCAB_SIZE, publish
from tests.harness.published.prepared_here import prepared_here
from tests.remedies.messages import ROOT
from tests.remedies.refused.elsewhere import ELSEWHERE
from tests.remedies.refused.refusals import other_refusals, refusals
from tests.remedies.refused.rooms.told import followed
from tests.remedies.refused.rows import HERE, INIT, ROWS as COMMAND_ROWS, Row
from tests.remedies.refused.rows_live import LIVE_ROWS
from tests.remedies.refused.rows_more import MORE_ROWS
from tests.remedies.refused.rows_packing import PACKING_ROWS
from tests.remedies.refused.rows_text import QUIET, SEQ, TEXT_ROWS, VOCAB
from tests.remedies.refused.test_each import NOBODYS
from tests.remedies.test_findings import invoke
from tests.unit.models.families import FAMILY_CONFIGS

ROWS: Final = COMMAND_ROWS + TEXT_ROWS + MORE_ROWS
UNFOLLOWED: Final = {
    ("cli/corpus.py", "give one that `dilocoxd data pack` made"): "the file was there a moment before",
    ("cli/model/first_state.py", "update dilocoxd on both sites"): "needs another version, which computes otherwise",
    ("cli/model/first_state.py", "give them with --init DIR, or join through another peer"):
        "needs a peer whose files have the hashes of the run and another content",
    ("config/manifest.py", "use the version of the site that created the run"): "needs another version",
    ("cli/run_dir/authority.py", "vote with --instead-of an earlier list"):
        "needs 64 changes and three electors; a vote with --instead-of itself is followed where the others are",
    ("trainer/tokens/adopt.py", "give an empty folder, or none"): "must be filled between two calls of the command",
    ("trainer/tokens/folders.py", "give a readable folder"): "root, who runs the tests, may list every folder",
    ("trainer/tokens/inputs.py", "pip install 'dilocoxd[data]'"): "needs an environment without pyarrow",
}  # fmt: skip
"""What nobody does, and why it cannot be made here; it goes down, and up by a decision. A sentence whose end is a value
says in other places what to do, and is counted in test_each.py."""


def do(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line of a row; whatever it is, it ends well. `run` and `node` end where they would begin their work."""
    monkeypatch.setattr(commands, "run_in_foreground", lambda run_dir: 0)
    monkeypatch.setattr(node, "_until_told", never_begun)
    if line.startswith("export DILOCOXD"):
        monkeypatch.setenv(*line.removeprefix("export ").split("="))
    elif line.startswith("$"):
        subprocess.run(["bash", "-c", line[1:]], check=True)
    elif line.startswith("describe "):
        dilocoxd.describe(torch.nn.Linear(2, 2), line.removeprefix("describe "))
    else:
        command = re.sub(r"@(\w+\.\w+)", lambda found: Path(f"{found[1]}.said").read_text(), line).split()
        done = invoke(*command)
        assert not done.return_value or command[0] == "doctor", line  # what it finds of this machine is its own affair
        if command[:2] == ["authority", "new"]:
            Path(f"{command[2]}.said").write_text(done.output.strip())


async def never_begun(work: Coroutine[Any, Any, None]) -> None:
    work.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the rows begin with; never changed."""
    folder = tmp_path_factory.mktemp("made")
    names = ("one.key", "two.key", "three.key")
    keys = [invoke("authority", "new", str(folder / name)).output.strip() for name in names]
    admission = (f'admission.authorities=["{keys[0]}", "{keys[1]}"]', "admission.threshold=2")
    settings = [part for one in admission for part in ("--set", one)]
    invoke(*INIT.split(), str(folder / "run"), "--api-port", "0")
    for name in ("two", "half"):
        invoke(*INIT.split(), str(folder / name), *settings)
    invoke("authority", "import", str(folder / "half"), str(folder / "one.key"))
    (folder / "mine").mkdir()
    (folder / "mine" / "keep.txt").write_text("my own words")
    (folder / "file").write_text("no folder")
    with prepared_here(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        make_texts(folder)
    return folder


def make_texts(folder: Path) -> None:
    """What the rows on texts begin with, in `folder`, where we are."""
    (folder / "text.txt").write_text("".join(LINES), encoding="utf-8")
    publish(folder / "model", FAMILY_CONFIGS["llama tied"] | {"vocab_size": VOCAB_SIZE})
    told = PackOptions(folder / "model", held_fraction=0.1)
    for name, options, documents in (
        ("store", told, LINES),
        ("line", told, LINES[:1]),
        ("lines", told, LINES[:5]),
        ("unheld", replace(told, held_fraction=0.0), LINES),
    ):
        (folder / "some.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in documents))
        pack([folder / "some.jsonl"], folder / name, options, lambda _: None, lambda *_: None)
    for name in ("books", "code"):
        halves = [Path(f"{name}{number}.jsonl") for number in range(2)]
        for half in halves:
            half.write_text("".join(json.dumps({"text": f"{name} {half} {one}"}) + "\n" for one in LINES))
        pack(halves, folder / name, told, lambda _: None, lambda *_: None)
    invoke(*f"init tiny {HERE} --dir pre --data text.txt --init model {SEQ}".split())
    invoke(*f"init tiny {QUIET} --dir draft --data store --data lines {VOCAB}".split())
    make_private_run(folder)
    dilocoxd.describe(torch.nn.Linear(2, 2), folder / "described")
    write_secret(folder / "node.key", "ab" * KEY_BYTES)


def make_private_run(folder: Path) -> None:
    """A run.toml of the two stores in draft/, without its founder's key; and one where they are private."""
    draft = re.sub(r"(?s)authorities = \[.*?\]", "authorities = []", (folder / "draft" / "run.toml").read_text())
    (folder / "draft.toml").write_text(draft)
    (folder / "private.toml").write_text(re.sub(r"(?m)^weight = .*$", r"\g<0>\nprivate = true", draft))


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy to work in."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with prepared_here():
        yield tmp_path


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.file}-{row.words}" for row in ROWS])
def test_what_a_refusal_says_works(row: Row, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(os.environ)
    for line in row.before.splitlines():
        do(line, monkeypatch)
    with pytest.raises(ConfigError) as refused:
        invoke(*row.wrong.split())
    assert refused.value.exit_code == 78 and row.words in str(refused.value)
    assert "[Errno" not in str(refused.value)
    for name in set(os.environ) - before:
        monkeypatch.delenv(name)
    for line in row.right.splitlines():
        do(line, monkeypatch)


def test_every_refusal_is_followed_or_has_a_reason() -> None:
    every = refusals()
    rows = (*ROWS, *LIVE_ROWS, *PACKING_ROWS)
    said = {*((row.file, row.words) for row in rows), *followed(), *ELSEWHERE, *UNFOLLOWED}
    known = [*every, *other_refusals()]
    stale = [(file, words) for file, words in said if not any(o.file == file and words in o.text for o in known)]
    assert not stale, f"no refusal says so any more: {stale}"
    found = [one for one in every if (one.says_what_to_do or not one.is_composed) and one.text not in NOBODYS]
    rest = [one for one in found if not any(f == one.file and words in one.text for f, words in said)]
    assert not rest, (
        "a new refusal: follow its words in rows.py or rooms/, or say in UNFOLLOWED why nobody can: "
        + "\n".join(f"{one.file}:{one.line}: {one.text}" for one in rest)
    )


def test_each_that_is_followed_elsewhere_is_in_that_file() -> None:
    for (file, words), test in ELSEWHERE.items():
        source = (ROOT.parent / test).read_text(encoding="utf-8")
        assert f'"{file}", "{words}"' in source or f'("{words}", ' in source, f"{test} no longer follows {words!r}"


def test_a_founder_with_a_damaged_membership_is_a_member_again(here: Path) -> None:
    """It was told to join again with a link, and has nobody to join through."""
    run_dir = open_run_dir(here / "run")
    manifest, site = run_dir.load()
    peer = load(run_dir.identity(site)).peer_id
    run_dir.membership.write_text("zz")
    with pytest.raises(ConfigError, match="remove it and start again where the authority's key is, else join again"):
        membership_of(run_dir, manifest, peer)
    run_dir.membership.unlink()
    announce_run(run_dir)  # what `run` does first
    assert membership_of(run_dir, manifest, peer)


def test_authorities_sign_a_new_list_before_a_daemon_is_asked(here: Path) -> None:
    """The first step was refused where api.port = 0, though it only writes a file."""
    invoke("config", "set", "half", "api.port=0")
    told = invoke("authority", "rotate", "half", "--key", "three.key").output
    assert "1 of 2 authorities have signed authorities-1.json" in told
    invoke("authority", "sign", "authorities-1.json", "two.key")
    with pytest.raises(ConfigError, match=r"config set half api\.port=8080`, and start it again"):
        invoke("authority", "rotate", "half", "--signed", "authorities-1.json")


def test_a_request_that_is_made_again_keeps_what_others_have_signed(here: Path) -> None:
    """The file has the same name, and was replaced by one with our signature alone."""
    invoke("config", "set", "half", "api.port=0")
    again = ("authority", "rotate", "half", "--key", "three.key")
    invoke(*again)
    signed = invoke("authority", "sign", "authorities-1.json", "two.key").output
    assert "signed by 2 of 2" in signed
    before = Path("authorities-1.json").read_text()
    with pytest.raises(ConfigError, match=r"config set half api\.port=8080`, and start it again"):
        invoke(*again)  # nobody's signature is missing: it asks the daemon
    assert Path("authorities-1.json").read_text() == before
