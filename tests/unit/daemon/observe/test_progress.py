"""Speed, time left and sums over the swarm: one computation for status, dashboard and terminal."""

import os
from dataclasses import replace

from dilocoxd.answers.progress import StageSpeeds
from dilocoxd.answers.rounds import Contributor, RoundRow
from dilocoxd.daemon.observe.memory import memory_bytes
from dilocoxd.daemon.observe.progress import (
    OwnPace,
    SchedulePlace,
    flops_per_token,
    peer_state,
    progress,
    round_seconds,
)
from dilocoxd.wire.local.trainer import UNKNOWN, StageTimes
from tests.harness.synthetic.fake_view import FakeView

OWN = OwnPace(
    state="training", is_training=True, step_seconds=2.0, tokens_per_step=4096, learning_rate=1e-3, gradient_norm=0.5,
    memory_bytes=None, flops_per_token=6e6,
)  # fmt: skip
SCHEDULE = SchedulePlace(steps_done=400, steps_total=1000, inner_steps=20, chain_tokens=7)


def rows(*committed_at: float) -> list[RoundRow]:
    return [RoundRow(round=index, committed_at=at) for index, at in enumerate(committed_at)]


def test_time_left_follows_the_pace_of_rounds_and_not_one_long_wait() -> None:
    paced = rows(100.0, 150.0, 200.0, 9000.0, 9050.0, 0.0)
    assert round_seconds(paced) == 50.0
    found = progress(OWN, SCHEDULE, [], paced)
    assert (found.round_s, found.eta_s) == (50.0, 600 / 20 * 50.0)


def test_time_left_before_two_rounds_is_that_of_inner_steps() -> None:
    assert progress(OWN, SCHEDULE, [], rows(100.0, 0.0)).eta_s == 600 * 2.0


def test_the_end_of_a_run_is_where_its_tokens_are() -> None:
    share = Contributor(peer="me", phase=1, tokens=100, inner_steps=1, base_round=0)
    paced = [replace(row, contributors=(share, share)) for row in rows(100.0, 150.0, 200.0)]
    ends = replace(SCHEDULE, stop_after_tokens=1007)
    assert progress(OWN, ends, [], paced).end_s == 1000 / 200 * 50.0
    assert progress(OWN, replace(ends, chain_tokens=1007), [], paced).end_s == 0.0
    assert progress(OWN, ends, [], rows(100.0)).end_s is None, "before there is a pace"
    assert progress(OWN, SCHEDULE, [], paced).end_s is None, "it goes on until it is stopped"


def test_what_is_not_known_is_none_and_the_end_is_zero() -> None:
    unknown = progress(replace(OWN, step_seconds=0.0), replace(SCHEDULE, steps_done=None), [], [])
    assert (unknown.eta_s, unknown.round_s, unknown.tokens_per_s, unknown.swarm_tokens_per_s) == (None,) * 4
    assert unknown.model_flops_per_s is None
    assert progress(OWN, replace(SCHEDULE, steps_done=5000), [], []).eta_s == 0.0


def test_mfu_is_useful_arithmetic_over_what_the_devices_could() -> None:
    assert progress(OWN, SCHEDULE, [], []).mfu is None
    # 6 flops for each of 1M parameters and 2048 tokens/s, of 1e11.
    known = progress(replace(OWN, peak_flops_per_s=1e11), SCHEDULE, [], [])
    assert known.mfu == 6 * 1_000_000 * 2048 / 1e11


def test_what_a_step_does_not_compute_is_told_as_it_is_known() -> None:
    assert (progress(OWN, SCHEDULE, [], []).data_s, progress(OWN, SCHEDULE, [], []).bubble) == (None, None)
    found = progress(replace(OWN, data_seconds=0.25, bubble=0.125), SCHEDULE, [], [])
    assert (found.data_s, found.bubble) == (0.25, 0.125)


def test_a_cut_that_is_not_faster_saves_nothing_that_is_known() -> None:
    assert progress(OWN, SCHEDULE, [], []).stages is None
    even = progress(replace(OWN, stages=StageTimes((0.2, 0.2), (), UNKNOWN)), SCHEDULE, [], [])
    assert even.stages == StageSpeeds(compute_s=(0.2, 0.2), faster_layers=(), faster_saves=None)
    uneven = progress(replace(OWN, stages=StageTimes((0.1, 0.3), (3, 1), 0.25)), SCHEDULE, [], [])
    assert uneven.stages == StageSpeeds(compute_s=(0.1, 0.3), faster_layers=(3, 1), faster_saves=0.25)


def test_frozen_parameters_have_no_gradient_of_their_own() -> None:
    assert flops_per_token("hf", 1_000_000, 0) == 6e6
    assert flops_per_token("hf", 1_000, 1_000_000) == 6e3 + 4e6
    assert flops_per_token("hf", None, 1_000_000) is None, "before there is a layout"


def test_of_a_module_of_ones_own_arithmetic_is_not_known() -> None:
    assert flops_per_token("external", 1_000_000, 0) is None
    own = replace(OWN, flops_per_token=None, peak_flops_per_s=1e11)
    found = progress(own, SCHEDULE, [], [])
    assert (found.model_flops_per_s, found.mfu) == (None, None)
    assert found.tokens_per_s == 2048.0


def test_paused_site_has_no_speed() -> None:
    assert progress(replace(OWN, is_training=False), SCHEDULE, [], []).tokens_per_s is None


def test_sums_count_live_peers_and_this_site() -> None:
    view = FakeView(10)
    found = progress(OWN, SCHEDULE, view.peers(), [])
    assert found.tokens_per_s == 2048.0
    assert found.swarm_tokens_per_s == 2048.0 + 2 * 6000
    assert found.sites == {"training": 3}
    view.live.pop()
    found = progress(OWN, SCHEDULE, view.peers(), [])
    assert found.swarm_tokens_per_s == 2048.0 + 6000
    assert found.sites == {"training": 2, "dead": 1}


def test_peer_that_said_goodbye_is_not_dead() -> None:
    peer = FakeView(10).peers()[0]
    assert peer_state(replace(peer, state="left", is_live=False)) == "left"
    assert peer_state(replace(peer, state="catching_up")) == "catching_up"
    assert peer_state(replace(peer, state="training", is_live=False)) == "dead"


def test_memory_of_this_process_is_found_and_of_none_unknown() -> None:
    found = memory_bytes([os.getpid(), 2**22 + 1])
    assert found is not None and 10 << 20 < found < 64 << 30
    assert memory_bytes([2**22 + 1]) is None
