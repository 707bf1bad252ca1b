"""Every command in a block of a document is typed: here in a folder, by the test that its page has, or by the test that
stands beside what a workplace without Slurm, systemd or an index of packages cannot have.

Where a document has somebody's own word (LINK, 10.0.0.10, TOKENIZER) one of ours stands in its place. `dilocoxd node`
ends here where its work would begin; that is tests/integration/nodes.
"""

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from dilocoxd.config.manifest import Manifest, manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.ipc.sealed import KEY_BYTES
from dilocoxd.store.admission import write_secret
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.trainer.tokens.__main__ import main as data_main
from tests.documents.site import ROOT
from tests.documents.test_commands import FENCED, PAGES
from tests.integration.swarm.members import Member, running
from tests.remedies.refused.test_followed import do
from tests.remedies.test_findings import invoke
from tests.unit.trainer.tokens.texts import write_lines, write_tokenizer

HERE: Final = "--host 127.0.0.1 --port 0 --api-port 0"
PROGRAMS: Final = frozenset((
    "dilocoxd", "dilocoxd-admin", "pip", "python3", "sbatch", "srun", "kubectl", "docker", "curl", "systemctl",
    "journalctl", "install", "make", ".ci/run",
))  # fmt: skip
MADE: Final = "docs/commands.md"
"""From the commands themselves; its blocks are their usage."""
DRAWING: Final = "docs/architecture.md"
"""Its blocks show processes, each with the command that starts it."""


@dataclass(frozen=True, slots=True)
class Typed:
    """A line of a document, and our words for those of its reader's."""

    page: str
    line: str
    words: tuple[tuple[str, str], ...] = ()
    more: str = ""
    """Options that keep it from what is not ours."""

    @property
    def ours(self) -> str:
        line = self.line
        for theirs, our in self.words:
            assert theirs in line
            line = line.replace(theirs, our)
        return f"{line} {self.more}".strip().removeprefix("dilocoxd ")


NODE: Final = (("10.0.0.10", "127.0.0.1"), ("/var/lib/dilocoxd-node", "lent"))
PACK: Final = (("TOKENIZER", "tokenizer"), ("INPUT...", "lines.jsonl"), ("OUT", "store"))
ADOPT: Final = (("TOKENIZER", "tokenizer"), ("INPUT...", "ids.bin"), ("OUT", "adopted"))
TWO: Final = "docs/operations/two-machines.md"
LINK: Final = "/ip4/203.0.113.7/tcp/31337/p2p/QmXoyp.../run/4c0f7b8a.../at/0/68d66934.../key/aumLFs2H..."
IN_A_FOLDER: Final = (
    Typed("docs/cluster.md", "dilocoxd node 10.0.0.10 --key node.key --dir /var/lib/dilocoxd-node --parts 2", NODE),
    Typed("docs/cluster.md", "dilocoxd node 10.0.0.10 --key node.key --dir /var/lib/dilocoxd-node --stages 2 --parts 2",
          NODE),
    Typed("docs/data.md", "dilocoxd data pack --tokenizer TOKENIZER INPUT... OUT", PACK),
    Typed("docs/data.md", "dilocoxd data adopt --tokenizer TOKENIZER INPUT... OUT", ADOPT),
    Typed("docs/data.md", "dilocoxd data show STORE", (("STORE", "packed"),)),
    Typed(TWO, "dilocoxd start small --announce 203.0.113.7", (), f"--no-run --dir small {HERE}"),
)  # fmt: skip
JOINS: Final = (
    Typed("docs/cluster.md", "dilocoxd join LINK --no-run --dir /scratch/me/run --set parallel.shard=8 --device cuda",
          (("LINK", "@"), ("/scratch/me/run", "cluster")), HERE),
    Typed(TWO, f"dilocoxd join {LINK}", ((LINK, "@"),), f"--no-run --dir friend {HERE}"),
)  # fmt: skip
"""At a real peer, whose address stands for @."""
PAGES_TYPED: Final = {
    "README.md": "tests/containers/test_first_hour.py",
    "docs/operations/quickstart.md": "tests/containers/quickstart.py",
    "docs/operations/containers.md": "tests/containers/engine.py",
    "docs/operations/monitoring.md": "tests/integration/several_sites/test_api_live.py",
    "docs/operations/systemd.md": "tests/systemd/conftest.py",
    "docs/lab/start-small.md": "tests/documents/recording.py",
    "CONTRIBUTING.md": ".ci/run",
}
"""Page to what types its commands as a whole."""
ELSEWHERE: Final = {
    "pip install dilocoxd": ("tests/integration/one_site/test_wheel.py", "an index that has the package"),
    "python3 -m venv": ("tests/integration/one_site/test_wheel.py", "goes with the line above"),
    "sbatch ": (
        "tests/unit/operations/test_clusters.py",
        "a Slurm cluster; the script is run with programs of its own",
    ),
}
"""What begins so: the test of its like, and what is missing here."""


