"""What commands print, as whole screens: readable at 80 columns, everything in a pipe, no borders, nothing cut."""

import re
import time
from dataclasses import replace

import pytest
from click import unstyle

from dilocoxd.answers.alerts import StandingAlert
from dilocoxd.answers.peers import Peer, PeerNode, Probation
from dilocoxd.answers.progress import StageSpeeds
from dilocoxd.answers.rounds import RoundRow
from dilocoxd.answers.status import Status
from dilocoxd.cli.doctor.command import screen
from dilocoxd.cli.doctor.findings import Finding
from dilocoxd.cli.screens.peers import peers_screen
from dilocoxd.cli.screens.rounds import rounds_screen
from dilocoxd.cli.screens.status import schedule, status_screen
from tests.harness.shapes import changed
from tests.harness.synthetic.fake_view import FakeView

VIEW = FakeView(7)
ALERT = StandingAlert(code="clock_skew", severity="warning", text="clock is off by 12 s", remedy="start NTP", since=1.0)
ID = "QmV3nFQT4Rz4oTBvXxPZrp8RV3iQWbyZAgNPJX42n7s"


def status() -> Status:
    found = changed(
        VIEW.status(), name="home", peer_id=ID, state="training", waiting_for="", uptime_s=3700.0,
        addresses=("/ip4/10.0.0.1/tcp/31337",), progress__steps_done=120, progress__steps_total=20_000,
        progress__eta_s=7500.0, progress__round_s=41.7, progress__tokens_per_s=1240.4,
        progress__swarm_tokens_per_s=7240.4, progress__swarm_tokens=1_234_567, progress__learning_rate=0.0003,
        progress__gradient_norm=0.913, progress__memory_bytes=1_250_000_000,
        progress__sites={"training": 2, "dead": 1}, totals__idle_s=1.0, totals__train_s=99.0,
        peers__took_part_last_round=2, peers__missed_last_round=1, alerts=(ALERT,),
    )  # fmt: skip
    assert isinstance(found, Status)
    return found


def sites() -> list[Peer]:
    one, two = VIEW.peers()
    return [
        replace(one, name="attic", tokens_per_s=6000, last_seen_s=0.4),
        replace(two, name="garage~r581Vz", state="dead", is_live=False, tokens_per_s=None, last_seen_s=90.0,
                took_part_last_round=False, addresses=()),
    ]  # fmt: skip


def test_who_is_on_probation_is_told_so() -> None:
    wait = "2 such sites for 1 place in a round, who took part most often first"
    found = replace(status(), probation=Probation(rounds_done=3, rounds=16), place_wait=wait)
    told = status_screen(found, [replace(sites()[0], probation=Probation(rounds_done=1, rounds=16))], 200)
    assert f"new here   on probation: 3 of 16 rounds; it weighs less, and counts in no majority; {wait}" in told
    assert "training, on probation: 1 of 16 rounds" in told


def test_behind_the_schedule_no_part_of_it_is_told() -> None:
    """It was `step 3,840 of 2,000 (192.0%), schedule done`, of a run that goes on until it is stopped."""
    found = changed(status(), progress__steps_done=3840, progress__steps_total=2000, progress__eta_s=0.0)
    assert schedule(found) == "step 3,840, learning rate at its lowest; outer step 7"


def test_a_run_with_an_end_tells_the_way_to_it() -> None:
    found = changed(status(), progress__stop_after_tokens=2_000_000, progress__end_s=7500.0)
    said = "1,234,567 of 2,000,000 tokens (61.7%), 2 h 5 min to the end of the run; step 120; outer step 7"
    assert schedule(found) == said
    over = changed(found, progress__swarm_tokens=2_100_000, progress__end_s=0.0)
    assert schedule(over) == "2,100,000 of 2,000,000 tokens, at the end of the run; step 120; outer step 7"


