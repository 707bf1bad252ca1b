"""Ports that are held until p2pd listens: who shares can join them, nobody else finds them free."""

import contextlib
import socket

import pytest

from dilocoxd.errors import ConfigError
from dilocoxd.swarm.p2pd.settings import hold_ports

ANY_PORT = "/ip4/127.0.0.1/tcp/0"


def port_of(address: str) -> int:
    return int(address.rsplit("/", 1)[1])


def test_held_port_is_free_to_nobody_and_free_again_afterwards() -> None:
    with hold_ports((ANY_PORT, "/ip6/::1/tcp/0")) as held:
        for address in held:
            assert port_of(address) > 0
            with (
                pytest.raises(ConfigError, match=f"port {port_of(address)} .*give another port"),
                hold_ports((address,)),
            ):
                pass
    with hold_ports(held) as again:
        assert again == held


def test_who_shares_listens_on_a_held_port_and_gets_every_connection() -> None:
    with hold_ports((ANY_PORT,)) as (held,), socket.socket() as p2pd:
        p2pd.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        p2pd.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        p2pd.bind(("127.0.0.1", port_of(held)))
        p2pd.listen()
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port_of(held)), timeout=5), p2pd.accept()[0]:
                pass


def test_held_port_is_given_to_no_one_who_asks_for_any() -> None:
    with contextlib.ExitStack() as others, hold_ports((ANY_PORT,)) as (held,):
        assert port_of(held) not in {port_of(others.enter_context(hold_ports((ANY_PORT,)))[0]) for _ in range(200)}


@pytest.mark.parametrize("address", ["/dns4/example.org/tcp/1", "/ip4/127.0.0.1/udp/1", "/ip4/127.0.0.1/tcp/http"])
def test_address_of_no_known_form_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is of no known form; write /ip4"), hold_ports((address,)):
        pass
