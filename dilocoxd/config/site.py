"""Decides what differs between sites: site.toml (addresses, ports, devices, limits, paths). Never sent to anybody."""

import os
import socket
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator

from dilocoxd.config.addresses import are_one, listened_on
from dilocoxd.config.api import ApiSection, SinksSection
from dilocoxd.config.environment import given_variable, renamed, with_environment
from dilocoxd.config.fields import Section, knob
from dilocoxd.config.loading import read_toml, validated
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.sections.cluster import ClusterSection
from dilocoxd.config.sections.network import NetworkSection
from dilocoxd.config.sections.parallel import ParallelSection
from dilocoxd.config.sections.paths import PathsSection
from dilocoxd.config.writing import commented_toml
from dilocoxd.errors import ConfigError
from dilocoxd.site_names import NAME_CHARS_MAX, is_site_name, name_of_host


class NameSection(Section):
    """What this site is called, and what it could compute."""

    name: Annotated[
        str,
        knob(
            "What people call this site; empty: the host's name. ASCII letters, digits, dots, dashes, underscores.",
            unit="text",
            cost="none.",
            max_length=NAME_CHARS_MAX,
        ),
    ] = ""

    device_flops_peak: Annotated[
        float,
        knob(
            "What one device here could compute, from its data sheet for the dtype it computes in, such as 312e12"
            " for an A100 in bfloat16. 0: not known, then no MFU is told.",
            unit="FLOP/s",
            cost="none.",
            ge=0,
            le=1e18,
        ),
    ] = 0.0

    @field_validator("name")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if not is_site_name(value):
            raise ValueError(
                f"site.name = {value!r} cannot be used: use ASCII letters, digits, '.', '-' and '_', with a letter or"
                " digit at both ends"
            )
        return value

    @property
    def shown(self) -> str:
        """The name, or the host's; empty if the host's cannot be used."""
        return self.name or name_of_host(socket.gethostname())


class WorkersSection(Section):
    """Supervision of the processes of this site."""

    outer_parts: Annotated[
        int,
        knob(
            "Processes that the outer worker is divided into, each with a part of the segments; any number goes on from"
            " what any other has left.",
            unit="processes",
            cost="a CPU core and some 250 MB each.",
            ge=1,
            le=64,
        ),
    ] = 1
    outer_threads: Annotated[
        int,
        knob(
            "CPU threads of the outer worker, or of each of its parts.",
            unit="threads",
            cost="takes them from training.",
            ge=1,
            le=256,
        ),
    ] = 1
    outer_nice: Annotated[
        int,
        knob(
            "Niceness of the outer worker; higher yields to training.",
            unit="nice",
            cost="slower exchanges.",
            ge=0,
            le=19,
        ),
    ] = 10
    encode_device: Annotated[
        Literal["cpu", "cuda"],
        knob(
            "Where this site's own contributions are encoded; the bytes are the same. cuda: on the GPUs of the machine,"
            " outer parts in turn; fp32, fp16, bf16, int8, int4 and int2 without low rank. A GPU without room leaves it"
            " to the CPU.",
            unit="choice",
            cost="some 0.6 GB of GPU memory for each outer part, and time that the GPU does not train.",
        ),
    ] = "cpu"
    without_one_every: Annotated[
        int,
        knob(
            "One entry in so many, by lot, is also evaluated without one site's contribution, by lot; 0 never.",
            unit="entries",
            cost="a second validation, and until the next entry 4 bytes of memory for each value summed here.",
            ge=0,
            le=1_000_000,
        ),
    ] = 8
    save_every: Annotated[
        int,
        knob(
            "Boundaries from one checkpoint of the trainers (moments, place in the data) to the next; a stop writes one"
            " too.",
            unit="boundaries",
            cost="a crash puts moments and place back to the newest checkpoint; the shared state is not in it.",
            ge=1,
            le=1_000_000,
        ),
    ] = 1
    restarts_max: Annotated[
        int,
        knob(
            "Restarts of one worker inside restart_window_s before the site leaves.",
            unit="restarts",
            cost="a broken site tries for longer.",
            ge=0,
            le=1000,
        ),
    ] = 10
    restart_window_s: Annotated[float, knob("See restarts_max.", unit="s", cost="none.", gt=0, le=86_400)] = 600.0
    start_timeout_s: Annotated[
        float,
        knob(
            "A worker that says nothing for this long after its start has failed.",
            unit="s",
            cost="none.",
            ge=1,
            le=3600,
        ),
    ] = 180.0
    step_timeout_s: Annotated[
        float,
        knob(
            "Trainers without a sign of progress for this long are restarted; later on a machine that was measured to"
            " be slow: after 20 inner steps, or 4 times the longest silence that was none.",
            unit="s",
            cost="too short kills slow ones.",
            ge=1,
            le=86_400,
        ),
    ] = 120.0


class StorageSection(Section):
    """How long old payloads stay on this site's disk. Entries, with votes and hashes, stay for ever."""

    payload_rounds_max: Annotated[
        int,
        knob(
            "Payloads of older entries are dropped even if a live peer has not come past them (it takes a snapshot);"
            " sooner, once our oldest snapshot and every live peer are beyond them, but never the newest 64.",
            unit="rounds",
            cost="disk space: one payload each, and our own part of each once more (site/work).",
            ge=64,
            le=1_000_000_000,
        ),
    ] = 1000
    payload_bytes_max: Annotated[
        int,
        knob(
            "Payloads together never take more than this for longer than until the next snapshot, but what our own"
            " oldest snapshot needs for a replay always stays; a tighter limit than payload_rounds_max and the newest"
            " 64 wins. 0: no limit in bytes.",
            unit="bytes",
            cost="sites that were away for long need a snapshot.",
            ge=0,
            le=2**62,
        ),
    ] = 0


