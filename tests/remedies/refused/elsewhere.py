"""Refusals that tests of their own follow: what they need is more than commands in a folder."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from dilocoxd.errors import ConfigError
from tests.remedies.messages import VALUE

VOTES: Final = "tests/integration/admission/test_authorities.py"
PARTS: Final = "tests/remedies/refused/test_parts.py"
MODULES: Final = "tests/unit/models/test_own.py"
PEERS: Final = "tests/integration/swarm/test_bootstrap.py"
EXPORT: Final = "tests/integration/one_site/test_export_round.py"
BITS: Final = "tests/remedies/test_bits.py"
SAMPLING: Final = "tests/unit/daemon/test_sampling.py"
CLOSED: Final = "tests/integration/admission/test_closed.py"
EVICT: Final = "tests/unit/cli/admission/test_evict.py"
OWNERS: Final = "tests/remedies/refused/test_owners.py"
PACKING: Final = "tests/remedies/refused/test_packing.py"
TEXTS: Final = "tests/unit/trained/test_text.py"
STREAMS: Final = "tests/unit/cli/shell/test_streams.py"
ELSEWHERE: Final = {
    ("cli/run_dir/authority.py", "give either the ID of a list"): VOTES,
    ("cli/run_dir/authority.py", "leave --threshold, --void-invites and --instead-of out"): VOTES,
    ("cli/run_dir/authority.py", "lists begin with"): VOTES,
    ("cli/run_dir/authority.py", "there is no such list in force"): VOTES,
    ("cli/joining/text.py", "make the run anew with --data NAME=PATH"): PARTS,
    ("cli/joining/text.py", "is not on this machine: give it with --data"): PARTS,
    ("cli/joining/newcomer.py", "the peer serves another run than the link names"): PARTS,
    ("cli/joining/newcomer.py", "the invite of the link cannot be used"): PARTS,
    ("cli/model/first_state.py", "files of weights"): PARTS,
    ("cli/run_dir/admission.py", "remove it, the others tell what was in it"): PARTS,
    ("cli/run_dir/members.py", "bring one of those that decide now"): PARTS,
    ("config/addresses.py", "give an IP address of this machine with --host"): PARTS,
    ("config/tokens/index.py", "make one with `dilocoxd data pack`"): PARTS,
    ("store/rundir.py", "or give all of it to this one with `chown -R`"): OWNERS,
    ("store/rundir.py", "check the folder's owner"): OWNERS,
    ("store/rundir.py", "give --dir a new folder"): OWNERS,
    ("cli/run_dir/identity.py", "check disk and owner"): OWNERS,
    ("cli/model/tokenizer.py", "give a readable folder"): OWNERS,
    ("cli/commands.py", "has no blocks(); leave parallel."): MODULES,
    ("cli/model/origin.py", "leave out --init and --config"): MODULES,
    ("cli/model/options.py", "no model is in it yet; begin with"): EXPORT,
    ("config/manifest.py", "at most VALUE; ask another peer"): PEERS,
    ("config/manifest.py", "the manifest is not JSON; ask another peer"): PEERS,
    ("config/manifest.py", "the manifest is not a table; ask another peer"): PEERS,
    ("daemon/sampling.py", "a text is being made already; wait for it"): SAMPLING,
    ("daemon/sampling.py", "; try again in VALUE s"): SAMPLING,
    ("cli/joining/closed.py", "give --dir DIR, for a directory keeps the id"): CLOSED,
    ("cli/joining/closed.py", ", then give the same command again"): CLOSED,
    ("cli/joining/closed.py", "name the sites that this one lets in with"): CLOSED,
    ("swarm/discovery/bootstrap.py", "ask its operator to list this site there"): CLOSED,
    ("cli/run_dir/members.py", "give the peer id of one of them: "): EVICT,
    ("store/log.py", "restore that file from a backup"): BITS,
    ("errors.py", "check the path, its owner and its permissions"): PACKING,
    ("errors.py", "check the disk it is on, and free space there"): PACKING,
    ("trainer/tokens/limits.py", "which may take VALUE GiB of memory; take that text out"): TEXTS,
    ("errors.py", "change into one that is there"): STREAMS,
    ("errors.py", "free space where it goes, or send it elsewhere"): STREAMS,
}
"""File below the package and what is said to do, and the test that does it."""


@contextmanager
def refused(file: str, words: str) -> Iterator[None]:
    """What is in the block is refused in these words; the test does then what they say."""
    assert (file, words) in ELSEWHERE, "name it there, or the sentence counts as followed by nobody"
    with pytest.raises(ConfigError) as error:
        yield
    pattern = ".*".join(map(re.escape, words.split(VALUE)))
    assert error.value.exit_code == 78 and re.search(pattern, str(error.value)), str(error.value)
