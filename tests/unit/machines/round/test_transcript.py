"""A recorded life of the round machine is played again with the same commands; damage and differences are noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dilocoxd.cli.declared.replay import replay
from dilocoxd.daemon.round.recorder import Recorder
from dilocoxd.daemon.round.signing import vote_keys
from dilocoxd.errors import ConfigError, StoreError
from dilocoxd.ids import Attempt, Digest, Monotonic, RoundIndex
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.exchange.facts import PassPrepared
from dilocoxd.machines.limits import Ourselves, RoundLimits
from dilocoxd.machines.round import inputs as e
from dilocoxd.machines.round.outputs import KeptPromise, Promise
from dilocoxd.machines.transcript import FORMAT, Input, Opening, Outcome, Player, decode, encode
from dilocoxd.store.recording import FILES_KEPT, Recording, read_records, recordings
from dilocoxd.swarm.discovery.identity import Identity, is_signed_by
from tests.conformance.test_round_vectors import GENESIS, LOADED, RUN_ID, SHAPE, event_of, identities

__all__ = ["identities"]

ROW = LOADED["transcripts"][0]
SOUND = PassPrepared(RoundIndex(0), Attempt(0), SHAPE.num_passes, ())
"""The own worker's word on the results; golden transcripts leave it out."""
EVENTS = [
    given
    for step in ROW["steps"]
    for given in ([event_of(step["event"])] + ([SOUND] if any("vote" in text for text in step["does"]) else []))
]


def recorded(directory: Path, identities: dict[str, Identity], bytes_max: int = 1 << 20, *, dies: bool = False) -> Path:
    """The file of a machine that lived through a golden transcript."""
    identity = identities[ROW["subject"]]
    state = Digest(bytes.fromhex(LOADED["state_digest"]))
    chain = ChainView(RUN_ID, RoundIndex(0), GENESIS, state, inner_steps=LOADED["inner_steps"])
    recording = Recording(directory, bytes_max)
    recorder = Recorder(recording)
    site = Ourselves(identity.peer_id, RUN_ID, GENESIS, vote_keys(identity, GENESIS))
    recorder.open_machine(site, SHAPE, RoundLimits(**LOADED["caps"]), chain, None)
    for number, given in enumerate(EVENTS):
        recorder.handle(given, Monotonic(number / 100))
    if dies:
        with pytest.raises(AssertionError, match="Started while"):
            recorder.handle(e.Started(), Monotonic(99.0))
    recorder.close()
    return recording.path


def test_everything_that_goes_into_a_machine_survives_the_way(identities: dict[str, Identity]) -> None:
    chain = ChainView(RUN_ID, RoundIndex(0), GENESIS, GENESIS)
    promise = Promise(RoundIndex(3), GENESIS, 1, 0, None, ("a", "b"), ())  # type: ignore[arg-type]
    opening = Opening(FORMAT, "1", "QmA", RUN_ID, GENESIS, SHAPE, RoundLimits(), chain, KeptPromise(promise, True))  # type: ignore[arg-type]
    assert decode(encode(opening)) == opening
    for number, step in enumerate(step for row in LOADED["transcripts"] for step in row["steps"]):
        given = Input(number / 7, event_of(step["event"]))
        assert decode(encode(given)) == given


def test_recorded_life_is_played_again_with_the_same_commands(tmp_path: Path, identities: dict[str, Identity]) -> None:
    path = recorded(tmp_path / "logs", identities)
    assert path.stat().st_size < 16 << 10
    result = CliRunner().invoke(replay, [str(tmp_path)], standalone_mode=False, catch_exceptions=False)
    assert result.return_value == 0
    assert f"{len(EVENTS)} events, commands as recorded" in result.output
    assert "PersistEntry(" in result.output and "waits for" in result.output
    last = CliRunner().invoke(replay, [str(path), "--last", "2", "--json"], standalone_mode=False)
    assert last.output.count('"waiting_for"') == 2


def test_event_that_broke_the_machine_is_in_the_recording(tmp_path: Path, identities: dict[str, Identity]) -> None:
    path = recorded(tmp_path / "logs", identities, dies=True)
    with pytest.raises(AssertionError, match="Started while"):
        CliRunner().invoke(replay, [str(path)], standalone_mode=False, catch_exceptions=False)


def test_other_commands_than_recorded_are_noticed(tmp_path: Path, identities: dict[str, Identity]) -> None:
    records = [decode(data) for data in read_records(recorded(tmp_path / "logs", identities))]
    player = Player(records[0], is_signed_by)  # type: ignore[arg-type]
    verdicts = []
    for given, outcome in zip(records[1::2], records[2::2], strict=True):
        assert isinstance(given, Input) and isinstance(outcome, Outcome)
        is_changed = isinstance(given.event, e.PhaseOffered)
        changed = Outcome(outcome.fingerprint ^ is_changed, outcome.signatures)
        verdicts.append(player.play(given, changed)[1] != is_changed)
    assert all(verdicts)


def test_torn_end_is_left_out_and_other_files_are_refused(tmp_path: Path, identities: dict[str, Identity]) -> None:
    path = recorded(tmp_path / "logs", identities)
    whole, data = list(read_records(path)), path.read_bytes()
    for cut in range(0, len(data), 97):
        path.write_bytes(data[:cut])
        found = list(read_records(path))
        assert found == whole[: len(found)]
    path.write_bytes(b"something else")
    with pytest.raises(StoreError, match="no recording"):
        list(read_records(path))
    with pytest.raises(StoreError, match="does not decode"):
        decode(b"\xc1")


def test_recordings_are_limited_in_size_and_number(tmp_path: Path, identities: dict[str, Identity]) -> None:
    for _ in range(FILES_KEPT + 2):
        path = recorded(tmp_path / "logs", identities, bytes_max=1500)
        assert path.stat().st_size < 1500 + 4096
    assert len(recordings(tmp_path / "logs")) == FILES_KEPT
    assert recordings(tmp_path / "logs")[-1].stem == "000005"
    Player(decode(next(read_records(path))), is_signed_by)  # type: ignore[arg-type]


def test_missing_recording_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no recording"):
        CliRunner().invoke(replay, [str(tmp_path)], standalone_mode=False, catch_exceptions=False)
