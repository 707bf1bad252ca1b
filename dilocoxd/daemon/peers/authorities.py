"""The authorities of the run for people, and their change: signed by those before, or by this site's vote (M8, M9)."""

import functools
from dataclasses import dataclass
from typing import Final

from dilocoxd.answers.authorities import AuthorityList
from dilocoxd.daemon.chain.contributors import ContributorRoll
from dilocoxd.daemon.peers.voting import SETTLED_ENTRIES, refused_in_words, signed_vote
from dilocoxd.errors import CommandRefused, StoreError
from dilocoxd.machines.admission.authority_book import AuthorityBook
from dilocoxd.machines.admission.eviction import (
    ELECTORS_MIN,
    PRESENCE,
    VOTE_ENTRIES,
    WINDOW_ENTRIES,
    VoteCount,
    electors_at,
    height_to_vote_at,
)
from dilocoxd.swarm.discovery.admissions import Admissions
from dilocoxd.swarm.discovery.identity import Identity
from dilocoxd.swarm.service import Swarm
from dilocoxd.wire.authorities import (
    AuthorityChange,
    AuthorityTerms,
    change_hash,
    decode_change,
    decode_terms,
    replacement_text,
)
from dilocoxd.wire.codec import encode_struct

NO_AUTHORITIES: Final = "this run has no authorities: it does not admit sites by invite"


@dataclass(frozen=True, slots=True)
class RunAuthorities:
    """Reads the network's book, and brings signed changes and our votes into it."""

    swarm: Swarm
    identity: Identity
    chain: ContributorRoll

    def shown(self) -> list[AuthorityList]:
        """GET /v1/authorities: by number."""
        if self.swarm.admissions is None:
            return []
        book = self.swarm.admissions.book.authorities
        terms = [*(one.terms for one in book.changes.values()), *book.undecided.votes]
        rows = [self._row(book, one) for one in dict.fromkeys(terms)]
        first = book.manifest
        state = "earlier" if book.in_force else "in force"
        manifest = AuthorityList(
            number=0,
            change="",
            state=state,  # type: ignore[arg-type]
            decided_by="manifest",
            keys=tuple(key.hex() for key in first.keys),
            threshold=first.threshold,
            invites_void_from=book.void_from(first.listed),
        )
        return [manifest, *sorted(rows, key=lambda row: (row.number, row.change))]

    def _row(self, book: AuthorityBook, terms: AuthorityTerms) -> AuthorityList:
        found = change_hash(terms)
        known = book.changes.get(found)
        way = [one.hash for one in book.in_force]
        state = "voted on" if known is None else "lost" if found not in way else "earlier"
        by = "" if known is None else "members" if known.votes else "authorities"
        count = book.tally(terms, self.chain)
        return AuthorityList(
            number=terms.number,
            change=found.hex(),
            state="in force" if way and found == way[-1] else state,  # type: ignore[arg-type]
            decided_by=by,  # type: ignore[arg-type]
            keys=tuple(key.hex() for key in terms.keys),
            threshold=terms.threshold,
            invites_void_from=book.void_from(found) if known is not None else None,
            votes=count.num_votes if count is not None else None,
            votes_needed=count.num_needed if count is not None else None,
            terms=encode_struct(terms).hex(),
        )

    def change(self, change: str) -> str:
        """Settle a signed change in hex and tell the others. Raises CommandRefused."""
        with refused_in_words("the change"):
            signed = decode_change(bytes.fromhex(change))
            is_news = self.swarm.decisions.change_authorities(signed)
        admissions = self._admissions()
        self._save(admissions)
        book, found = admissions.book.authorities, change_hash(signed.terms)
        if book.list_of(signed.terms.before) is None:
            raise CommandRefused(
                "this site does not know the list that the change follows; bring the change that made it first"
                " (`dilocoxd authority rotate RUN_DIR --signed FILE`)"
            )
        if found not in book.changes:
            raise CommandRefused(
                f"of the {len(book.changes)} changes that are kept {len(book.beside(signed.terms))} with this number go"
                " before it; see `dilocoxd authority show`"
            )
        if found not in [one.hash for one in book.in_force]:
            raise CommandRefused("another change with this number goes before it; see `dilocoxd authority show`")
        verb = "is in force; the others are told" if is_news else "was known already"
        return f"list {signed.terms.number} of the authorities {verb}"

    def vote(self, terms: str) -> str:
        """Sign and tell our vote for the authorities of these terms in hex. Raises CommandRefused."""
        with refused_in_words("the list"):
            wanted = decode_terms(bytes.fromhex(terms))
        admissions, me = self._admissions(), self.identity.peer_id
        height = height_to_vote_at(self.chain, me, None, SETTLED_ENTRIES)
        if height is None:
            raise CommandRefused(self._why_no_vote())
        vote = signed_vote(self.identity, self.chain, height, functools.partial(replacement_text, wanted))
        with refused_in_words("the vote"):
            is_news = self.swarm.decisions.change_authorities(AuthorityChange(wanted, (), (vote,)))
        self._save(admissions)
        book = admissions.book.authorities
        if not is_news and all(one.peer != me for one in book.undecided.on(wanted)):
            raise CommandRefused(self._why_not_taken(book, wanted))
        return self._told(book, wanted, book.tally(wanted, self.chain))

    def _told(self, book: AuthorityBook, wanted: AuthorityTerms, found: VoteCount | None) -> str:
        short = change_hash(wanted).hex()[:12]
        known = book.changes.get(change_hash(wanted))
        if known is not None and known.votes and found is not None:
            return (
                f"list {wanted.number} of the authorities ({short}) is decided by {found.num_votes} votes of"
                f" {found.num_electors} members; the others are told"
            )
        counted = f"{found.num_votes} of {found.num_needed} needed votes" if found is not None else "no vote counts yet"
        return (
            f"this site votes for list {wanted.number} of the authorities ({short}): {counted}; have other members run:"
            f" dilocoxd authority vote RUN_DIR {short}"
        )

    def _why_not_taken(self, book: AuthorityBook, wanted: AuthorityTerms) -> str:
        known = book.changes.get(change_hash(wanted))
        if known is not None and known.votes:
            return "members have decided for this list already; see `dilocoxd authority show`"
        if book.list_of(wanted.before) is None:
            return "the list before it is not known here; see `dilocoxd authority show`"
        return "the vote is not taken up: this site votes on too much, or voted too often lately; repeat it in a minute"

    def _why_no_vote(self) -> str:
        if not electors_at(self.chain, self.chain.height, None):
            return (
                f"fewer than {ELECTORS_MIN} sites contributed to 1 of {PRESENCE} of the last {WINDOW_ENTRIES} entries;"
                f" so few cannot replace the authorities; vote again once {ELECTORS_MIN} have, or go on in a new run of"
                " your own, which has a new key: `dilocoxd start --from RUN_DIR`"
            )
        return (
            f"this site contributed to less than 1 of {PRESENCE} of the last {WINDOW_ENTRIES} entries, so its vote does"
            f" not count; ask another member (a vote is good for {VOTE_ENTRIES} entries)"
        )

    def _admissions(self) -> Admissions:
        if self.swarm.admissions is None:
            raise CommandRefused(NO_AUTHORITIES)
        return self.swarm.admissions

    def _save(self, admissions: Admissions) -> None:
        """At once: the next command reads in the file which keys count."""
        try:
            admissions.save()
        except StoreError as error:
            raise CommandRefused(f"it is in force, but could not be written: {error}") from error
