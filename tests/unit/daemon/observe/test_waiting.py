"""What a site waits for, as words behind `waits for`, and how far that is."""

import dataclasses

import pytest

from dilocoxd.answers.members import Member
from dilocoxd.answers.nodes import (
    NodePart,
    NodeReceives,
    Nodes,
    NodeSends,
    NodeStage,
    UnreachedSite,
    node_wait,
    nodes_in_words,
)
from dilocoxd.daemon.observe.status import MAJORITY, site_wait, with_evicted
from dilocoxd.daemon.site.interface import SiteStatus
from dilocoxd.daemon.site.progress import SiteProgress
from dilocoxd.ids import PeerId, PhaseId, RoundIndex
from dilocoxd.machines.round.grouping import missing_majority
from dilocoxd.wire.local import trainer as local_trainer
from dilocoxd.wire.local.worker import WorkerAlive


def site(waiting_for: str, doing: str) -> SiteStatus:
    return SiteStatus(
        waiting_for, False, None, 0, 0, 0, None, 0.0, 0.0, 0.0, 0, None, None, None, None, {}, doing=doing
    )


@pytest.mark.parametrize(
    ("alive", "said"),
    [
        (WorkerAlive(doing="data: tokenised 64 of 502 chunks", per_mille=0), "data: tokenised 64 of 502 chunks"),
        (WorkerAlive(doing="evaluate", per_mille=425), "evaluate 42 %"),
    ],
)
def test_long_work_of_the_trainers_is_told_with_how_far_it_is(alive: WorkerAlive, said: str) -> None:
    progress = SiteProgress()
    progress.take(alive)
    assert site_wait(site("the trainers to start", progress.doing)) == f"the trainers to start ({said})"
    progress.take(local_trainer.Evaluated(RoundIndex(0), 3.0, 1.0))
    assert progress.doing == ""


def test_what_is_busy_without_being_waited_for_is_not_told() -> None:
    assert site_wait(site("", "evaluate 42 %")) == ""
    assert site_wait(site("the validation loss", "")) == "the validation loss"


def test_a_phase_keeps_no_old_work() -> None:
    progress = SiteProgress(doing="data: reading")
    progress.take(local_trainer.StepDone(PhaseId(1), 1, 1, 3.0, 64, 0.1, 0.0))
    assert progress.doing == ""


def test_parts_on_nodes_are_told_in_a_line() -> None:
    assert nodes_in_words(None) == ""
    places = [(1, "gpu-2 (10.0.0.12)", "running"), (2, "gpu-2 (10.0.0.12)", "running"), (3, "", "waiting")]
    parts = tuple(NodePart(part=p, node=node, state=state, since=0.0) for p, node, state in places)  # type: ignore[arg-type]
    said = nodes_in_words(Nodes(parts=parts, stages=(), free_places=1, refused=2, refused_from="10.0.0.9"))
    assert said == (
        "2 of 3 outer parts running on gpu-2 (10.0.0.12); 1 free place; 2 connections refused, the last from 10.0.0.9:"
        " the node key or the version there is another one"
    )
    assert nodes_in_words(Nodes(parts=parts[2:], stages=(), free_places=0, refused=0, refused_from="")) == (
        "0 of 1 outer part running"
    )
    sends = NodeSends(
        payloads=34, bytes=9, payloads_by_head=1_002, bytes_by_head=9, reached=("a",),
        unreached=(UnreachedSite(peer_id="b", reason="silent"),),
    )  # fmt: skip
    sending = dataclasses.replace(parts[0], sends=sends)
    said = nodes_in_words(Nodes(parts=(sending,), stages=(), free_places=0, refused=0, refused_from=""))
    assert said == (
        "1 of 1 outer part running on gpu-2 (10.0.0.12); 34 payloads sent by nodes, 1,002 in their place by the head,"
        " 1 site not reached by all"
    )
    small = Nodes(
        parts=parts[2:], stages=(), free_places=0, refused=1, refused_from="10.0.0.9", refused_why="too small"
    )
    assert nodes_in_words(small).endswith("1 connection refused, the last from 10.0.0.9: too small")
    assert node_wait(small).endswith("a connection from 10.0.0.9 was refused: too small")
    receives = NodeReceives(
        payloads=1, bytes=9, payloads_by_head=1_003, bytes_by_head=9, rejected=2, addresses=(), reason=""
    )
    receiving = dataclasses.replace(parts[0], receives=receives)
    said = nodes_in_words(Nodes(parts=(receiving,), stages=(), free_places=0, refused=0, refused_from=""))
    assert said == (
        "1 of 1 outer part running on gpu-2 (10.0.0.12); 1 payload received by nodes, 1,003 in their place by the head,"
        " 2 bad inputs refused"
    )
    stage = NodeStage(stage=1, node="gpu-3", state="running", since=0.0)
    said = nodes_in_words(Nodes(parts=(), stages=(stage,), free_places=0, refused=0, refused_from=""))
    assert said == "1 of 1 pipeline stage running on gpu-3"


def test_stages_without_a_node_are_told_like_parts() -> None:
    part = NodePart(part=1, node="gpu-3", state="waiting", since=0.0)
    stages = [NodeStage(stage=each, node="gpu-3", state="waiting", since=5.0) for each in (2, 3)]
    said = node_wait(Nodes(parts=(part,), stages=tuple(stages), free_places=0, refused=0, refused_from=""))
    assert said.startswith("the node gpu-3 with outer part 1 and stage 2, 3, gone since 1970-01-01T")
    nobody = NodeStage(stage=1, node="", state="waiting", since=0.0)
    said = node_wait(Nodes(parts=(), stages=(nobody,), free_places=0, refused=0, refused_from=""))
    assert said.startswith("a machine for stage 1 since ") and said.endswith("start `dilocoxd node` on one")


def test_head_that_has_another_address_is_told_so_and_not_to_look_at_the_node_alone() -> None:
    part = NodePart(part=1, node="gpu-3", state="waiting", since=0.0)
    missed = Nodes(parts=(part,), stages=(), free_places=0, refused=0, refused_from="", lost_address="10.0.0.10")
    assert "; this machine has cluster.host = 10.0.0.10 no more: give it back that address, or give the new one" in (
        node_wait(missed)
    )


def member(peer: str, state: str) -> Member:
    return Member(peer_id=peer, name=peer, state=state, serial="1", role="", uses=None, invite_expires_unix=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("evicted", "said"),
    [
        ("", ""),
        ("x", ""),
        ("d", "; 1 of them is evicted and still counts (d)"),
        ("cd", "; 2 are evicted and still count (c, d), so no majority can come: go on in a new run,"
               " `dilocoxd start --from RUN_DIR`"),
    ],
)  # fmt: skip
def test_those_who_cannot_come_back_are_named_where_a_majority_is_missing(evicted: str, said: str) -> None:
    electorate = frozenset(map(PeerId, "abcd"))
    text = missing_majority({PeerId("a")}, electorate)
    assert text.startswith(MAJORITY)
    members = [*(member(peer, "member") for peer in "ab"), *(member(peer, "evicted") for peer in evicted)]
    assert with_evicted(text, electorate, members) == text + said


def test_who_was_invited_again_can_come_back() -> None:
    members = [member("c", "member"), member("c", "evicted")]
    assert with_evicted(MAJORITY, frozenset(map(PeerId, "abc")), members) == MAJORITY
