"""The newest profile that an operator asked for: what came of it, as the ranks tell (trainer/profiling.py).

Files are the ranks' own, and so are those of ranks on nodes there.
"""

from dataclasses import replace
from pathlib import Path

from dilocoxd.answers.site import PROFILE_UNDER_WAY, ProfileStatus
from dilocoxd.answers.words import in_bytes, plural
from dilocoxd.ipc.dated_folders import stamp
from dilocoxd.ipc.profile_files import profiles_folder, trace_name
from dilocoxd.telemetry import catalogue
from dilocoxd.wire.local.trainer import Profile, TraceBegun, TraceWritten

Ended = catalogue.ProfileWritten | catalogue.ProfileFailed


class Profiling:
    """One profile at a time; `shown` is what operators see."""

    def __init__(self) -> None:
        self.shown = ProfileStatus()
        self._num_ranks = self._num_here = 0
        self._prefix = ""
        self._written: dict[int, TraceWritten] = {}

    @property
    def is_under_way(self) -> bool:
        """A second one must wait."""
        return self.shown.state in PROFILE_UNDER_WAY

    def begin(self, steps: int, run_directory: Path, num_ranks: int, num_away: int = 0) -> Profile:
        """What stage rank 0 is to be told; `num_ranks` answers are awaited. `num_away`: ranks on nodes, the last."""
        self._num_ranks, self._num_here, self._written = num_ranks, num_ranks - num_away, {}
        self._prefix = stamp()
        self.shown = ProfileStatus(state="waiting", steps=steps, text="waiting for the next inner step")
        return Profile(steps, str(profiles_folder(run_directory).absolute() / self._prefix))

    def step_done(self, global_step: int) -> None:
        """An inner step has ended."""
        shown = self.shown
        if shown.state != "recording" or global_step < shown.first_step:
            return
        recorded = min(shown.steps, global_step - shown.first_step + 1)
        text = f"recorded {recorded} of {plural(shown.steps, 'inner step')}"
        self.shown = replace(shown, recorded_steps=recorded, text=text)

    def take(self, message: TraceBegun | TraceWritten) -> Ended | None:
        """What a rank says; the event, when it is the last word."""
        if not self.is_under_way:
            return None  # of a profile that was given up
        if isinstance(message, TraceBegun):
            self._begun(message.first_step)
            return None
        self._written[message.stage_rank] = message
        return self._end() if len(self._written) >= self._num_ranks else None

    def lost(self) -> None:
        """The trainers that recorded are gone; the event that tells why is theirs."""
        if self.is_under_way:
            text = "the trainers ended before it was written; it is not tried again"
            self.shown = replace(self.shown, state="failed", text=text)

    def _begun(self, first_step: int) -> None:
        folder = f"profiles/{self._prefix}-step{first_step}"
        text = f"recording, from inner step {first_step} on"
        self.shown = replace(self.shown, state="recording", first_step=first_step, folder=folder, text=text)

    def _end(self) -> Ended:
        bad = next((one for rank, one in sorted(self._written.items()) if one.problem), None)
        first = next(iter(self._written.values()))
        if bad is not None:
            problem = f"rank {bad.stage_rank}: {bad.problem}"
            self.shown = replace(self.shown, state="failed", text=f"{problem}; training goes on")
            return catalogue.ProfileFailed(reason=problem)
        if self.shown.state != "recording":
            self._begun(first.first_step)  # that rank's message is still under way
        size = sum(one.size_bytes for one in self._written.values())
        text = f"{plural(first.steps, 'inner step')} of {plural(self._num_ranks, 'rank')}, {in_bytes(size)}"
        if first.steps < self.shown.steps:
            text += f" ({self.shown.steps} were asked for; a pause ended it)"
        if self._num_here < self._num_ranks:
            last, is_one = self._num_ranks - 1, self._num_ranks - self._num_here == 1
            those = (
                f"that of rank {last} lies on its node"
                if is_one
                else (f"those of ranks {self._num_here} to {last} lie on their nodes")
            )
            text += f"; {those}, in stages/*/profiles below the folder of `dilocoxd node`"
        files = tuple(trace_name(rank) for rank in sorted(self._written) if rank < self._num_here)
        self.shown = replace(
            self.shown, state="written", recorded_steps=first.steps, files=files, total_bytes=size, text=text
        )
        return catalogue.ProfileWritten(
            folder=self.shown.folder, first_step=first.first_step, steps=first.steps, total_bytes=size
        )
