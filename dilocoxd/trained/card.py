"""README.md of an exported model: what it is, who made it, and how a stranger checks that it is that.

Nothing in it depends on the machine or the hour: two sites that export the same round write the same card, but for the
curve, which each site measured itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dilocoxd.config.manifest import Manifest
from dilocoxd.trained.anchor import AnchorFile
from dilocoxd.trained.chain import BroughtIn

CONTRIBUTORS_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Facts:
    """What the card tells besides the manifest."""

    anchor: AnchorFile
    averaged: Sequence[int]
    """Rounds whose mean this is; empty for one round."""
    entry_hash: str
    """Of the last entry that is in it, hex; empty for state 0."""
    certified_by: str
    """Hash of the entry that names the state's digest; empty while there is none."""
    shares: Sequence[BroughtIn]
    dtype: str
    curve: str
    """Name of the picture; empty if no validation loss is known."""
    losses: Mapping[int, float]


def card(manifest: Manifest, facts: Facts) -> str:
    """Text of README.md."""
    return "\n".join(
        [
            "---",
            *_library(manifest),
            "pipeline_tag: text-generation",
            "tags: [dilocoxd, decentralized-training]",
            "---",
            f"# {manifest.run_id}, round {facts.anchor.round}",
            "",
            _opening(manifest, facts),
            "",
            *_table(manifest, facts),
            "",
            *_curve(facts),
            *_contributors(facts.shares),
            *_check(manifest, facts),
            "",
        ]
    )


def _library(manifest: Manifest) -> list[str]:
    if not manifest.lora.rank:
        return ["library_name: transformers"]
    return ["library_name: peft", f"base_model: {manifest.lora.base_name}"]


def _opening(manifest: Manifest, facts: Facts) -> str:
    sites = len(facts.shares)
    tokens = sum(share.tokens for share in facts.shares)
    what = "A LoRA adapter" if manifest.lora.rank else "A language model"
    return (
        f"{what} of {facts.anchor.num_parameters:,} parameters, trained by {sites}"
        f" site{'s' if sites != 1 else ''} that only the internet joined, with dilocoxd, on {tokens:,} tokens of"
        f" `{manifest.data.corpus}`."
    )


def _table(manifest: Manifest, facts: Facts) -> list[str]:
    strategy, outer, inner, anchor = manifest.strategy, manifest.outer, manifest.inner, facts.anchor
    rows = [
        ("run", f"`{manifest.run_id}`, manifest sha256 `{manifest.sha256().hex()}`"),
        ("round", str(anchor.round)),
        ("weights", f"{facts.dtype}; of the float32 values: anchor hash `{anchor.anchor_sha256}`"),
    ]
    if facts.averaged:
        rows.append(("mean of rounds", ", ".join(map(str, facts.averaged))))
    if anchor.state_digest:
        rows.append(("state digest", f"`{anchor.state_digest}`"))
    if facts.entry_hash:
        rows.append(("last entry", f"number {anchor.round - 1}, `{facts.entry_hash}`"))
    certified = f"entry {anchor.round}, `{facts.certified_by}`" if facts.certified_by else "no entry yet"
    if anchor.state_digest:
        rows.append(("state digest signed in", certified))
    rows += [
        ("model", f"{manifest.model.kind}, {manifest.model.num_layers} layers, width {manifest.model.hidden_size}"),
        *_base_rows(manifest),
        ("tokenizer", f"sha256 `{manifest.tokenizer.sha256}`" if manifest.tokenizer.sha256 else "not named by the run"),
        ("data", f"`{manifest.data.corpus}`" + (f", sha256 `{manifest.data.sha256}`" if manifest.data.sha256 else "")),
        ("inner optimizer", f"{inner.optimizer}, learning rate {inner.lr:g}, {strategy.inner_steps} steps per phase"),
        ("outer optimizer", f"{outer.optimizer}, learning rate {outer.lr:g}, momentum {outer.momentum:g}"),
        (
            "strategy",
            f"{strategy.name}: {strategy.codec}, transform {strategy.transform}, delay {strategy.delay}",
        ),
    ]
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def _base_rows(manifest: Manifest) -> list[tuple[str, str]]:
    """What a stranger needs to find the model under an adapter."""
    lora = manifest.lora
    if not lora.rank:
        return []
    files = ", ".join(f"`{name}` sha256 `{sha256}`" for name, sha256 in sorted(lora.base_files.items()))
    return [("adapter", f"rank {lora.rank}, alpha {lora.alpha:g}"), ("adapts", f"{lora.base_name}: {files}")]


def _curve(facts: Facts) -> list[str]:
    if not facts.curve:
        return []
    number, loss = list(facts.losses.items())[-1]
    text = f"Validation loss of the shared model, measured by the site that exported it: {loss:.4f} at round {number}."
    return [f"![{text}]({facts.curve})", "", text, ""]


def _contributors(shares: Sequence[BroughtIn]) -> list[str]:
    if not shares:
        return []
    rows = [f"| `{share.peer}` | {share.num_rounds} | {share.tokens:,} |" for share in shares[:CONTRIBUTORS_SHOWN]]
    rest = shares[CONTRIBUTORS_SHOWN:]
    if rest:
        tokens = sum(share.tokens for share in rest)
        rows.append(f"| {len(rest)} more | {sum(share.num_rounds for share in rest)} | {tokens:,} |")
    return ["## Contributors", "", "| site | rounds | tokens |", "|---|---|---|", *rows, ""]


def _check(manifest: Manifest, facts: Facts) -> list[str]:
    command = f"dilocoxd export RUN_DIR --round {facts.anchor.round}"
    if facts.averaged:
        command += f" --average {len(facts.averaged)}"
    command += f" --dtype {facts.dtype} --out again"
    return [
        "## Check it",
        "",
        f"Every site of run `{manifest.run_id}` has the log that made these weights. Any of them can make them again:",
        "",
        "```",
        command,
        "(cd again && sha256sum -c) < SHA256SUMS",
        "```",
        "",
        "`dilocoxd verify THIS_DIRECTORY RUN_DIR` does the same, and compares the weights number by number.",
        "",
        "Files of weights, configuration and tokenizer have the sums of SHA256SUMS. `dilocoxd log verify RUN_DIR`",
        "checks the chain itself: each entry names the state before it and is signed by those who contributed.",
    ]
