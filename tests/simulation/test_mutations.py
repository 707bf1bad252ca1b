"""The simulator still sees: bugs that directed schedules find; all with `python -m tests.simulation.mutations`."""

from pathlib import Path

import pytest

from dilocoxd.machines.round.locks import VoteBox
from tests.simulation.mutations import BUGS
from tests.simulation.planting import caught_by, replaced
from tests.simulation.schedules.directed import SCENARIOS


@pytest.mark.parametrize("name", BUGS)
def test_what_a_planted_bug_replaces_is_still_there(name: str) -> None:
    with BUGS[name]():
        pass  # AttributeError if its name is gone


def test_a_bug_that_does_not_fit_what_it_replaces_is_none_that_was_found() -> None:
    misfit = replaced(VoteBox, "tally", lambda self: None)
    with pytest.raises(TypeError):
        caught_by(misfit, first_seed=0, num_seeds=0, scenarios=SCENARIOS[:1])


def test_the_page_of_the_simulator_says_how_many_there_are() -> None:
    page = Path(__file__).parents[2] / "docs" / "simulation.md"
    assert f"\n{len(BUGS)} bugs, none survives" in page.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scenario"),
    [
        ("promise is not written", "voter_restarts_after_a_lone_commit"),
        ("a restarted voter asks nobody", "restarted_voter_asks_before_it_finishes"),
        ("an older message takes back a claim", "overtaken_message_does_not_hide_a_commit"),
        ("a false branch is not left", "false_branch_is_left_again"),
        ("no deadline is set", "voter_restarts_after_a_lone_commit"),
        ("a final entry is left", "halves_beyond_final_entries_wait_for_the_operator"),
        ("what is final on another branch is final here", "shallow_half_follows_by_itself"),
        ("the operator's word is forgotten in a crash", "who_dies_while_it_adopts_is_adopted_after_all"),
        ("probation is ignored when peers are counted", "majority_of_fresh_ids_is_none"),
        ("the ramp is ignored", "weight_rises_with_every_entry"),
        ("entries of fresh ids alone are taken", "fresh_ids_alone_wait_for_a_member"),
        ("a minority takes an entry back", "minority_takes_nothing_back"),
        ("an entry that was taken back is kept", "heavier_branch_with_it_is_not_taken"),
        ("a lock on an entry that was taken back is finished", "spoiling_entry_is_taken_back"),
        ("work in an entry that was taken back is owed", "spoiling_entry_is_taken_back"),
        ("attempts begin anew after an entry was taken back", "spoiling_entry_is_taken_back"),
        (
            "those who voted twice count nowhere, even if nobody else does",
            "majority_of_those_who_voted_twice_is_still_needed",
        ),
        ("who hangs keeps those who voted twice waiting", "who_voted_twice_goes_on_where_the_others_hang"),
        ("ids that sort first have the seats", "ids_that_sort_first_take_nobodys_seat"),
        ("who did not offer may be named", "who_did_not_offer_is_named_by_nobody"),
        ("a false result is voted against by nobody", "false_result_is_taken_back"),
        ("an old false result is taken back", "what_is_found_too_late_stays"),
        ("who made a false result is proposed", "who_lies_always_is_left_out"),
        ("who raises attempts is always followed", "who_raises_attempts_alone_is_not_followed"),
        ("who is needed for a majority is suspected", "who_is_needed_for_a_majority_is_followed"),
        ("who never votes is asked again", "who_is_locked_and_never_votes_stops_no_round"),
        ("strangers are not believed", "run_is_joined_although_its_records_are_lost"),
        ("strangers are not asked", "one_that_only_talks_to_us_is_asked"),
        ("who is not known yet is lost", "who_has_not_heard_of_the_others_is_named_with_them"),
        (
            "false results use up what is for entries that spoil",
            "entry_that_spoils_is_taken_back_after_three_false_ones",
        ),
        ("what is shown late is taken back again and again", "lies_that_are_shown_late_undo_few_rounds"),
        (
            "who was silent once is never waited for again",
            "who_gives_attempts_up_and_goes_on_stops_no_round",
        ),
        ("ghosts are waited for in each round", "silent_ghosts_are_waited_for_once"),
        ("who coordinates waits for itself in each round", "slow_coordinator_waits_for_itself_once"),
        ("who says of most that they do nothing goes first", "ready_ghosts_that_are_most_are_left_out"),
        ("who goes on in time is not blamed", "ready_ghosts_that_are_most_are_left_out"),
        ("who is silent is waited for anew in each attempt", "lone_member_restarts_beside_silent_ghosts"),
        ("who answers has had its time all the same", "lone_branch_from_genesis_is_left_again"),
        ("who gives slowly is asked for each payload", "donors_within_half_of_their_time_do_not_hold_a_newcomer"),
        ("states on the way are not compared", "lone_branch_from_genesis_is_left_again"),
        ("who trickles is waited for before the others", "slow_donor_does_not_hold_a_newcomer"),
        (
            "the grace goes on while a peer stands still",
            "coordinator_that_stands_still_in_the_grace_hears_the_others_first",
        ),
        (
            "no time-out is moved after standing still",
            "coordinator_that_stands_still_in_the_grace_hears_the_others_first",
        ),
    ],
)
def test_planted_bug_is_caught_by_its_directed_schedule(name: str, scenario: str) -> None:
    named = [one for one in SCENARIOS if one.__name__ == scenario]
    assert caught_by(BUGS[name], first_seed=0, num_seeds=0, scenarios=named) is not None
