"""Turns `--set section.field=value` and the short options into tables that the configuration models check."""

import socket
import tomllib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
Tables = dict[str, Any]

SHORT: dict[str, tuple[str, str]] = {
    "host": ("network", "host"),
    "port": ("network", "port"),
    "announce": ("network", "announce"),
    "api_host": ("api", "host"),
    "api_port": ("api", "port"),
    "stages": ("parallel", "stages"),
    "device": ("parallel", "device"),
    "cache": ("paths", "cache"),
}


def site_options(function: F) -> F:
    """The options that every command has that makes a site.toml."""
    options = [
        click.option("--dir", "directory", metavar="DIR", help="Run directory; default: the run id, in this folder."),
        click.option("--host", metavar="ADDRESS", help="Listen here for other sites; default 0.0.0.0."),
        click.option("--port", type=int, metavar="PORT", help="TCP port for other sites; default 31337, 0 a free one."),
        click.option("--announce", multiple=True, metavar="ADDR", help="Address that others shall use (repeatable)."),
        click.option("--api-host", metavar="ADDRESS", help="HTTP API; default 127.0.0.1."),
        click.option("--api-port", type=int, metavar="PORT", help="HTTP API; default 8080."),
        click.option("--stages", type=int, metavar="N", help="Pipeline stages at this site; default 1."),
        click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Where the stages compute; default cpu."),
        click.option("--cache", metavar="DIR", help="Tokenised corpora; default ~/.cache/dilocoxd."),
        click.option(
            "--set", "settings", multiple=True, metavar="SECTION.FIELD=VALUE", help="Any other field (repeatable)."
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def parse_setting(text: str) -> tuple[str, str, Any]:
    """Section, field and value of one `--set`. The value is TOML; what is not TOML is taken as text."""
    name, equals, value = text.partition("=")
    section, dot, field = name.strip().partition(".")
    if not equals or not dot or not section or not field:
        raise ConfigError(f"--set {text!r} cannot be read; write it as SECTION.FIELD=VALUE, like outer.lr=0.5")
    try:
        return section, field, tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        return section, field, value.strip()


def split_settings(settings: Iterable[str]) -> tuple[Tables, Tables]:
    """(manifest tables, site tables) of all `--set`; section names of the two files differ."""
    manifest: Tables = {}
    site: Tables = {}
    for text in settings:
        section, field, value = parse_setting(text)
        target = site if section in SiteConfig.model_fields else manifest
        target.setdefault(section, {})[field] = value
    return manifest, site


def merged(base: Tables, changes: Tables) -> Tables:
    """`base` with the fields of `changes` put over it, section by section."""
    result = {name: dict(value) if isinstance(value, dict) else value for name, value in base.items()}
    for section, fields in changes.items():
        result[section] = {**result.get(section, {}), **fields}
    return result


def site_tables(options: dict[str, Any], settings: Tables) -> Tables:
    """Tables of site.toml from short options and `--set`; port 0 becomes a port that is free now."""
    tables: Tables = {}
    for option, (section, field) in SHORT.items():
        value = options.get(option)
        if value is None or value == ():
            continue
        tables.setdefault(section, {})[field] = list(value) if isinstance(value, tuple) else value
    if options.get("device") == "cuda":
        tables.setdefault("parallel", {})["backend"] = "nccl"
    tables = merged(tables, settings)
    network = tables.get("network", {})
    if network.get("port") == 0:
        network["port"] = free_port(str(network.get("host", "0.0.0.0")))
    return tables


def free_port(host: str) -> int:
    """A TCP port that nobody uses at `host` now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise ConfigError(
            f"--host {host!r} cannot be listened on ({error}); give an address of this machine"
        ) from error


def reachable_address(host: str) -> str:
    """`host`, or the address of this machine's default route when `host` means all of them."""
    if host not in ("0.0.0.0", "::"):
        return host
    # Connecting a datagram socket sends nothing; it only picks the outgoing address (the documentation's are nobody's).
    families = [(socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")]
    for family, nobody in families[: 1 if host == "0.0.0.0" else 2]:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((nobody, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1" if host == "0.0.0.0" else "::1"


def join_address(site: SiteConfig, peer_id: str) -> str:
    """What another machine gives to `dilocoxd join`."""
    if site.network.announce:
        base = site.network.announce[0].split("/p2p/")[0]
    else:
        if site.network.relays:
            return site.network.relays[0]  # any peer of the run will do, and this one is not reached from outside
        host = reachable_address(site.network.host)
        base = f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{site.network.port}"
    return f"{base}/p2p/{peer_id}"
