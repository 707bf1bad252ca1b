"""Text of peers is one line: rule E9."""

import pytest

from dilocoxd.errors import WireError
from dilocoxd.wire.codec import one_line
from dilocoxd.wire.local.registry import LOCAL_MESSAGES
from dilocoxd.wire.local.worker import WorkerFailed
from dilocoxd.wire.messages import PEER_MESSAGES, Refuse

CONTROLS = "\x00\n\x1b\x7f\x85\x9b\u2028\u2029\u202e\u2066"


@pytest.mark.parametrize("mark", CONTROLS)
def test_text_that_a_peer_may_not_send_is_made_one_line(mark: str) -> None:
    text = f"no room{mark}FORGED alert.raised"
    with pytest.raises(WireError, match=r"Refuse\.detail has a control character"):
        PEER_MESSAGES.decode(PEER_MESSAGES.encode(Refuse("busy", text, b"")))
    sent = Refuse("busy", one_line(text), b"")
    assert PEER_MESSAGES.decode(PEER_MESSAGES.encode(sent)) == sent
    assert sent.detail == "no room FORGED alert.raised"


def test_words_of_any_language_are_left_alone() -> None:
    text = "M\u00fcnchen \u6771\u4eac \U0001f600 \u05d0"
    assert one_line(text) == text
    assert PEER_MESSAGES.decode(PEER_MESSAGES.encode(Refuse("busy", text, b""))).detail == text


def test_processes_of_one_site_may_tell_in_several_lines() -> None:
    failed = WorkerFailed(7, "store", "Traceback:\n  line 1")
    assert LOCAL_MESSAGES.decode(LOCAL_MESSAGES.encode(failed)) == failed