def lines_of(page: Path) -> list[str]:
    """Commands in the blocks of a page, without comments; tables of a format have none."""
    found = []
    for block in FENCED.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            text = re.split(r"\s#|\s{4,}", line.strip().removeprefix("$ "))[0].strip()
            if text.split(" ")[0] in PROGRAMS and " = " not in text:
                found.append(text)
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What readers of these pages have: a node's key, a tokenizer, a text, ids, and a store."""
    monkeypatch.chdir(tmp_path)
    write_secret(tmp_path / "node.key", "5a" * KEY_BYTES)
    write_tokenizer(tmp_path)
    write_lines(tmp_path / "lines.jsonl")
    np.arange(300, dtype="<u2").tofile(tmp_path / "ids.bin")
    return tmp_path


@pytest.mark.parametrize("typed", IN_A_FOLDER, ids=[one.line for one in IN_A_FOLDER])
def test_a_command_of_a_page_does_what_it_says(typed: Typed, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not typed.ours.startswith("data "):
        do(typed.ours, monkeypatch)
        return
    if "packed" in typed.ours:
        assert data_main(["pack", "--processes", "1", "--tokenizer", "tokenizer", "lines.jsonl", "packed"]) == 0
    assert data_main(typed.ours.split()[1:]) == 0


@pytest.mark.processes
async def test_the_commands_that_join_a_run_join_it(here: Path) -> None:
    tables = preset_tables("tiny")
    tables["admission"] = {"mode": "open"}
    tables["inner"]["batch_sequences"] = 64  # for eight processes
    manifest: Manifest = manifest_from_tables(tables, source="test").created_now()
    async with running(founder := Member(here / "founder", manifest)):
        for typed in JOINS:
            line = typed.ours.replace("@", founder.swarm.join_address()).split()
            assert not (await asyncio.to_thread(invoke, *line)).return_value
    for name, shard in (("cluster", 8), ("friend", 1)):
        known, site = open_run_dir(here / name).load()
        assert (known.run_id, site.parallel.shard) == (manifest.run_id, shard)


def test_every_command_in_a_block_is_typed_somewhere() -> None:
    typed = {(one.page, one.line) for one in (*IN_A_FOLDER, *JOINS)}
    missing, seen = [], set()
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        if name in (MADE, DRAWING) or name in PAGES_TYPED or name.startswith("docs/tutorials/"):
            continue  # tests/tutorials types all that a tutorial has
        for line in lines_of(page):
            seen.add((name, line))
            if (name, line) not in typed and not any(line.startswith(begin) for begin in ELSEWHERE):
                missing.append(f"{name}: {line}")
    assert not missing, "type it in IN_A_FOLDER or JOINS, or name the test of its like: " + "\n".join(missing)
    assert typed <= seen, f"no page has it any more: {typed - seen}"


@pytest.mark.parametrize("test", sorted({*PAGES_TYPED.values(), *(test for test, _ in ELSEWHERE.values())}))
def test_what_types_a_page_is_there(test: str) -> None:
    assert (ROOT / test).exists()