class LogSection(Section):
    """Events."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        knob("Least severity shown on stderr.", unit="choice", cost="debug is long."),
    ] = "info"
    recording_mib: Annotated[
        int,
        knob(
            "Limit of a recording of what the round machine was told, for `dilocoxd replay`; one for each start of the"
            " daemon, the last three are kept. 0: none.",
            unit="MiB",
            cost="disk space, a few MiB a day.",
            ge=0,
            le=4096,
        ),
    ] = 64


class SiteConfig(Section):
    """site.toml."""

    site: NameSection = Field(default_factory=NameSection)
    network: NetworkSection = Field(default_factory=NetworkSection)
    api: ApiSection = Field(default_factory=ApiSection)
    parallel: ParallelSection = Field(default_factory=ParallelSection)
    workers: WorkersSection = Field(default_factory=WorkersSection)
    cluster: ClusterSection = Field(default_factory=ClusterSection)
    paths: PathsSection = Field(default_factory=PathsSection)
    storage: StorageSection = Field(default_factory=StorageSection)
    log: LogSection = Field(default_factory=LogSection)
    sinks: SinksSection = Field(default_factory=SinksSection)

    @property
    def flops_peak(self) -> float:
        """FLOP/s of all devices together; 0: not known."""
        return self.site.device_flops_peak * self.parallel.ranks

    @property
    def ranks_here(self) -> int:
        """Trainer processes on the machine of the daemon; the others run on nodes."""
        return max(1, self.parallel.pipeline - self.cluster.stages) * self.parallel.in_stage

    def to_toml(self) -> str:
        """Text of a site.toml that loads to an equal object."""
        return commented_toml(self)


WHY_FIXED: Final = "which is the same at every site: its hash is the run's name, and the others refuse another one"
_OF_THE_RUN: Final = {
    section: f"section {section} belongs to run.toml, {WHY_FIXED}; remove it here, and go on from this run's model in a"
    f" new run with what it says: dilocoxd start --from RUN_DIR --set {section}.FIELD=..."
    for section in Manifest.model_fields
}


_NOT_BUILT: Final = {
    "nodes": "section nodes: the head does not list its machines; remove it, set cluster.stages and"
    " cluster.outer_parts, and run `dilocoxd node HEAD` on each (docs/cluster.md)",
}
"""What people look for who know other programs (docs/cluster.md, What does not)."""
_REFUSED: Final = _OF_THE_RUN | _NOT_BUILT


def written_site(path: Path) -> dict[str, Any]:
    """What a site.toml says, under the present names of fields, without variables and defaults. Raises ConfigError."""
    return renamed(read_toml(path))


def load_site(path: Path) -> SiteConfig:
    """The site configuration in a site.toml, with what the environment says over it. Raises ConfigError."""
    kept = read_toml(path)
    tables = with_environment(kept, os.environ, fields_of_sections())
    try:
        found = validated(SiteConfig, tables, source=str(path), elsewhere=_REFUSED)
    except ConfigError:
        validated(SiteConfig, renamed(kept), source=str(path), elsewhere=_REFUSED)  # else it is not the file's fault
        found = validated(SiteConfig, tables, source="the environment")
    return _with_own_ports(found, f"{path}: ")


def site_in_force(path: Path) -> bytes:
    """The site.toml at `path` for a process that has another environment: what our variables say is in it.

    Empty where there is no file. Raises ConfigError.
    """
    return load_site(path).to_toml().encode("utf-8") if path.exists() else b""


def fields_of_sections() -> dict[str, list[str]]:
    """Names of the fields of each section."""
    sections = {name: section.annotation for name, section in SiteConfig.model_fields.items()}
    return {name: list(one.model_fields) for name, one in sections.items() if one is not None}


def in_force(kept: SiteConfig) -> SiteConfig:
    """What holds in this process: `kept`, which is what the file says, with the variables over it.

    Raises ConfigError naming the variable's field.
    """
    tables = with_environment(kept.model_dump(mode="json"), os.environ, fields_of_sections())
    return _with_own_ports(validated(SiteConfig, tables, source="the environment"), "")


def _with_own_ports(site: SiteConfig, where: str) -> SiteConfig:
    """Not a validator: a variable can make two ports one, or set apart what is one in the file. Raises ConfigError."""
    network, api = site.network, site.api
    listened = [(api.host, api.port, "api", "port"), (network.host, network.port, "network", "port")]
    if network.data_connections:
        listened.insert(0, (network.host, network.data_port, "network", "data_port"))
    if site.cluster.has_nodes:
        listened.insert(0, (site.cluster.host, site.cluster.port, "cluster", "port"))
    for (host, port, *name), (other_host, other_port, *other_name) in combinations(listened, 2):
        if port and port == other_port and are_one(listened_on(host, name[0]), listened_on(other_host, other_name[0])):
            given = " and ".join(filter(None, (given_variable(*name), given_variable(*other_name))))
            raise ConfigError(
                f"{where}{'.'.join(name)} = {port} is {'.'.join(other_name)} too; give one of them another port"
                + (f" ({given} in the environment wins over site.toml)" if given else "")
            )
    return site
