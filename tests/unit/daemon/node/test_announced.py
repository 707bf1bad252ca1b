"""At which address other sites are told to come to a node: its own, or the one that its operator names."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dilocoxd.cli.main import cli
from dilocoxd.daemon.node.inlet import Inlet, address_towards
from dilocoxd.errors import ConfigError
from dilocoxd.wire.local.inlets import InletState


class _Listener:
    port = 31341


class _Door:
    listener = _Listener()


def inlet_with_door(*arguments: Any) -> Inlet:
    inlet, door = Inlet(*arguments), _Door()
    inlet._door = door  # type: ignore[assignment]
    return inlet


async def test_node_is_told_of_at_the_address_from_which_its_packets_leave() -> None:
    assert address_towards("127.0.0.9") == "127.0.0.1"
    assert address_towards("node.example") == "", "a name would have to be looked up, and loop and all would wait"
    others = ["127.0.0.9", "127.0.0.8"]
    assert inlet_with_door("", "", lambda: others).state() == InletState(31341, ("127.0.0.1",))
    assert inlet_with_door("", "127.0.0.9").state() == InletState(31341, ("127.0.0.1",)), "towards its head"
    assert Inlet("", "127.0.0.9").state() == InletState(0, (), "it has not been opened yet")


@pytest.mark.parametrize(
    ("announced", "state"),
    [
        ("192.0.2.7", InletState(31341, ("192.0.2.7",))),
        ("192.0.2.7:40000", InletState(40000, ("192.0.2.7",))),
        ("[2001:db8::7]:40000", InletState(40000, ("2001:db8::7",))),
    ],
)
async def test_address_that_its_operator_names_counts(announced: str, state: InletState) -> None:
    assert inlet_with_door(announced, "127.0.0.9").state() == state


@pytest.mark.parametrize("announced", ["node.example", "192.0.2.7:0", "192.0.2.7:70000", "/ip4/192.0.2.7/udp/1", "1.2"])
def test_address_that_makes_no_sense_is_told_in_one_sentence(tmp_path: Path, announced: str) -> None:
    (tmp_path / "key").write_text("5a" * 32 + "\n")
    (tmp_path / "key").chmod(0o600)
    arguments = ["node", "127.0.0.1", "--key", str(tmp_path / "key"), "--dir", str(tmp_path), "--announce", announced]
    result = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert isinstance(result.exception, ConfigError) and "--announce" in str(result.exception)
