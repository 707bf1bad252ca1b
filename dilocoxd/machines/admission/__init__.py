"""Who belongs to a run: keys of authorities, invites, memberships, revocations, and the roster that the chain holds."""
