"""Decides what differs between sites: site.toml (addresses, ports, devices, limits, paths). Never sent to anybody."""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

import tomli_w
from pydantic import Field, field_validator, model_validator

from dilocoxd.config.api import ApiSection, SinksSection
from dilocoxd.config.fields import Section, knob
from dilocoxd.config.loading import read_toml, validated

Addresses = Annotated[tuple[str, ...], Field(strict=False)]


HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s/:\[\]]+):(?P<port>[0-9]{1,5})(/\S+)?")


def address_problem(text: str) -> str | None:
    """Why `text` is neither a TCP multiaddress nor HOST:PORT[/PEER], or None.

    >>> address_problem("/ip4/10.0.0.1/tcp/31337") or address_problem("host.example:31337/QmPeer")
    """
    parts = text.split("/")
    found = HOST_PORT.fullmatch(text)
    if found is not None:
        port = found["port"]
    elif len(parts) < 5 or parts[0] != "" or parts[1] not in ("ip4", "ip6", "dns", "dns4", "dns6") or not parts[2]:
        return "it must look like /ip4/203.0.113.7/tcp/31337/p2p/Qm... or host:31337"
    elif parts[3] != "tcp":
        return f"only tcp is supported, not {parts[3]}"
    else:
        port = parts[4]
    if not port.isdecimal() or not 0 < int(port) < 65536:
        return f"port {port!r} is not between 1 and 65535"
    return None


class NetworkSection(Section):
    """How other sites reach this one."""

    host: Annotated[
        str,
        knob(
            "Address the daemon listens on for other sites; 0.0.0.0 is all of IPv4, :: all of IPv6 and IPv4.",
            unit="IP address",
            cost="none.",
            min_length=2,
            max_length=64,
        ),
    ] = "0.0.0.0"
    port: Annotated[
        int,
        knob("TCP port for other sites; keep it fixed, others remember it.", unit="port", cost="none.", ge=1, le=65535),
    ] = 31337
    announce: Annotated[
        Addresses,
        knob(
            "Addresses that others are told to use, such as the public one in front of a NAT; empty: the local ones.",
            unit="multiaddresses",
            cost="a wrong one makes every join of others slow or impossible.",
            max_length=16,
        ),
    ] = ()
    bootstrap: Annotated[
        Addresses,
        knob(
            "Peers to contact first. Peers met later are remembered in peers.json.",
            unit="multiaddresses",
            cost="dead ones delay the start by some seconds each.",
            max_length=256,
        ),
    ] = ()
    relays: Annotated[
        Addresses,
        knob(
            "Reachable sites that relay for this one, which cannot be reached from outside (behind a NAT);"
            " needed only to reach others of the same kind. Also turns on hole punching.",
            unit="multiaddresses",
            cost="relayed bytes are slow.",
            max_length=16,
        ),
    ] = ()
    nat_port_map: Annotated[
        bool, knob("Ask the router for a port (UPnP, NAT-PMP).", unit="flag", cost="not every router likes it.")
    ] = False
    streams_per_peer: Annotated[
        int,
        knob(
            "Parallel streams for large payloads to one peer; more help at high latency.",
            unit="streams",
            cost="memory for each.",
            ge=1,
            le=32,
        ),
    ] = 4
    upload_bytes_per_s_max: Annotated[
        int, knob("Most bytes sent per second; 0 is no limit.", unit="bytes/s", cost="exchanges last longer.", ge=0)
    ] = 0
    serve_bytes_per_s_max: Annotated[
        int,
        knob(
            "Most bytes sent per second to peers that catch up (snapshots, entries); 0 is no limit. Whatever it is,"
            " serving takes no more than a tenth of the upload while an exchange sends.",
            unit="bytes/s",
            cost="newcomers wait longer.",
            ge=0,
        ),
    ] = 0

    @field_validator("announce", "bootstrap", "relays")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            problem = address_problem(text)
            if problem is not None:
                raise ValueError(f"address {text!r} cannot be used: {problem}")
        return value

    @field_validator("relays")
    @classmethod
    def _have_peer_ids(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if "/p2p/" not in text:
                raise ValueError(f"address {text!r} names no peer; append /p2p/ and the peer's id")
        return value


class ParallelSection(Section):
    """How the model is cut inside this site; other sites may cut it otherwise."""

    stages: Annotated[
        int,
        knob("Pipeline stages, one process each.", unit="processes", cost="more stages, more bubble.", ge=1, le=1024),
    ] = 1
    microbatches: Annotated[
        int,
        knob(
            "Pieces of a batch at this site; 0 is inner.microbatches of the run.",
            unit="pieces",
            cost="none.",
            ge=0,
            le=65536,
        ),
    ] = 0
    schedule: Annotated[
        Literal["1f1b", "gpipe", "interleaved1f1b"],
        knob(
            "Pipeline schedule; interleaved1f1b needs stages_per_process of at least 2.",
            unit="choice",
            cost="gpipe keeps more activations in memory, interleaved1f1b sends more.",
        ),
    ] = "1f1b"
    stages_per_process: Annotated[
        int,
        knob(
            "Slices of the model in each process; more than 1 only with interleaved1f1b.",
            unit="slices",
            cost="more of them shorten the bubble and send more.",
            ge=1,
            le=64,
        ),
    ] = 1
    backend: Annotated[
        Literal["gloo", "nccl"],
        knob("Transport between stages: gloo on CPU, nccl on GPU.", unit="choice", cost="none."),
    ] = "gloo"
    device: Annotated[Literal["cpu", "cuda"], knob("Where stages compute.", unit="choice", cost="none.")] = "cpu"
    threads_per_rank: Annotated[
        int, knob("CPU threads of one stage.", unit="threads", cost="too many fight over the cores.", ge=1, le=1024)
    ] = 1

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.backend == "nccl") != (self.device == "cuda"):
            raise ValueError(
                f"parallel.backend = '{self.backend}' does not go with parallel.device = '{self.device}';"
                " use gloo with cpu, nccl with cuda"
            )
        return self


