"""The commands of docs/operations/quickstart.md, as they stand there, in their order."""

import re
from dataclasses import dataclass

from tests.harness.running.sites import ROOT

BLOCK = re.compile(r"^<!-- run: (?P<where>[a-z ]+) -->\n```sh\n(?P<script>.*?)^```$", re.M | re.S)
ANY_BLOCK = re.compile(r"^```sh$", re.M)
PLACEHOLDER = "/ip4/203.0.113.7/tcp/31337/p2p/QmYourFirstPeer.../run/6b1f.../at/0/91d2.../key/aumLFs2H..."


@dataclass(frozen=True)
class Step:
    """A block of commands for some machines."""

    machines: tuple[str, ...]
    script: str


def steps() -> list[Step]:
    """All blocks; AssertionError if one does not say where it is run, for then no test would run it."""
    text = (ROOT / "docs" / "operations" / "quickstart.md").read_text(encoding="utf-8")
    found = [Step(tuple(block["where"].split()), block["script"]) for block in BLOCK.finditer(text)]
    assert len(found) == len(ANY_BLOCK.findall(text)), "a block without a `run:` comment"
    return found
