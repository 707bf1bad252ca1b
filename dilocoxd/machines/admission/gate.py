"""Who is let in: the memberships that this site has accepted, the uses of each invite, and who was evicted.

Time and uses bind only who is new: a member that was let in stays until it is revoked, or a site that restarts after
its invite has expired would be locked out. Source: protocol/03-identity.md, M3 and M4.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.certificates import Authorities, check_membership, check_revocation
from dilocoxd.wire.admission import InviteTerms, MembershipProof, Revocation, RevocationTerms

Mode = Literal["invite", "open", "closed"]
CLOCK_SLACK_MS: Final = 60_000
MEMBERS_MAX: Final = 4096
REVOKED_MAX: Final = 4096


@dataclass(slots=True)
class AdmissionBook:
    """One record per member, keyed by peer; revocations by (peer, serial). Neither ever exceeds its maximum."""

    authorities: Authorities
    members: dict[PeerId, MembershipProof] = field(default_factory=dict)
    revocations: dict[tuple[PeerId, int], Revocation] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    """Serials of invites that admit nobody any more, because a member that they admitted was evicted."""

    def is_member(self, peer: PeerId) -> bool:
        """Whether `peer` was let in and not evicted since."""
        return peer in self.members

    def is_evicted(self, peer: PeerId) -> bool:
        """Whether a membership of `peer` was revoked, and it has no other."""
        return peer not in self.members and any(one == peer for one, _ in self.revocations)

    def num_uses(self, serial: int) -> int:
        """How many members came by this invite."""
        return Counter(one.certificate.terms.serial for one in self.members.values())[serial]

    def check(self, membership: MembershipProof, peer: PeerId, now_ms: int) -> None:
        """Whether `peer` may come in with it.

        Raises WireError: wrong_run, bad_certificate, bad_membership, evicted, invite_expired, invite_used_up.
        """
        known = self.members.get(peer)
        if known == membership:
            return
        check_membership(membership, peer, self.authorities)
        terms = membership.certificate.terms
        if (peer, terms.serial) in self.revocations:
            raise WireError("evicted", "this site was evicted from the run; ask an authority for a new invite")
        if known is None:
            self._check_is_fresh(terms, now_ms)

    def _check_is_fresh(self, terms: InviteTerms, now_ms: int) -> None:
        if terms.serial in self.closed:
            raise WireError("invite_used_up", "the invite was closed when a site that came by it was evicted")
        if now_ms > terms.not_after_ms + CLOCK_SLACK_MS:
            raise WireError("invite_expired", "the invite has expired; ask for a new one")
        used = self.num_uses(terms.serial)
        if used >= terms.uses:
            raise WireError("invite_used_up", f"the invite was for {terms.uses} sites and has let in {used}")
        if len(self.members) >= MEMBERS_MAX:
            raise WireError("busy", f"the run has {MEMBERS_MAX} members already")

    def take_in(self, membership: MembershipProof, peer: PeerId, now_ms: int) -> bool:
        """Make `peer` a member; whether that is news. Raises WireError as `check` does."""
        self.check(membership, peer, now_ms)
        is_new = self.members.get(peer) != membership
        self.members[peer] = membership
        return is_new

    def revoke(self, revocation: Revocation) -> bool:
        """Evict whom it names; whether that is news. Raises WireError(wrong_run | bad_certificate | busy)."""
        check_revocation(revocation, self.authorities)
        return self.settle(revocation)

    def settle(self, revocation: Revocation) -> bool:
        """The same for one whose signatures were checked before, by us or by the chain."""
        terms: RevocationTerms = revocation.terms
        if (terms.peer, terms.serial) in self.revocations:
            return False
        if len(self.revocations) >= REVOKED_MAX:
            raise WireError("busy", f"{REVOKED_MAX} revocations are known already")
        self.revocations[terms.peer, terms.serial] = revocation
        self.closed.add(terms.serial)
        known = self.members.get(terms.peer)
        if known is not None and known.certificate.terms.serial == terms.serial:
            del self.members[terms.peer]
        return True
