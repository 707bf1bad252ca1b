"""Which of the package's errors tell a user what to do: theirs are under the rule of test_followed.py, with reasons.

An error of a peer, of another process or of a protocol is met by the program itself, and nobody is asked to do
anything. Whoever adds a class to dilocoxd/errors.py says here which it is.
"""

import ast
from typing import Final

from tests.remedies.messages import ROOT
from tests.remedies.refused.refusals import TELLING, kinds_told_to_users

NOT_TOLD: Final = {
    "DilocoxdError": "the base of all; nobody raises it",
    "WireError": "a peer's bytes: rejected and counted",
    "ProtocolViolation": "a peer's doing: it is penalised and counted",
    "PeerError": "a peer failed or refused: the driver asks another; one below cli/ ends a command, and is read",
    "WorkerError": "another process of this site: it is started anew within its budget",
}
"""Classes of dilocoxd/errors.py without a remedy for a user, and who meets them."""


def test_each_class_of_errors_tells_users_or_has_a_reason_not_to() -> None:
    source = (ROOT / "errors.py").read_text(encoding="utf-8")
    found = {node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    told = {name for name in TELLING if name != "ProblemError"}  # which is of the API
    assert found == told | NOT_TOLD.keys(), "say whether the new class tells users what to do"
    assert not told & NOT_TOLD.keys()


def test_what_derives_from_a_class_that_tells_users_is_read_too() -> None:
    found = kinds_told_to_users()
    assert {"StoreError", "DiskFull", "Corrupt", "WayGoneError", "bad_request"} <= found
    assert not found & NOT_TOLD.keys()
