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
        f" {_texts(manifest)}."
    )


def _texts(manifest: Manifest) -> str:
    sources = manifest.data.sources
    if not sources:
        return f"`{manifest.data.corpus}`"
    named = [f"`{source.name}`" for source in sources if not source.private]
    return ", ".join([*named, *_private(manifest)])


def _private(manifest: Manifest) -> list[str]:
    """How many private stores there are: what they are called is for the sites of the run alone."""
    count = sum(source.private for source in manifest.data.sources)
    return [f"{count} private token store{'s' if count > 1 else ''}"] if count else []


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
    if anchor.state_digest:
        rows.append(("state digest signed in", _signed_in(manifest, facts)))
    rows += [
        ("model", f"{manifest.model.kind}, {manifest.model.num_layers} layers, width {manifest.model.hidden_size}"),
        *_base_rows(manifest),
        *_init_rows(manifest),
        ("tokenizer", _tokenizer(manifest)),
        *_data_rows(manifest),
        ("inner optimizer", f"{inner.optimizer}, learning rate {inner.lr:g}, {strategy.inner_steps} steps per phase"),
        ("outer optimizer", f"{outer.optimizer}, learning rate {outer.lr:g}, momentum {outer.momentum:g}"),
        (
            "strategy",
            f"{strategy.name}: {strategy.codec}, transform {strategy.transform}, delay {strategy.delay}",
        ),
    ]
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def _signed_in(manifest: Manifest, facts: Facts) -> str:
    """The entry behind a state names its digest; none follows the last state of a run that is complete."""
    if facts.certified_by:
        return f"entry {facts.anchor.round}, `{facts.certified_by}`"
    limit = manifest.run.stop_after_tokens
    is_last = 0 < limit <= sum(share.tokens for share in facts.shares)
    return "no entry, for the run ends with it; the log makes it again (below)" if is_last else "no entry yet"


def _base_rows(manifest: Manifest) -> list[tuple[str, str]]:
    """What a stranger needs to find the model under an adapter."""
    lora = manifest.lora
    if not lora.rank:
        return []
    adapts = f"{lora.base_name}: {_files(lora.base_files)}"
    return [("adapter", f"rank {lora.rank}, alpha {lora.alpha:g}"), ("adapts", adapts)]


def _init_rows(manifest: Manifest) -> list[tuple[str, str]]:
    """What the first state was made of, if not of the seed alone."""
    if manifest.init.parent:
        return [("goes on from", manifest.init.parent)]
    return [("starts from", _files(manifest.init.files))] if manifest.init.files else []


def _tokenizer(manifest: Manifest) -> str:
    if manifest.tokenizer.files:
        return _files(manifest.tokenizer.files)
    return f"sha256 `{manifest.tokenizer.sha256}`" if manifest.tokenizer.sha256 else "not named by the run"


def _data_rows(manifest: Manifest) -> list[tuple[str, str]]:
    """The text of the run, or its token stores with the weight by which each was read."""
    data = manifest.data
    if not data.sources:
        return [("data", f"`{data.corpus}`" + (f", sha256 `{data.sha256}`" if data.sha256 else ""))]
    shared = [
        f"token store `{one.name}`, {one.num_tokens:,} tokens, weight {one.weight:g}, sha256 `{one.sha256}`"
        for one in data.sources
        if not one.private
    ]
    return [("data", value) for value in (*shared, *_private(manifest))]


def _files(files: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}` sha256 `{sha256}`" for name, sha256 in sorted(files.items()))


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
