"""Joining a closed run, where each site lists whom it lets in: by an id that is kept until others have listed it."""

from pathlib import Path

from dilocoxd.cli.joining.newcomer import Newcomer
from dilocoxd.cli.overrides import Sections
from dilocoxd.config.addresses import read_address
from dilocoxd.config.manifest import Manifest
from dilocoxd.errors import ConfigError
from dilocoxd.store.durable import write_file


def not_listed(error: ConfigError, who: Newcomer, directory: str | None) -> ConfigError:
    """`error`, and what is to be listed: the newcomer's id, which stays in `directory` for the next try."""
    if who.directory is None and directory is None:
        return ConfigError(f"{error}; give --dir DIR, for a directory keeps the id that is to be listed")
    if who.directory is None and directory is not None and not (kept := Path(directory) / "identity.key").exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_file(kept, who.key.read_bytes(), mode=0o600)
    return ConfigError(f"{error} (network.peers_allowed), as {who.peer}, then give the same command again")


def with_listed(tables: Sections, manifest: Manifest, who: Newcomer) -> Sections:
    """The sites that a closed run is joined by are let in here, if none are named: two that list each other one way
    only would train two branches."""
    network = tables.get("network", {})
    if manifest.admission.mode != "closed" or who.directory is not None or network.get("peers_allowed"):
        return tables
    listed = tuple(dict.fromkeys(peer for text in who.target.addresses if (peer := read_address(text).peer)))
    if not listed:
        raise ConfigError(
            "this run is closed, and the address does not say whose it is; name the sites that this one lets in with"
            " --set 'network.peers_allowed=[\"PEER_ID\"]'"
        )
    return {**tables, "network": {**network, "peers_allowed": listed}}