def test_status_is_in_the_words_of_an_operator() -> None:
    assert status_screen(status(), [], 80).splitlines() == [
        "run        fake-0123456789abcdef",
        f"site       home  {ID}",
        "state      training",
        "waits for  nothing",
        "progress   step 120 of 20,000 (0.6%), learning rate falls for 2 h 5 min more;",
        "           outer step 7",
        "speed      1,240 tok/s here, 7,240 tok/s together, 1.2 s a step, 42 s a round",
        "loss       3.200 here, shared model 3.400 at round 7, perplexity 30.0",
        "learning   rate 0.0003, gradient norm 0.91",
        "round      7 exchanging, attempt 0, 2 of 3 sites in the one before (a smaller",
        "           step)",
        "phase      step 7 of 20",
        "swarm      2 training, 1 dead; 1,234,567 tokens in the model",
        "given      7 rounds of 7, 1,146,880 tokens since the start",
        "traffic    7.0 MB up, 10.5 MB down since the start",
        "samples    448 read and 7 a second time",
        "audits     21 sums made again, 0 false, 280.0 kB; 1 not compared",
        "trainers   waited 1.0% of the time, 12 ms of a step for data, 21.0% for other",
        "           stages",
        "model      10,000,000 parameters, 400.0 kB an exchange (100 x less than fp32)",
        "memory     1.2 GB",
        "up         1 h 1 min, version 0.1.0",
        "",
        "alert clock_skew (warning): clock is off by 12 s; start NTP",
    ]


def test_status_of_a_site_that_has_not_begun_says_what_is_not_known() -> None:
    young = changed(
        status(), state="preparing", waiting_for="the trainers to start (data: tokenised 64 of 502 chunks)",
        phase__phase=None, phase__step_seconds=0.0, losses__inner=None, losses__validation=None, payload=None,
        progress__steps_done=None, progress__tokens_per_s=None, progress__swarm_tokens_per_s=None,
        progress__round_s=None, progress__learning_rate=None, progress__memory_bytes=None, totals__idle_s=0.0,
        totals__train_s=0.0, alerts=(), peers__missed_last_round=0,
    )  # fmt: skip
    assert status_screen(young, [], 80).splitlines()[2:9] == [
        "state      preparing",
        "waits for  the trainers to start (data: tokenised 64 of 502 chunks)",
        "progress   outer step 7",
        "speed      - here, - together",
        "loss       - here, shared model not measured yet",
        "round      7 exchanging, attempt 0, 2 sites in the one before",
        "swarm      2 training, 1 dead; 1,234,567 tokens in the model",
    ]


def test_a_cut_that_would_be_faster_stands_beside_the_waits() -> None:
    stages = StageSpeeds(compute_s=(0.1, 0.3), faster_layers=(6, 2), faster_saves=0.284)
    told = status_screen(changed(status(), progress__stages=stages), [], None)
    assert "21.0% for other stages, layers_per_stage = [6, 2] would save 28% of a step\n" in told
    assert "layers_per_stage" not in status_screen(status(), [], None)


def test_peers_begin_with_this_site_and_fit_a_terminal() -> None:
    assert peers_screen(status(), sites(), 80).splitlines() == [
        "site           state     outer step  behind  last round  seen            tok/s",
        "home (here)    training           7       -  yes         -               1,240",
        "attic          training           7       -  yes         0.4 s ago       6,000",
        "garage~r581Vz  dead               6       1  no          1 min 30 s ago      -",
        "(with --wide: loss, step, link, by, address, peer id)",
    ]


def test_a_site_that_catches_up_says_so_in_its_own_row_and_nothing_of_rounds_that_it_does_not_have() -> None:
    """Its row said nothing of how far it is behind, and that others, who train, had missed the last round."""
    behind = replace(status(), state="catching_up", height=3, rounds_behind=4, took_part_last_round=None)
    others = [replace(one, rounds_behind=3 - one.height, took_part_last_round=False) for one in sites()]
    assert peers_screen(behind, others, 80).splitlines() == [
        "site           state        outer step  behind  seen            tok/s",
        "home (here)    catching up           3       4  -               1,240",
        "attic          training              7       -  0.4 s ago       6,000",
        "garage~r581Vz  dead                  6       -  1 min 30 s ago      -",
        "(with --wide: last round, loss, step, link, by, address, peer id)",
    ]
    wide = peers_screen(behind, others, None).splitlines()
    column = wide[0].index("last round")
    assert [line[column:].split()[0] for line in wide[1:]] == ["-", "-", "-"]


