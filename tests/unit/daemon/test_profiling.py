"""A profile on the daemon's side: who is refused, what is shown while ranks record, which folders are kept."""

from pathlib import Path
from typing import Any

import pytest

from dilocoxd.daemon.site.progress import SiteProgress
from dilocoxd.errors import CommandRefused
from dilocoxd.ids import PhaseId
from dilocoxd.ipc.profile_files import FOLDERS_KEPT, make_room
from dilocoxd.telemetry import catalogue
from dilocoxd.telemetry.sentences import sentence
from dilocoxd.wire.local.registry import LOCAL_MESSAGES
from dilocoxd.wire.local.trainer import Profile, StepDone, TraceBegun, TraceWritten
from dilocoxd.wire.local.worker import WorkerAlive
from tests.unit.daemon.test_operator_side import Recorded, daemon_chain

RANKS = 2


def begun(steps: int = 3) -> tuple[SiteProgress, str]:
    """A site whose ranks were told, and the time in the folder's name."""
    progress = SiteProgress()
    told = progress.profiling.begin(steps, Path("/run"), RANKS)
    assert told.steps == steps and Path(told.folder).parent == Path("/run/profiles")
    return progress, Path(told.folder).name


def step(number: int) -> StepDone:
    return StepDone(PhaseId(0), 1, number, 1.0, 8, 0.1, 0.0)


@pytest.mark.parametrize(
    "message", [Profile(5, "/run/profiles/now"), TraceBegun(3), TraceWritten(1, 3, 5, 100, "No space\nleft")]
)
def test_messages_keep_what_they_say(message: Any) -> None:
    assert LOCAL_MESSAGES.decode(LOCAL_MESSAGES.encode(message)) == message


def test_it_is_shown_how_far_a_profile_is_and_where_it_lies() -> None:
    progress, time = begun()
    shown = [progress.profiling.shown]
    for message in (step(9), TraceBegun(10), step(9), step(10), step(12), step(13), WorkerAlive("write", 0)):
        assert not isinstance(progress.take(message), catalogue.ProfileWritten)
        shown.append(progress.profiling.shown)
    assert [one.state for one in shown] == ["waiting"] * 2 + ["recording"] * 6
    assert [one.recorded_steps for one in shown] == [0, 0, 0, 0, 1, 3, 3, 3]
    assert shown[-1].text == "recorded 3 of 3 inner steps"
    assert progress.take(TraceWritten(0, 10, 3, 1000)) is None, "one rank writes still"
    event = progress.take(TraceWritten(1, 10, 3, 500))
    folder = f"profiles/{time}-step10"
    assert event == catalogue.ProfileWritten(folder=folder, first_step=10, steps=3, total_bytes=1500)
    end = progress.profiling.shown
    assert (end.state, end.folder, end.files) == ("written", folder, ("rank0.json.gz", "rank1.json.gz"))
    assert end.text == "3 inner steps of 2 ranks, 1.5 kB" and folder in sentence(event)
    assert progress.take(TraceWritten(1, 10, 3, 500)) is None


def test_a_rank_that_cannot_write_fails_the_profile() -> None:
    progress, _ = begun()
    assert progress.take(TraceWritten(1, 10, 3, 0, "No space left on device")) is None
    event = progress.take(TraceWritten(0, 10, 3, 500))
    assert event == catalogue.ProfileFailed(reason="rank 1: No space left on device")
    assert progress.profiling.shown.state == "failed" and "training goes on" in progress.profiling.shown.text
    progress.profiling.begin(1, Path("/run"), RANKS)
    assert progress.profiling.shown.state == "waiting", "the next one may come"


def test_the_word_of_the_last_rank_counts_whoever_comes_first() -> None:
    progress, time = begun()
    progress.take(TraceWritten(1, 10, 2, 500))
    assert isinstance(progress.take(TraceWritten(0, 10, 2, 500)), catalogue.ProfileWritten)
    end = progress.profiling.shown
    assert end.folder == f"profiles/{time}-step10" and "3 were asked for; a pause ended it" in end.text


@pytest.mark.parametrize(
    ("here", "told"), [(2, "those of ranks 2 to 3 lie on their nodes"), (3, "that of rank 3 lies on its node")]
)
def test_what_ranks_on_nodes_have_written_is_looked_for_there(here: int, told: str) -> None:
    progress = SiteProgress()
    progress.profiling.begin(2, Path("/run"), 4, 4 - here)
    for rank in range(4):
        progress.take(TraceWritten(rank, 10, 2, 500))
    end = progress.profiling.shown
    assert (end.state, end.files) == ("written", tuple(f"rank{rank}.json.gz" for rank in range(here)))
    assert f"; {told}, in stages/*/profiles below" in end.text


def test_trainers_that_are_lost_end_it() -> None:
    progress, _ = begun()
    progress.new_generation()
    assert progress.profiling.shown.state == "failed" and "ended" in progress.profiling.shown.text
    assert progress.take(TraceWritten(0, 1, 1, 1)) is None
    untouched = SiteProgress()
    untouched.new_generation()
    assert untouched.profiling.shown.state == "none"


def test_one_more_folder_makes_those_that_are_kept(tmp_path: Path) -> None:
    make_room(tmp_path)  # there is none yet
    for number in range(7):
        (tmp_path / "profiles" / f"20261123T10000{number}-step{9 - number}").mkdir(parents=True)
        (tmp_path / "profiles" / f"20261123T10000{number}-step{9 - number}" / "rank0.json.gz").touch()
    make_room(tmp_path)
    left = sorted(path.name for path in (tmp_path / "profiles").iterdir())
    assert len(left) == FOLDERS_KEPT - 1 and left[0] == "20261123T100003-step6"


async def test_only_trainers_that_train_are_profiled_and_one_at_a_time(tmp_path: Path) -> None:
    world = Recorded(tmp_path / "run")
    daemon, control = world.daemon, world.control
    with pytest.raises(CommandRefused, match="no trainer trains now"):
        await control.profile(2)
    daemon.lifecycle.enter("training")
    await daemon.site.begin(daemon_chain())
    control.pause("a move")
    with pytest.raises(CommandRefused, match="the site is paused"):
        await control.profile(2)
    control.resume()
    daemon.ledger.pause("catching up")
    with pytest.raises(CommandRefused, match="no trainer trains now"):
        await control.profile(2)
    daemon.ledger.resume()
    assert "/v1/profile" in await control.profile(2)
    assert (daemon.view.profile().state, daemon.view.profile().steps) == ("waiting", 2)
    with pytest.raises(CommandRefused, match="recorded already"):
        await control.profile(2)


async def test_a_loop_of_ones_own_is_not_profiled(tmp_path: Path) -> None:
    from torch import nn

    from dilocoxd import describe

    describe(nn.Linear(2, 3), tmp_path / "m")
    world = Recorded(tmp_path / "run", "--module", str(tmp_path / "m"))
    with pytest.raises(CommandRefused, match="in that loop"):
        await world.control.profile(2)
