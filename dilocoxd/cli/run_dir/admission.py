"""What a run directory can do about admission: make its authority, admit itself, invite others, show its link."""

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dilocoxd.cli.overrides import join_address
from dilocoxd.config.manifest import Manifest, load_manifest
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError, StoreError, WireError
from dilocoxd.ids import Digest, PeerId
from dilocoxd.machines.admission.authority_book import AuthorityBook, recalled
from dilocoxd.machines.admission.certificates import (
    Authorities,
    admit,
    authorities_of,
    certified,
    check_membership,
)
from dilocoxd.machines.admission.keys import SigningKey
from dilocoxd.store.admission import ADMIT_AGAIN, read_authorities, read_membership, read_secret, write_secret
from dilocoxd.store.log import SUFFIX
from dilocoxd.store.log_record import read_record
from dilocoxd.store.rundir import RunDir
from dilocoxd.wire.admission import InviteTerms, MembershipProof, decode_membership, decode_revocation
from dilocoxd.wire.codec import encode_struct
from dilocoxd.wire.entry import entry_hash, genesis_hash
from dilocoxd.wire.join_link import InviteToken, JoinLink, token_from_text

LINK_DAYS: Final = 30
LINK_USES: Final = 64
"""Of the link that `start` prints, which is for all friends; `dilocoxd invite` makes narrower ones."""
FOUNDER_MS: Final = 3_600_000
SETTLED_ENTRIES: Final = 8
"""How far below its tip a checkpoint lies: a fork of a few entries must not make a link useless."""
DAY_MS: Final = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Keyring:
    """The authorities of a run, and those whose private keys are in the run directory."""

    authorities: Authorities
    keys: Mapping[int, SigningKey]

    @property
    def is_enough(self) -> bool:
        """Whether these keys decide alone."""
        return self.authorities.is_enough(len(self.keys))

    def invite(self, not_after_ms: int, uses: int, role: str = "contribute") -> InviteToken:
        """A new invite, signed by all keys that are here."""
        seed = SigningKey(secrets.token_bytes(32))
        listed = self.authorities.listed
        terms = InviteTerms(self.authorities.run, secrets.randbits(63), seed.public, not_after_ms, uses, role, listed)
        signed = certified(terms, self.authorities, self.keys)
        return InviteToken(
            seed.seed, terms.serial, not_after_ms, uses, role, self.authorities.change, signed.signatures
        )


def now_ms() -> int:
    """Unix time of this machine."""
    return time.time_ns() // 1_000_000


def first_authorities(manifest: Manifest) -> Authorities:
    """Those that run.toml names."""
    section = manifest.admission
    return authorities_of(manifest.sha256(), section.authorities, section.threshold)


def known_authorities(run_dir: RunDir, manifest: Manifest) -> tuple[AuthorityBook, Authorities]:
    """All lists that the daemon of this directory knows, and the one in force. Raises ConfigError."""
    changes, now = read_authorities(run_dir.members_json)
    first = first_authorities(manifest)
    try:
        book = recalled(first, changes, lambda voter, signature, text: True)
    except WireError as error:
        raise ConfigError(
            f"{run_dir.members_json}: is damaged ({error}); remove it, the others tell what was in it"
        ) from error
    return book, (book.list_of(now) or first)


def with_authority(manifest: Manifest) -> tuple[Manifest, SigningKey | None]:
    """The manifest of a new run with an authority, and its key if it was made now. Raises ConfigError."""
    section = manifest.admission
    if section.mode != "invite" or section.authorities:
        return manifest, None
    if section.threshold > 1:
        raise ConfigError(
            f"admission.threshold = {section.threshold} needs admission.authorities: have each of them run"
            " `dilocoxd authority new FILE`, and give the public keys that it prints"
        )
    key = SigningKey(secrets.token_bytes(32))
    changed = section.model_copy(update={"authorities": (key.public.hex(),)})
    return manifest.model_copy(update={"admission": changed}), key


def read_keys(text: str, where: str) -> list[SigningKey]:
    """Keys of a key file. Raises ConfigError."""
    try:
        return [SigningKey(bytes.fromhex(line)) for line in text.split()]
    except ValueError as error:
        raise ConfigError(f"{where}: holds no authority's key ({error}); restore it from a backup") from error


def keyring(run_dir: RunDir, manifest: Manifest) -> Keyring:
    """What this run directory may sign. Raises ConfigError."""
    _, authorities = known_authorities(run_dir, manifest)
    found = read_keys(read_secret(run_dir.authority_key), str(run_dir.authority_key))
    places = {authorities.place_of(key): key for key in found}
    return Keyring(authorities, {place: key for place, key in places.items() if place is not None})