def test_a_pipe_gets_every_column_whole_and_a_narrow_terminal_what_matters() -> None:
    wide = peers_screen(status(), sites(), None)
    assert ID in wide and "/ip4/10.0.0.1/tcp/31337" in wide and "2.5 MB/s" in wide and "(with" not in wide
    assert all(not line.endswith(" ") for line in wide.splitlines())
    column = wide.splitlines()[0].index(" loss") + len(" loss")
    told = [line[:column].rpartition(" ")[2] for line in wide.splitlines()[1:]]
    assert told == ["3.200", "2.125", "-"], "what this site measures, what one tells, and what one does not tell"
    attic, *others = sites()
    hidden = replace(attic, has_data=False, way="relay")
    assert "2.5 MB/s  relay" in peers_screen(status(), [hidden, *others], None)
    nodes = [
        PeerNode(addresses=("10.0.0.2:1",), first_segment=0, stop_segment=9, is_reached=is_reached, reason="")
        for is_reached in (True, False, True)
    ]
    told = peers_screen(status(), [replace(attic, nodes=tuple(nodes)), *others], None)
    assert "2.5 MB/s  data, 2 of 3 nodes  /ip4" in told
    narrow = peers_screen(status(), sites(), 30).splitlines()
    assert narrow[:2] == ["site           state     tok/s", "home (here)    training  1,240"]


FOUND = [
    Finding("port_network", "error", "0.0.0.0 port 31337 is taken by another program, 23.0 GB of memory are free"),
    Finding("bootstrap", "ok", f"/ip4/198.51.100.7/tcp/31337/p2p/{ID}"),
]
LONG_REASON = "attempt 0: attic did not answer within 12 s, and garage sent a result that nobody could read"
NUMBER_OF_NEXT_LINE = re.compile(r"^(B|kB|MB|GB|ms|s|min|h|d|tok/s|x)\b")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_screen_is_wider_than_its_terminal_or_cuts_anything(width: int) -> None:
    """What follows `(with --wide` and reasons of failures were broken by the terminal in the middle of words, a number
    and its unit stood on two lines, and the doctor cut addresses: `/ip4/198.51.`.
    """
    rows = [*reversed(VIEW.rounds(0, 7)), replace(VIEW.rounds(5, 1)[0], failures=(LONG_REASON,))]
    screens = {
        "status": status_screen(status(), sites(), width), "peers": peers_screen(status(), sites(), width),
        "rounds": rounds_screen(rows, width), "doctor": unstyle(screen(FOUND, width)),
    }  # fmt: skip
    for name, text in screens.items():
        lines = [line.strip() for line in text.splitlines()]
        long = [line for line in text.splitlines() if len(line) > width and " " in line.strip()]
        assert not long, f"{name} at {width} columns: {long}"
        assert not [line for line in lines if NUMBER_OF_NEXT_LINE.match(line)], text
        assert not set(text) & set("\u2502\u2503\u2500\u2501\u2026")
    assert LONG_REASON in " ".join(screens["rounds"].split())
    told = " ".join(screens["doctor"].split())
    assert all(f"{one.check} {one.level} {one.text}" in told and one.remedy in told for one in FOUND)


def test_findings_stand_beside_their_names_where_there_is_room() -> None:
    assert unstyle(screen(FOUND[:1], 80)).splitlines()[:2] == [
        "port_network  error    0.0.0.0 port 31337 is taken by another program, 23.0 GB",
        "                       of memory are free",
    ]
    assert unstyle(screen(FOUND[:1], 40)).splitlines()[:2] == [
        "port_network  error", "  0.0.0.0 port 31337 is taken by another",
    ]  # fmt: skip


def test_rounds_at_80_columns() -> None:
    at = time.mktime((2026, 11, 22, 14, 6, 2, 0, 0, -1))
    row = replace(VIEW.rounds(5, 1)[0], committed_at=at, failures=("attempt 0: attic did not answer",))
    assert rounds_screen([row, RoundRow(round=6)], 80).splitlines() == [
        "round  committed  sites  we   attempts  gather  exchange      up    down   idle",
        "    5  14:06:02       3  yes         1   2.0 s      14 s  1.0 MB  1.5 MB  0.2 s",
        "    attempt 0: attic did not answer",
        "    6  -              -  -           -       -         -       -       -      -",
        "(with --wide: apply)",
    ]
