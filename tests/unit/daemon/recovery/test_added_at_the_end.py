"""Who claims something when a recovery is over, and its end is not told yet, was asked by nobody (R22.7, R22.2)."""

from pathlib import Path
from typing import Any

import pytest

from dilocoxd.daemon.recovery import driver as module
from dilocoxd.ids import PeerId, RoundIndex
from dilocoxd.machines.peers.view import PeerView
from dilocoxd.machines.round.inputs import PeersChanged, RecoveryFinished
from dilocoxd.machines.round.outputs import ExtendRecovery
from tests.unit.daemon.recovery.test_driver import Branch, World
from tests.unit.machines.round.test_rules_after_faults import HIGH, OTHER_HEAD, high_desk
from tests.unit.machines.round.test_waiting import B, C

LATE = PeerId("L")


async def test_who_is_added_when_all_is_compared_is_told_as_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = Branch().grown(4, salt=b"common")
    world = World(tmp_path, common, common.grown(3, salt=b"theirs"))
    await world.open()
    honest = module.remove_downloads

    def meanwhile(folder: Path, height: RoundIndex) -> None:
        world.driver.take(ExtendRecovery((LATE,)), print)
        honest(folder, height)

    monkeypatch.setattr(module, "remove_downloads", meanwhile)
    found: Any = await world.recover()
    assert isinstance(found, RecoveryFinished)
    assert LATE not in found.added, "nobody has looked at its chain"


def test_who_is_added_while_the_end_is_on_its_way_stays_confirmed() -> None:
    """The driver has ended the recovery before it hears of C; its word lies in the queue behind the claim."""
    desk = high_desk()
    ahead = [PeerView(p, True, True, RoundIndex(HIGH + 2), OTHER_HEAD) for p in (B, C)]
    desk.tell(PeersChanged((ahead[0],), is_training=False, is_old=True))
    desk.tell(PeersChanged(tuple(ahead), is_training=False))
    assert [command.peers for _, command in desk.sent if isinstance(command, ExtendRecovery)] == [(C,)]
    desk.tell(RecoveryFinished(desk.machine.chain, None))
    assert C not in desk.machine.status.unconfirmed, "nobody has looked at its chain"
