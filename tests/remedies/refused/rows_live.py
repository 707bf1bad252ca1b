"""The same where a daemon must answer: `a` runs and has one of two authorities' keys, `b` is a member beside it.

`other` is a run of somebody else, `model` an empty folder. What is behind `@` is in test_live.py.
"""

from typing import Final

from dilocoxd.wire.admission import AUTHORITIES_MAX
from tests.remedies.refused.rows import HERE, Row

JOIN: Final = "join @a.link --yes --no-run"
NEW: Final = f"{HERE} --api-port 0 --dir new"
JOINED: Final = f"{JOIN} {NEW}"
KEYS: Final = [f"--key {number:064x}" for number in range(AUTHORITIES_MAX + 1)]

LIVE_ROWS: Final = (
    Row("cli/run_dir/authority.py", "keys are given; name at most", f"authority rotate a {' '.join(KEYS)}",
        f"authority rotate a {' '.join(KEYS[1:])}"),
    Row("cli/run_dir/members.py", "members vote, authorities sign; give one of them",
        "evict @b.id a --vote --signed @a.evict", "evict @b.id a"),
    Row("cli/run_dir/members.py", "give one of ", "evict nobody a", "members a\nevict @b.id a"),
    Row("cli/run_dir/members.py", "give the file that `dilocoxd evict", "evict @b.id a --signed @a.evict",
        "evict @b.id a\nauthority sign @b.evict two.key"),
    Row("cli/replay.py", "give a run directory whose site.toml has log.recording_mib", "replay b", "replay a"),
    Row("cli/replay.py", "use 1 for the newest", "replay a --life 9", "replay a --life 1"),
    Row("cli/joining/join.py", "give --dir another directory", f"{JOIN} --dir other", JOINED),
    Row("cli/joining/newcomer.py", "join one run at a time", f"join @other.link @a.link --no-run {NEW}", JOINED),
    Row("swarm/discovery/bootstrap.py", "ask for a new link",
        f"join @moved.link --no-run {NEW}", f"invite a --signed @invite.json\n{JOINED}"),
    Row("cli/joining/newcomer.py", "the checkpoint of the link is not the beginning", f"join @head.link --no-run {NEW}",
        f"invite a --signed @invite.json\n{JOINED}"),
    Row("swarm/discovery/bootstrap.py", " let this site in: ", f"join @forged.link --no-run {NEW}",
        f"invite a --signed @invite.json\n{JOINED}"),
    Row("cli/model/first_state.py", "not from pretrained weights; leave it out", f"{JOINED} --init model", JOINED),
    Row("cli/joining/nearby.py", "give `dilocoxd join` the link that", "join", JOINED),
    Row("cli/run_dir/members.py", "have it signed with `dilocoxd authority sign`, or leave --signed out",
        "evict @b.id a --signed @b.evict", "authority sign @b.evict two.key\nevict @b.id a --signed @b.evict",
        "$ rm -f evict-*.json\nevict @b.id a"),
    Row("cli/run_dir/members.py", "run `dilocoxd leave`, which ends its part in the run", "evict @a.id a", "leave a"),
)  # fmt: skip
"""The last two end the membership of `b`, and `a`."""