def use_invite(token: InviteToken, run: bytes, peer: PeerId) -> MembershipProof:
    """The membership of `peer`, by the invite of a link."""
    seed = SigningKey(token.seed)
    return admit(token.certificate(run, seed.public), seed, peer)


def keep_membership(run_dir: RunDir, proof: MembershipProof) -> None:
    """Write the file that the daemon shows to others. Raises StoreError."""
    write_secret(run_dir.membership, encode_struct(proof).hex())


def own_membership(run_dir: RunDir, manifest: Manifest, peer: PeerId) -> MembershipProof | None:
    """What admits this site; None: nothing does. Raises ConfigError for a file that cannot be used."""
    data = read_membership(run_dir.membership)
    if not data:
        return None
    try:
        proof = decode_membership(data)
        book, _ = known_authorities(run_dir, manifest)
        check_membership(proof, peer, book.list_of(proof.certificate.terms.authorities) or book.manifest)
    except WireError as error:
        raise ConfigError(f"{run_dir.membership}: {error.detail}; {ADMIT_AGAIN}") from error
    return proof


def require_same_run(run_dir: RunDir, manifest: Manifest) -> None:
    """Refuse a run.toml that was changed after this site was admitted, though no entry of the log says so yet.

    What else may be wrong with the membership the daemon says. Raises ConfigError.
    """
    data = read_membership(run_dir.membership)
    try:
        admitted = decode_membership(data).certificate.terms.run if data else manifest.sha256()
    except WireError:
        return
    if admitted != manifest.sha256():
        raise ConfigError(
            f"{run_dir.run_toml}: describes run {manifest.run_id}, this site was admitted to another: run.toml was"
            " changed, and the description of a run is fixed; undo the change, or make a new run with"
            " `dilocoxd start run.toml`"
        )


def found(run_dir: RunDir, manifest: Manifest, peer: PeerId) -> None:
    """Make the founder a member, and an invite for its friends, where the keys of this directory may.

    Raises ConfigError, StoreError.
    """
    if manifest.admission.mode != "invite":
        return
    ring = keyring(run_dir, manifest)
    if not ring.is_enough:
        return
    if not run_dir.membership.exists():
        token = ring.invite(now_ms() + FOUNDER_MS, 1)
        keep_membership(run_dir, use_invite(token, manifest.sha256(), peer))
    if invite_of(run_dir) is None:
        write_secret(run_dir.invite, ring.invite(now_ms() + LINK_DAYS * DAY_MS, LINK_USES).to_text())


def invite_of(run_dir: RunDir) -> InviteToken | None:
    """The invite of this directory, if it has one that admits others. Raises ConfigError."""
    text = read_secret(run_dir.invite)
    if not text:
        return None
    try:
        token = token_from_text(text)
    except ValueError as error:
        raise ConfigError(
            f"{run_dir.invite}: holds no invite; remove it, and a site with an authority's key makes another"
        ) from error
    manifest = load_manifest(run_dir.run_toml)
    book, _ = known_authorities(run_dir, manifest)
    is_void = book.void_from(token.authorities or manifest.sha256()) is not None
    is_open = token.not_after_ms > now_ms() and token.serial not in closed_serials(run_dir)
    return token if is_open and not is_void else None


def closed_serials(run_dir: RunDir) -> frozenset[int]:
    """Invites that admit nobody any more, because a member that they admitted was evicted (M4)."""
    try:
        found_there = json.loads(run_dir.members_json.read_text("ascii"))["revocations"]
        return frozenset(decode_revocation(bytes.fromhex(text)).terms.serial for text in found_there)
    except (OSError, ValueError, KeyError, TypeError, WireError):
        return frozenset()  # none yet; a damaged file is the daemon's to tell


def checkpoint_of(run_dir: RunDir, manifest: Manifest) -> tuple[int, Digest]:
    """Height and head of the chain here, some entries below its tip."""
    names = [path.stem for path in run_dir.log.glob(f"*{SUFFIX}")]
    height = max((int(name) + 1 for name in names if name.isdecimal()), default=0) - SETTLED_ENTRIES
    if height > 0:
        try:
            record = read_record(run_dir.log / f"{height - 1:012d}{SUFFIX}")
            return height, entry_hash(record.signed.entry)
        except (OSError, StoreError):
            pass  # retention or a damaged disk; the daemon says so
    return 0, genesis_hash(manifest.run_id, manifest.sha256())


def join_link(run_dir: RunDir, manifest: Manifest, site: SiteConfig, peer: PeerId) -> JoinLink:
    """What others join with: this site's address, the run, a checkpoint, and the invite if there is one."""
    height, head = checkpoint_of(run_dir, manifest)
    invite = invite_of(run_dir) if manifest.admission.mode == "invite" else None
    return JoinLink(join_address(site, peer), Digest(manifest.sha256()), height, head, invite)
