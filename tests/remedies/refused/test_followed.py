"""What refusals of the command line, of configuration and of start-up say to do is done, and works.

Beside these rows, tests of their own follow what needs daemons, peers, packages or stores; what nobody follows is
counted by file, so that one more is a decision.
"""

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from dilocoxd.cli import commands
from dilocoxd.cli.commands import announce_run
from dilocoxd.daemon.settings import membership_of
from dilocoxd.errors import ConfigError
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.swarm.discovery.identity import load
from dilocoxd.trainer.tokens.pack import PackOptions, pack
from tests.harness.published.directory import LINES, VOCAB as VOCAB_SIZE, publish
from tests.harness.published.prepared_here import prepared_here
from tests.remedies.refused.refusals import refusals
from tests.remedies.refused.rows import HERE, INIT, ROWS as COMMAND_ROWS, Row
from tests.remedies.refused.rows_text import SEQ, TEXT_ROWS
from tests.remedies.test_findings import invoke
from tests.unit.models.families import FAMILY_CONFIGS

ROWS: Final = COMMAND_ROWS + TEXT_ROWS
SCOPE: Final = ("cli/", "config/", "store/rundir.py", "store/admission.py")
"""Commands, configuration and what they open at a start."""
UNFOLLOWED: Final = {
    "cli/client.py": 1, "cli/cluster/node.py": 3, "cli/commands.py": 3, "cli/configuration/command.py": 2,
    "cli/corpus.py": 9, "cli/doctor/before_start.py": 1, "cli/doctor/bundle.py": 1, "cli/joining/join.py": 1,
    "cli/joining/nearby.py": 1, "cli/joining/newcomer.py": 5, "cli/model/first_state.py": 5,
    "cli/model/options.py": 2, "cli/model/origin.py": 5, "cli/model/tokenizer.py": 1, "cli/replay.py": 2,
    "cli/run_dir/admission.py": 3, "cli/run_dir/authority.py": 6, "cli/run_dir/identity.py": 1,
    "cli/run_dir/members.py": 4, "config/addresses.py": 1, "config/loading.py": 1, "config/manifest.py": 4,
    "config/sections/sources.py": 2, "config/site_fit.py": 2, "config/tokens/files.py": 1,
    "config/tokens/index.py": 1, "store/admission.py": 2, "store/rundir.py": 3,
}  # fmt: skip
"""How many sentences of a file no row follows; it goes down, and up by a decision."""


def do(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line of a row; whatever it is, it ends well. `run` ends where the daemon would begin."""
    monkeypatch.setattr(commands, "run_in_foreground", lambda run_dir: 0)
    if line.startswith("export DILOCOXD"):
        monkeypatch.setenv(*line.removeprefix("export ").split("="))
    elif line.startswith("$"):
        subprocess.run(["bash", "-c", line[1:]], check=True)
    else:
        assert invoke(*line.split()).return_value == 0, line


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
    invoke(*f"init tiny {HERE} --dir pre --data text.txt --init model {SEQ}".split())


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
    for name in set(os.environ) - before:
        monkeypatch.delenv(name)
    for line in row.right.splitlines():
        do(line, monkeypatch)


def test_every_refusal_is_followed_or_counted() -> None:
    found = [one for one in refusals() if one.file.startswith(SCOPE)]
    said = [(row.file, row.words) for row in ROWS]
    stale = [(file, words) for file, words in said if not any(o.file == file and words in o.text for o in found)]
    assert not stale, f"no refusal says so any more: {stale}"
    rest = Counter(one.file for one in found if not any(f == one.file and words in one.text for f, words in said))
    assert rest == UNFOLLOWED, "a new refusal: follow its words in rows.py; or a row follows one more: count it off"


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