class WorkersSection(Section):
    """Supervision of the processes of this site."""

    outer_threads: Annotated[
        int, knob("CPU threads of the outer worker.", unit="threads", cost="takes them from training.", ge=1, le=256)
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
            gt=0,
            le=3600,
        ),
    ] = 180.0
    step_timeout_s: Annotated[
        float,
        knob(
            "Trainers without progress for this long are restarted.",
            unit="s",
            cost="too short kills slow ones.",
            gt=0,
            le=86_400,
        ),
    ] = 120.0


class PathsSection(Section):
    """Where this site keeps what can be made again."""

    identity: Annotated[
        str, knob("Private key of this peer, relative to the run directory.", unit="path", cost="none.", min_length=1)
    ] = "identity.key"
    cache: Annotated[
        str,
        knob(
            "Tokenised corpora, shared by all runs of this machine; empty: $XDG_CACHE_HOME/dilocoxd.",
            unit="path",
            cost="disk space.",
        ),
    ] = ""


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

    network: NetworkSection = Field(default_factory=NetworkSection)
    api: ApiSection = Field(default_factory=ApiSection)
    parallel: ParallelSection = Field(default_factory=ParallelSection)
    workers: WorkersSection = Field(default_factory=WorkersSection)
    paths: PathsSection = Field(default_factory=PathsSection)
    storage: StorageSection = Field(default_factory=StorageSection)
    log: LogSection = Field(default_factory=LogSection)
    sinks: SinksSection = Field(default_factory=SinksSection)

    def to_toml(self) -> str:
        """Text of a site.toml that loads to an equal object."""
        return tomli_w.dumps(self.model_dump(mode="json"))


def load_site(path: Path) -> SiteConfig:
    """The site configuration in a site.toml. Raises ConfigError."""
    return validated(SiteConfig, read_toml(path), source=str(path))
