"""A link that was damaged on its way is refused when it is read, not when nobody answers."""

import pytest

from dilocoxd.wire.join_link import read_link

PEER = "QmYQczUq8bnWPT3LXhFodfxAHTcKCf7GgLuGa7fYeBv6cD"
REST = f"/run/{64 * 'a'}/at/0/{64 * 'b'}"


def test_link_with_a_peer_is_read() -> None:
    assert read_link(f"/ip4/203.0.113.7/tcp/31337/p2p/{PEER}{REST}").address.endswith(PEER)
    assert read_link(f"head.example:31337{REST}").address == "head.example:31337"


@pytest.mark.parametrize("peer", [f"\ufffd{PEER}", f"\u200b{PEER}", PEER[:-9], f"{PEER}0", "somebody"])
def test_peer_that_lost_or_gained_a_character_is_none(peer: str) -> None:
    with pytest.raises(ValueError, match="is damaged; copy all of what"):
        read_link(f"/ip4/203.0.113.7/tcp/31337/p2p/{peer}{REST}")
