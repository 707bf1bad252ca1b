"""Real sites that really train: a corpus that is tokenised in a second, options for the tiny preset, chain checks."""

import os
from pathlib import Path

from dilocoxd.store.log import EntryLog
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.wire.entry import entry_hash, genesis_hash
from tests.harness.running.sites import SiteProcess, wait_until

CORPUS_FILES = 40
PATIENCE_S = 150.0
INNER_STEPS = 8
"""Two seconds of real trainers (sites.STEP_S)."""


def write_corpus(folder: Path) -> Path:
    """Plain text that every machine has: the sources of the standard library."""
    corpus = folder / "corpus"
    corpus.mkdir()
    sources = sorted(Path(os.__file__).parent.glob("*.py"))[:CORPUS_FILES]
    (corpus / "library.txt").write_text("\n".join(path.read_text("utf-8", "replace") for path in sources), "utf-8")
    return corpus


def founder_options(folder: Path, *, inner_steps: int = INNER_STEPS) -> list[str]:
    """Options of `init tiny`: phases of a few seconds, a snapshot every four rounds."""
    corpus = folder / "corpus"
    settings = {
        "data.corpus": f'"{corpus if corpus.is_dir() else write_corpus(folder)}"',
        "data.validation_sequences": "2",
        "strategy.inner_steps": str(inner_steps),
        "strategy.extend_steps_max": str(20 * inner_steps),
        "round.grace_min_s": "1.0",
        "snapshot.every_rounds": "4",
    }
    options = site_options(folder)
    for name, value in settings.items():
        options += ["--set", f"{name}={value}"]
    return options


def site_options(folder: Path, *, stages: int = 1) -> list[str]:
    """Options of every site."""
    return ["--cache", str(folder / "cache"), "--stages", str(stages)]


def wait_joint_round(members: list[SiteProcess], timeout_s: float = PATIENCE_S) -> None:
    """Until one of the last rounds names all members."""
    ids = {wait_until(lambda m=m: m.status().get("peer_id"), m.name, timeout_s, m.describe) for m in members}

    def is_joint() -> bool:
        return any({c["peer"] for c in row["contributors"]} >= ids for row in members[0].rounds(3))

    wait_until(is_joint, f"a round of {len(ids)} sites", timeout_s, lambda: "\n".join(m.describe() for m in members))


def wait_contributions_after(site: SiteProcess, height: int, timeout_s: float = PATIENCE_S) -> None:
    """Until an entry of round `height` or later names the site."""
    me = wait_until(lambda: site.status().get("peer_id"), site.name, timeout_s, site.describe)

    def is_in() -> bool:
        rows = site.get(f"/v1/rounds?from={height}&limit=1000") or []
        return any(c["peer"] == me for row in rows for c in row["contributors"])

    wait_until(is_in, f"a contribution of {site.name} in round {height} or later", timeout_s, site.describe)


def log_of(site: SiteProcess) -> EntryLog:
    """The log of a stopped site."""
    run_dir = open_run_dir(site.run_dir)
    manifest, _ = run_dir.load()
    return EntryLog(run_dir.log, manifest.run_id, genesis_hash(manifest.run_id, manifest.sha256()))


def assert_logs_agree(*members: SiteProcess) -> None:
    """Every entry that two stopped sites both have is the same, but for the one that was decided as the first left."""
    chains = [[entry_hash(signed.entry) for signed in log_of(member).entries()] for member in members]
    shortest = min(map(len, chains))
    assert shortest > 1
    for chain in chains:
        assert chain[: shortest - 1] == chains[0][: shortest - 1]


def assert_states_agree(*members: SiteProcess) -> None:
    """At some moment all running sites stand at one height, with one head, one anchor and one digest."""
    keys = ("height", "chain_head", "anchor_sha256", "state_digest")
    seen: dict[str, set[tuple[object, ...]]] = {member.name: set() for member in members}

    def is_equal() -> bool:
        for member in members:
            status = member.status()
            if status:
                seen[member.name].add(tuple(status[key] for key in keys))
        return bool(set.intersection(*seen.values()))

    wait_until(is_equal, "equal anchors", PATIENCE_S, lambda: "\n".join(m.describe() for m in members))
