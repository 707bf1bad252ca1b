"""Writes down every event of the round machine, so that `dilocoxd replay` can play this daemon's life again."""

from dilocoxd import __version__
from dilocoxd.ids import Monotonic
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.limits import Ourselves, PayloadShape, RoundLimits
from dilocoxd.machines.round.inputs import Event
from dilocoxd.machines.round.machine import RoundMachine
from dilocoxd.machines.round.outputs import Command, KeptPromise
from dilocoxd.machines.transcript import FORMAT, Input, Opening, Outcome, encode, fingerprint, recording_keys
from dilocoxd.store.recording import Recording
from dilocoxd.wire.entry import SignedVote


class Recorder:
    """Between the driver and its machine. `recording` None: nothing is written."""

    def __init__(self, recording: Recording | None) -> None:
        self._recording = recording
        self._signed: list[SignedVote] = []
        self.machine: RoundMachine

    def open_machine(
        self, site: Ourselves, shape: PayloadShape, limits: RoundLimits, chain: ChainView, kept: KeptPromise | None
    ) -> RoundMachine:
        """The machine whose life is recorded from here on."""
        keys = recording_keys(site.keys, self._signed.append)
        recorded = Ourselves(site.me, site.run_id, site.genesis, keys)
        if self._recording is not None:
            opening = Opening(FORMAT, __version__, site.me, site.run_id, site.genesis, shape, limits, chain, kept)
            self._recording.write(encode(opening))
        self.machine = RoundMachine(recorded, shape, limits, chain, kept)
        return self.machine

    def handle(self, event: Event, now: Monotonic) -> list[Command]:
        """`RoundMachine.handle`, written down: the event before, what came of it after."""
        recording = self._recording
        if recording is None or recording.is_full:
            self._signed.clear()
            return self.machine.handle(event, now=now)
        recording.write(encode(Input(now, event)))
        ordered = self.machine.handle(event, now=now)
        recording.write(encode(Outcome(fingerprint(ordered), tuple(self._signed))))
        self._signed.clear()
        return ordered

    def close(self) -> None:
        """The daemon ends."""
        if self._recording is not None:
            self._recording.close()
