"""Turns `--set section.field=value` and the short options into tables that the configuration models check."""

import socket
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from dilocoxd.cli.shell.telling import tell
from dilocoxd.config.addresses import is_host, listen_ip, local_words, read_address, socket_family
from dilocoxd.config.environment import field_name, require_unhidden, toml_value
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError, reason_of

Sections = dict[str, dict[str, object]]
"""Section to field to value, as TOML has it; checked by the models of dilocoxd/config."""

SHORT: dict[str, tuple[str, str]] = {
    "name": ("site", "name"),
    "host": ("network", "host"),
    "port": ("network", "port"),
    "announce": ("network", "announce"),
    "api_host": ("api", "host"),
    "api_port": ("api", "port"),
    "stages": ("parallel", "pipeline"),
    "device": ("parallel", "device"),
    "cache": ("paths", "cache"),
}


def parse_setting(text: str) -> tuple[str, str, object]:
    """Section, field and value of one `--set`. The value is TOML; what is not TOML is taken as text."""
    name, equals, value = text.partition("=")
    section, dot, written = name.strip().partition(".")
    field = field_name(section, written)
    if not equals or not dot or not section or not field:
        raise ConfigError(f"--set {text!r} cannot be read; write it as SECTION.FIELD=VALUE, like outer.lr=0.5")
    return section, field, toml_value(value)


def split_settings(settings: Iterable[str]) -> tuple[Sections, Sections]:
    """(manifest tables, site tables) of all `--set`; section names of the two files differ."""
    manifest: Sections = {}
    site: Sections = {}
    for text in settings:
        section, field, value = parse_setting(text)
        target = site if section in SiteConfig.model_fields else manifest
        target.setdefault(section, {})[field] = value
    return manifest, site


def merged(base: Mapping[str, object], changes: Sections) -> dict[str, object]:
    """`base` with the fields of `changes` put over it, section by section."""
    result = dict(base)
    for section, fields in changes.items():
        before = result.get(section)
        result[section] = {**(before if isinstance(before, dict) else {}), **fields}
    return result


def site_tables(
    options: Mapping[str, object], settings: Sections, corpora: Mapping[str, str] = MappingProxyType({})
) -> Sections:
    """Tables of site.toml from short options, `--set` and paths of texts; port 0 becomes a port that is free now."""
    tables: Sections = {}
    options = {**options, **_host_and_port(options)}
    for option, (section, field) in SHORT.items():
        value = options.get(option)
        if value is None or value == ():
            continue
        tables.setdefault(section, {})[field] = list(value) if isinstance(value, tuple) else value
    if device := options.get("device"):  # of a site that had the other one, its backend goes too
        tables.setdefault("parallel", {})["backend"] = "nccl" if device == "cuda" else "gloo"
    for section, fields in settings.items():
        tables[section] = {**tables.get(section, {}), **fields}
    if corpora:
        tables.setdefault("paths", {})["corpora"] = dict(corpora)
    network = tables.get("network", {})
    if network.get("port") == 0:
        network["port"] = free_port(str(network.get("host", "0.0.0.0")))
    require_unhidden(tables)
    return tables


def _host_and_port(options: Mapping[str, object]) -> dict[str, object]:
    """`--host` and `--port` of a `--host` that names the port too. Raises ConfigError."""
    typed = options.get("host")
    if not isinstance(typed, str) or is_host(typed):
        return {}
    try:
        address = read_address(typed)
    except ValueError as error:
        raise ConfigError(f"--host: {error}") from error
    named = options.get("port")
    if address.port is not None and named is not None and named != address.port:
        raise ConfigError(f"--host {typed} names port {address.port}, --port {named}; leave one of them out")
    return {"host": address.host, "port": address.port if address.port is not None else named}


def free_port(host: str) -> int:
    """A TCP port that nobody uses at `host` now."""
    family = socket_family(host)
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((listen_ip(host), 0))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise ConfigError(
            f"--host {host!r} cannot be listened on ({reason_of(error)}); give an address of this machine"
        ) from error


def reachable_address(host: str) -> str:
    """`host`, or the address of this machine's default route when `host` means all of them."""
    if host not in ("0.0.0.0", "::"):
        return listen_ip(host)
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
        base = site.network.announced[0]
    else:
        if site.network.relays:
            return site.network.relays[0]  # any peer of the run will do, and this one is not reached from outside
        base = read_address(reachable_address(site.network.host)).multiaddr(site.network.port)
    return f"{base}/p2p/{peer_id}"


def warn_of_address(address: str) -> None:
    """One sentence on stderr if `address`, which stands in a link, does not lead here from everywhere."""
    where = read_address(address)
    if words := local_words(where.host):
        tell(
            f"warning: the address in the link, {where.host}, {words}: sites elsewhere cannot follow it; give one that"
            f" leads here from everywhere with --announce (network.announce), and forward its TCP port {where.port}"
        )
