"""Who a site is before it has a run directory: the link it was given, its identity, and the membership made of both.

The identity is made first, for the membership names it; it moves into the run directory once that exists.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dilocoxd.cli.run_dir.admission import first_authorities, keep_membership, own_membership, use_invite
from dilocoxd.cli.shell.telling import tell
from dilocoxd.config.addresses import read_address
from dilocoxd.config.manifest import Manifest, load_manifest
from dilocoxd.config.site import SiteConfig, load_site
from dilocoxd.errors import ConfigError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.authority_book import KnownChange, recalled
from dilocoxd.machines.admission.certificates import check_membership
from dilocoxd.store.admission import read_authorities, write_authorities, write_checkpoint, write_secret
from dilocoxd.store.credentials import IDENTITY, credential
from dilocoxd.store.durable import write_file
from dilocoxd.store.rundir import RunDir, open_run_dir
from dilocoxd.wire.admission import MembershipProof
from dilocoxd.wire.authorities import AuthorityChange
from dilocoxd.wire.codec import encode_struct
from dilocoxd.wire.entry import genesis_hash
from dilocoxd.wire.join_link import JoinLink, is_link, read_link

if TYPE_CHECKING:
    from dilocoxd.swarm.discovery.bootstrap import Access


@dataclass(frozen=True, slots=True)
class Target:
    """What stood behind `dilocoxd join`."""

    addresses: tuple[str, ...]
    link: JoinLink | None


def read_target(texts: tuple[str, ...]) -> Target:
    """Addresses and at most one run's link. Raises ConfigError."""
    addresses: list[str] = []
    link: JoinLink | None = None
    for text in texts:
        try:
            if not is_link(text):
                read_address(text)
                addresses.append(text)
                continue
            found = read_link(text)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if link is not None and link.run != found.run:
            raise ConfigError("the links belong to two runs; join one run at a time")
        link = link or found
        addresses.append(found.address)
    return Target(tuple(addresses), link)


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A site that is about to join."""

    target: Target
    key: Path
    """Of its identity."""
    peer: PeerId
    proof: MembershipProof | None
    directory: RunDir | None
    """The run directory of an earlier join."""
    way: list[KnownChange] = field(default_factory=list)
    """From the manifest's authorities to those that signed our invite."""

    def access(self, timeout_s: float) -> "Access":
        """How it reaches the run."""
        from dilocoxd.swarm.discovery.bootstrap import Access

        shown = encode_struct(self.proof) if self.proof is not None else b""
        return Access(self.target.addresses, timeout_s, tell, self.key, shown)

    def needs_authorities(self, manifest: Manifest) -> bool:
        """Whether our invite is signed by others than those that the manifest names."""
        if manifest.admission.mode != "invite" or self.proof is None:
            return False
        return self.proof.certificate.terms.authorities != manifest.sha256()

    @property
    def is_led_to_itself(self) -> bool:
        """Whether the link is one that this very directory made, and that other authorities have signed: what it admits
        to is here, and the founder of a run may be the first member of it."""
        link = self.target.link
        if link is None or link.invite is None or self.directory is None:
            return False
        is_own = link.address.endswith(f"/p2p/{self.peer}")
        return is_own and load_manifest(self.directory.run_toml).sha256() == link.run

    def own_manifest(self) -> Manifest:
        """That of our directory, once the invite was found to be of its authorities. Raises ConfigError."""
        assert self.directory is not None, "asked only where it is led to itself"
        manifest = load_manifest(self.directory.run_toml)
        self.check(manifest, read_authorities(self.directory.members_json)[0])
        return manifest

    def check(self, manifest: Manifest, changes: Sequence[AuthorityChange] = ()) -> None:
        """Whether what a peer served is the run of the link, and the invite is that run's. Raises ConfigError."""
        link = self.target.link
        if link is not None and manifest.sha256() != link.run:
            raise ConfigError(
                f"the peer serves another run than the link names (its hash begins with"
                f" {manifest.sha256().hex()[:16]}, the link's with {link.run.hex()[:16]}); ask for a new link"
            )
        if link is not None and link.height == 0 and link.head != genesis_hash(manifest.run_id, manifest.sha256()):
            raise ConfigError("the checkpoint of the link is not the beginning of its run; ask for a new link")
        if manifest.admission.mode != "invite" or self.proof is None:
            return
        from dilocoxd.swarm.discovery.identity import is_signed_by

        listed = self.proof.certificate.terms.authorities
        try:
            book = recalled(first_authorities(manifest), changes, is_signed_by)
            check_membership(self.proof, self.peer, book.list_of(listed) or book.manifest)
            self.way[:] = book.way_to(listed)
        except WireError as error:
            raise ConfigError(f"the invite of the link cannot be used: {error.detail}; ask for a new link") from error

    def move_into(self, run_dir: RunDir, manifest: Manifest, site: SiteConfig) -> None:
        """Leave identity, membership, invite and checkpoint in the run directory. Raises StoreError."""
        key = run_dir.identity(site)
        if not key.exists():
            key.parent.mkdir(parents=True, exist_ok=True)
            write_file(key, self.key.read_bytes(), mode=0o600)
        if manifest.admission.mode == "invite" and self.proof is not None:
            keep_membership(run_dir, self.proof)
        if self.way:
            sent = [one for known in self.way for one in known.as_sent()]
            write_authorities(run_dir.members_json, sent, [known.hash for known in self.way])
        link = self.target.link
        if link is None:
            return
        write_checkpoint(run_dir.checkpoint, link.height, link.head)
        if link.invite is not None and link.invite.uses > 1:
            write_secret(run_dir.invite, link.invite.to_text())  # it may be shown to more friends


@contextlib.contextmanager
def newcomer(target: Target, directory: str | None) -> Iterator[Newcomer]:
    """The site as it will be known to the run: the identity of an earlier join, or a new one. Raises ConfigError."""
    from dilocoxd.swarm.discovery.identity import create, load

    known = _earlier(target, directory)
    with tempfile.TemporaryDirectory(prefix="dilocoxd-identity-") as folder:
        if known is not None:
            key = known.identity(load_site(known.site_toml))
        else:
            key = credential(IDENTITY) or Path(directory or folder) / "identity.key"
            key = key if key.exists() else Path(folder) / "identity.key"
        identity = load(key) if key.exists() else create(key)
        yield Newcomer(target, key, identity.peer_id, _proof(target, known, identity.peer_id), known)


def _proof(target: Target, known: RunDir | None, peer: PeerId) -> MembershipProof | None:
    link = target.link
    if link is not None and link.invite is not None:
        return use_invite(link.invite, link.run, peer)
    return own_membership(known, load_manifest(known.run_toml), peer) if known is not None else None


def _earlier(target: Target, directory: str | None) -> RunDir | None:
    """The run directory that an earlier join of the same run made."""
    if directory is not None:
        return open_run_dir(Path(directory)) if (Path(directory) / "run.toml").exists() else None
    if target.link is None:
        return None
    for path in Path.cwd().glob(f"*-{target.link.run.hex()[:16]}"):
        if (path / "run.toml").exists():
            return open_run_dir(path)
    return None
