"""Trainers on several machines listen where they meet, or not at all: what gloo and NCCL say is not sealed."""

import pytest

from dilocoxd.errors import ConfigError
from dilocoxd.ipc.client import CLUSTER_ADDRESS_VARIABLE
from dilocoxd.trainer.main import interfaces

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
HERE = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


def on_nodes(address: str, **given: str) -> dict[str, str]:
    return {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", CLUSTER_ADDRESS_VARIABLE: address, **given}


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        (HERE, {GLOO: "lo"}),
        ({**HERE, GLOO: "eth7"}, {GLOO: "eth7"}),
        (on_nodes("127.0.0.1"), {GLOO: "lo", NCCL: "lo"}),
        (on_nodes("127.0.0.1", NCCL_SOCKET_IFNAME="ib0"), {GLOO: "lo", NCCL: "ib0"}),
        (on_nodes("192.0.2.1", GLOO_SOCKET_IFNAME="eth1"), {GLOO: "eth1", NCCL: "eth1"}),
    ],
)
def test_trainers_listen_where_they_meet(environment: dict[str, str], told: dict[str, str]) -> None:
    assert interfaces(environment) == told


def test_address_that_no_interface_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no network interface of this machine has 192\.0\.2\.1"):
        interfaces(on_nodes("192.0.2.1"))
