"""Decides what a run is: run.toml, its canonical bytes, and the run id made from their hash.

The manifest never changes during a run and is the same at every site; what differs between sites is in site.toml.
Source: docs/internals.md 2, docs/architecture.md.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from dilocoxd.config.agreement import (
    AggregationSection,
    OuterSection,
    RoundSection,
    SnapshotSection,
    StrategySection,
)
from dilocoxd.config.fields import Section, knob
from dilocoxd.config.loading import FILE_BYTES_MAX, SHOWN_MAX, canonical_json, read_toml, validated
from dilocoxd.config.origin import AdmissionSection, InitSection, SeedsSection, TokenizerSection
from dilocoxd.config.schedule import ReductionSection, ScheduleSection
from dilocoxd.config.sections.adapter import LoraSection
from dilocoxd.config.sections.data import DataSection
from dilocoxd.config.sections.segments import segment_elements
from dilocoxd.config.stability import safe_outer_lr
from dilocoxd.config.training import InnerSection, ModelSection
from dilocoxd.config.writing import commented_toml
from dilocoxd.errors import ConfigError
from dilocoxd.ids import RunId
from dilocoxd.terminal import CONTROL

RUN_ID_HASH_DIGITS = 16
LATER_FIELDS: tuple[tuple[str, str, object], ...] = (
    ("model", "config", ""),
    ("model", "entry_point", ""),
    ("model", "entry_sha256", ""),
    ("init", "parent", ""),
    ("tokenizer", "files", {}),
    ("inner", "batch_sequences_max", 0),
    ("inner", "dtypes_allowed", []),
    ("data", "document_mask", False),
    ("admission", "probation_rounds", 16),
    ("admission", "founders", []),
    ("reduction", "verify", "none"),
    ("reduction", "verify_fraction", 0.1),
)
"""(section, field, default) of fields that format 1 did not have at first: left out of the canonical bytes while they
say nothing, so that older runs keep their id."""
COARSE_CODECS = ("int4", "int2", "topk")
"""Codecs that do not train well without error feedback."""


def _name_with_control(tables: Any) -> str | None:
    """The first field whose text, or whose own name (then quoted), holds a control character."""
    left: list[tuple[str, Any]] = [("", tables)]
    while left:
        name, value = left.pop()
        if isinstance(value, str) and CONTROL.search(value):
            return name
        if isinstance(value, Mapping):
            keys = {str(key): item for key, item in value.items()}
            if found := next(filter(CONTROL.search, keys), None):
                return ".".join(filter(None, (name, ascii(found)[:SHOWN_MAX])))
            left += [(".".join(filter(None, (name, key))), item) for key, item in keys.items()]
        elif isinstance(value, list | tuple):
            left += [(name, item) for item in value]
    return None


class RunSection(Section):
    """Name of the run."""

    name: Annotated[
        str,
        knob(
            "Start of the run id.",
            unit="text",
            cost="none.",
            pattern=r"^[a-z0-9][a-z0-9-]{0,31}$",
        ),
    ]
    created: Annotated[
        str,
        knob(
            "When the run was created, ISO 8601, UTC; makes run ids unique. `dilocoxd start` fills it in when empty.",
            unit="text",
            cost="none.",
            max_length=32,
        ),
    ] = ""
    stop_after_tokens: Annotated[
        int,
        knob(
            "The run is complete when its entries hold so many tokens of all sites; every site ends at that entry."
            " 0: it has no end.",
            unit="tokens",
            cost="none.",
            ge=0,
            le=2**62,
        ),
    ] = 0
    format: Annotated[
        int,
        knob("Version of this file's meaning.", unit="integer", cost="none.", ge=1, le=1),
    ] = 1


class Manifest(Section):
    """run.toml."""

    run: RunSection
    model: ModelSection
    tokenizer: TokenizerSection = Field(default_factory=TokenizerSection)
    data: DataSection
    inner: InnerSection
    outer: OuterSection = Field(default_factory=OuterSection)
    strategy: StrategySection
    schedule: ScheduleSection = Field(default_factory=ScheduleSection)
    aggregation: AggregationSection = Field(default_factory=AggregationSection)
    reduction: ReductionSection = Field(default_factory=ReductionSection)
    round: RoundSection = Field(default_factory=RoundSection)
    snapshot: SnapshotSection = Field(default_factory=SnapshotSection)
    seeds: SeedsSection = Field(default_factory=SeedsSection)
    init: InitSection = Field(default_factory=InitSection)
    lora: LoraSection = Field(default_factory=LoraSection)
    admission: AdmissionSection = Field(default_factory=AdmissionSection)

    @model_validator(mode="before")
    @classmethod
    def _texts_are_one_line(cls, tables: Any) -> Any:
        """Whoever joins is told what a stranger's manifest says, and which of its fields are unknown (rule E9)."""
        if (name := _name_with_control(tables)) is not None:
            raise ValueError(f"{name} holds a control character; give text of one line")
        return tables

    @model_validator(mode="after")
    def _sections_fit(self) -> Self:
        self._choose_segments()
        self._check_schedule()
        self._check_adapter()
        self._check_aggregation()
        self._check_reduction()
        self._check_shares()
        if self.strategy.delay == "eager" and self.outer.optimizer == "adam":
            raise ValueError(
                "strategy.delay = 'eager' needs a linear outer optimizer, but outer.optimizer = 'adam'; choose"
                " 'nesterov', 'heavy_ball' or 'sgd'"
            )
        longest = self._longest_phase
        if self.round.inner_steps_max and self.round.inner_steps_max < longest:
            raise ValueError(
                f"round.inner_steps_max = {self.round.inner_steps_max} is below strategy.inner_steps +"
                f" strategy.extend_steps_max = {longest}, so honest sites would be refused; raise it or set it to 0"
            )
        tokens = longest * self.largest_inner_step
        if self.round.tokens_max and self.round.tokens_max < tokens:
            raise ValueError(
                f"round.tokens_max = {self.round.tokens_max} is below the {tokens} tokens of the longest phase, so"
                " honest sites would be refused; raise it or set it to 0"
            )
        return self

    def _choose_segments(self) -> None:
        """A manifest names the number, so that sites agree on it whatever rule their version has."""
        strategy = self.strategy
        if not strategy.segment_elements_max:
            is_lowrank = strategy.transform == "lowrank"
            number = segment_elements(self.model, is_lowrank=is_lowrank, is_adapter=bool(self.lora.rank))
            chosen = strategy.model_copy(update={"segment_elements_max": number})
            object.__setattr__(self, "strategy", chosen)  # frozen, but not yet made

    def _check_schedule(self) -> None:
        schedule, strategy = self.schedule, self.strategy
        if schedule.kind == "constant" and schedule != ScheduleSection():
            changed = next(name for name, value in schedule if value != getattr(ScheduleSection(), name))
            raise ValueError(
                f"schedule.{changed} means nothing to schedule.kind = 'constant'; remove it or choose another kind"
            )
        if schedule.kind == "adaptive" and strategy.transform != "lowrank":
            raise ValueError(
                f"schedule.kind = 'adaptive' measures low rank, but strategy.transform = {strategy.transform!r}; choose"
                " 'lowrank' or another schedule"
            )
        if schedule.kind == "adaptive" and schedule.lowrank_r_min > strategy.lowrank_r:
            raise ValueError(
                f"schedule.lowrank_r_min = {schedule.lowrank_r_min} is above strategy.lowrank_r = {strategy.lowrank_r};"
                " lower it"
            )
        if schedule.kind != "constant" and not schedule.inner_steps_min <= strategy.inner_steps <= self.inner_steps_max:
            raise ValueError(
                f"strategy.inner_steps = {strategy.inner_steps} is not within schedule.inner_steps_min ="
                f" {schedule.inner_steps_min} and schedule.inner_steps_max = {self.inner_steps_max}; change one of them"
            )

    def _check_adapter(self) -> None:
        lora = self.lora
        if not lora.rank and lora != LoraSection():
            raise ValueError(
                "lora.rank = 0, so no adapter is trained, but [lora] says more; set lora.rank or remove it"
            )
        if lora.rank and self.model.kind != "hf":
            raise ValueError(
                f"lora.rank = {lora.rank} trains an adapter of a pretrained model, but model.kind ="
                f" {self.model.kind!r}; start with --init DIR"
            )

    def _check_aggregation(self) -> None:
        strategy = self.strategy
        is_dense = strategy.transform == "identity" and not strategy.fragments and strategy.codec != "topk"
        if self.aggregation.centered_clip and not is_dense:
            raise ValueError(
                "aggregation.centered_clip = true compares whole segments with the round before, but strategy.transform"
                f" = {strategy.transform!r}, fragments = {strategy.fragments}, codec = {strategy.codec!r} does not send"
                " them; set it to false"
            )

    def _check_reduction(self) -> None:
        reduction = self.reduction
        if reduction.verify == "none":
            return
        checks = f"reduction.verify = {reduction.verify!r} sums segments again"
        if self.is_gathered:
            raise ValueError(f"{checks}, but with reduction.reducer = 'gather' every site sums all itself; set 'none'")
        if reduction.owner_feedback != "none":
            raise ValueError(
                f"{checks}, but with reduction.owner_feedback = {reduction.owner_feedback!r} a sum holds what only its"
                " owner knows; set owner_feedback to 'none'"
            )
        if self.strategy.transform != "identity" or self.strategy.fragments:
            raise ValueError(
                f"{checks} from contributions whose bytes are signed when they are offered, but with strategy.transform"
                f" = {self.strategy.transform!r} and fragments = {self.strategy.fragments} they are encoded later;"
                " set verify to 'none', or transform to 'identity' without fragments; or, so that nobody need be"
                " trusted with a sum, reducer to 'gather' and verify to 'none'"
            )

    @property
    def inner_steps_max(self) -> int:
        """Most inner steps that the schedule may ask for."""
        return self.schedule.inner_steps_max or self.strategy.inner_steps

    @property
    def site_steps_min(self) -> int:
        """Fewest inner steps of a slow site; 0 where all sites plan the same number."""
        return self.schedule.inner_steps_min if self.schedule.kind == "per_site" else 0

    @property
    def _longest_phase(self) -> int:
        return self.inner_steps_max + self.strategy.extend_steps_max

    def _check_shares(self) -> None:
        shared, of_so_many = self.data.leased_share
        samples = self.strategy.inner_steps * self.inner.batch_sequences
        if self.data.has_leases and samples * shared < of_so_many:
            raise ValueError(
                f"data.shared_share = [{shared}, {of_so_many}] of the {samples} samples of a phase"
                " (strategy.inner_steps x inner.batch_sequences) is less than one, so shared stores are never read;"
                " raise the share"
            )

    @property
    def is_gathered(self) -> bool:
        """Whether every site sums all contributions itself (X11)."""
        return self.reduction.reducer == "gather"

    @property
    def has_owner_feedback(self) -> bool:
        """Whether an owner keeps what it loses when it encodes a mean."""
        is_kept = self.reduction.owner_feedback == "kept" and not self.is_gathered
        return is_kept and self.strategy.error_feedback != "none"

    @property
    def tokens_per_inner_step(self) -> int:
        """Tokens one site trains on in one inner step."""
        return self.inner.batch_sequences * self.model.seq_len

    @property
    def largest_inner_step(self) -> int:
        """Most tokens that a site may train on in one inner step."""
        return max(self.inner.batch_sequences, self.inner.batch_sequences_max) * self.model.seq_len

    @property
    def claimed_steps_max(self) -> int:
        """Most inner steps a contribution may claim."""
        return self.round.inner_steps_max or self._longest_phase

    @property
    def claimed_tokens_max(self) -> int:
        """Most tokens a contribution may claim."""
        return self.round.tokens_max or self.claimed_steps_max * self.largest_inner_step

    def canonical_bytes(self) -> bytes:
        """The bytes that are hashed and sent to joining peers; equal for equal runs, whatever the file looked like."""
        tables = self.model_dump(mode="json")
        for section, field, unset in LATER_FIELDS:
            if tables[section][field] == unset:
                del tables[section][field]
        if self.init == InitSection():
            del tables["init"]
        if self.lora == LoraSection():
            del tables["lora"]
        if self.admission == AdmissionSection():
            del tables["admission"]
        return canonical_json(tables)

    def sha256(self) -> bytes:
        """Hash of the canonical bytes, 32 bytes."""
        return hashlib.sha256(self.canonical_bytes()).digest()

    @property
    def run_id(self) -> RunId:
        """`<name>-<first 16 hex digits of the hash>`."""
        return RunId(f"{self.run.name}-{self.sha256().hex()[:RUN_ID_HASH_DIGITS]}")

    def created_now(self, now: datetime | None = None) -> "Manifest":
        """This manifest with run.created filled in if it was empty."""
        if self.run.created:
            return self
        stamp = (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
        return self.model_copy(update={"run": self.run.model_copy(update={"created": stamp})})

    def warnings(self) -> list[str]:
        """Settings that are allowed but probably not meant, one sentence each."""
        found = []
        is_delayed = self.strategy.delay == "phase"
        limit = safe_outer_lr(self.outer.momentum, is_delayed=is_delayed)
        if self.outer.lr >= limit:
            found.append(
                f"outer.lr = {self.outer.lr} with outer.momentum = {self.outer.momentum} and strategy.delay ="
                f" '{self.strategy.delay}' diverges on stiff directions; stay below {limit:.3f}"
            )
        is_coarse = self.strategy.codec in COARSE_CODECS or self.strategy.transform != "identity"
        if is_coarse and self.strategy.error_feedback == "none":
            found.append(
                f"strategy.codec = {self.strategy.codec!r} with strategy.transform = {self.strategy.transform!r} loses"
                " what it leaves behind without strategy.error_feedback; set error_feedback to 'local'"
            )
        return found

    def to_toml(self) -> str:
        """Text of a run.toml that loads to an equal manifest."""
        return commented_toml(self)


def load_manifest(path: Path) -> Manifest:
    """The manifest in a run.toml. Raises ConfigError."""
    return validated(Manifest, read_toml(path), source=str(path))


def manifest_from_tables(tables: dict[str, Any], *, source: str) -> Manifest:
    """The manifest in already parsed tables. Raises ConfigError naming `source`."""
    return validated(Manifest, tables, source=source)


def manifest_from_canonical(data: bytes, *, source: str) -> Manifest:
    """The manifest in canonical bytes that a peer sent.

    Raises ConfigError when they are no manifest or not canonical (then the hash would not name what we understood).
    """
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{source}: the manifest has {len(data)} bytes, at most {FILE_BYTES_MAX}; ask another peer")
    try:
        tables = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: the manifest is not JSON; ask another peer") from error
    if not isinstance(tables, dict):
        raise ConfigError(f"{source}: the manifest is not a table; ask another peer")
    manifest = validated(Manifest, tables, source=f"manifest from {source}")
    if manifest.canonical_bytes() != data:
        raise ConfigError(
            f"{source}: the manifest is not in canonical form for this version of dilocoxd; use the version of the"
            " site that created the run"
        )
    return manifest
