"""One swarm of containers on separate shaped networks goes through everything an operator's week may bring, in order.

Every site is the image that docker/Dockerfile makes. Each test prints what it measured.
"""

import time

import pytest

from tests.containers.engine import docker, say
from tests.containers.networks import address, in_network_of
from tests.containers.swarm import GRACE_S, SITES, SwarmOfContainers

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(3600)]

PAUSE_ROUNDS = 2


def test_three_sites_on_separate_networks_join_by_one_address_and_train(swarm: SwarmOfContainers) -> None:
    started = time.monotonic()
    swarm.found("a")
    swarm.wait(lambda: swarm.height("a") >= 1, "a trains")
    alone_s = time.monotonic() - started
    swarm.internet.only_outgoing(SITES["c"].network)
    swarm.join("b", "a")
    swarm.join("c", "a", relays=("a", "b"))
    swarm.wait_joint("abc")
    joined_s = time.monotonic() - started - alone_s
    equal_s = swarm.wait_equal("abc")
    rounds_s = swarm.wait_rounds("abc", 3)
    totals = {name: swarm.nodes[name].status()["totals"] for name in "abc"}
    sent = {name: f"{t['bytes_sent'] / 1e6:.1f} MB" for name, t in totals.items()}
    links = ", ".join(f"{name} {SITES[name].mbit} Mbit/s" for name in "abc")
    say(f"links {links}; a trains after {alone_s:.0f} s, entry of three {joined_s:.0f} s after the joins began")
    say(f"equal anchors seen within {equal_s:.1f} s; 3 more outer steps in {rounds_s:.1f} s; sent {sent}")


def test_killed_container_comes_back_with_its_volume(swarm: SwarmOfContainers) -> None:
    before = swarm.height_now("b")
    docker("kill", swarm.nodes["b"].id)
    alone_s = swarm.wait_joint("ac")
    swarm.start_again("b")
    first = swarm.wait(lambda: swarm.height("b") >= before, "b has its log again")
    back_s = swarm.wait_joint("abc")
    swarm.wait_equal("abc")
    say(f"b killed at {before}: without it after {alone_s:.1f} s; log {first:.1f} s, joint {back_s:.1f} s")


def test_paused_container_is_left_out_and_taken_in_again(swarm: SwarmOfContainers) -> None:
    docker("pause", swarm.nodes["b"].id)
    without_s = swarm.wait_joint("ac")
    more_s = swarm.wait_rounds("ac", PAUSE_ROUNDS)
    docker("unpause", swarm.nodes["b"].id)
    back_s = swarm.wait_joint("abc")
    swarm.wait_equal("abc")
    say(f"b paused: without it after {without_s:.1f} s, {PAUSE_ROUNDS} more {more_s:.1f} s, back in {back_s:.1f} s")


def test_container_that_was_cut_off_catches_up(swarm: SwarmOfContainers) -> None:
    place = SITES["b"]
    swarm.internet.unplug(swarm.nodes["b"], place.network)
    without_s = swarm.wait_joint("ac")
    more_s = swarm.wait_rounds("ac", PAUSE_ROUNDS)
    swarm.internet.plug_back(swarm.nodes["b"], place.network, place.mbit)
    back_s = swarm.wait_joint("abc")
    swarm.wait_equal("abc")
    say(f"b unplugged: without it after {without_s:.1f} s, {PAUSE_ROUNDS} more {more_s:.1f} s, back in {back_s:.1f} s")


def test_bootstrap_container_is_gone_for_good(swarm: SwarmOfContainers) -> None:
    swarm.forget("a", with_volume=True)
    joint_s = swarm.wait_joint("bc")
    swarm.wait_rounds("bc", 2)
    swarm.wait_equal("bc")
    say(f"the first site removed with its volume: entry of the other two after {joint_s:.1f} s")


def test_fourth_site_joins_late_through_another_over_ipv6_alone(swarm: SwarmOfContainers) -> None:
    swarm.join("d", "b", family=6)
    caught_s = swarm.wait(lambda: swarm.height("d") >= swarm.height("b") > 0, "d has caught up")
    joint_s = swarm.wait_joint("bcd")
    swarm.wait_equal("bcd")
    shown = in_network_of(swarm.nodes["d"], "ip", "-o", "-4", "address")
    assert [line.split()[1] for line in shown.splitlines()] == ["lo"], "d has no IPv4 address"
    say(f"d over IPv6 only: caught up in {caught_s:.1f} s, joint after {joint_s:.1f} s")


def test_site_behind_nat_takes_part_through_a_relay(swarm: SwarmOfContainers) -> None:
    place = SITES["n"]
    swarm.internet.masquerade(place.network)
    swarm.join("n", "b", relays=("b",))
    joint_s = swarm.wait_joint("bcdn")
    swarm.wait_equal("bcdn")
    # c and n can both only call out: whatever they exchange goes through b.
    ends = {"c": address(SITES["n"].network), "n": address(SITES["c"].network)}
    for name, other in ends.items():
        connections = in_network_of(swarm.nodes[name], "ss", "-Htn", "state", "established")
        assert other not in connections, "a direct connection, though none can be opened"
    row = swarm.wait_relayed("c", "n")
    again_s, upload = swarm.wait_joint("bcdn"), row["bandwidth_bytes_per_s"] / 1e6
    say(f"n behind NAT ({place.mbit} Mbit/s): entry of four after {joint_s:.1f} s, the next {again_s:.1f} s later")
    say(f"c reaches n through b, by {row['addresses']}; n says that it uploads {upload:.2f} MB/s")


def test_site_without_its_volume_is_a_newcomer(swarm: SwarmOfContainers) -> None:
    old = swarm.peer_id("c")
    swarm.forget("c", with_volume=True)
    swarm.join("c", "b", relays=("b",))
    joint_s = swarm.wait_joint("bcdn")
    swarm.wait_equal("bcdn")
    assert swarm.peer_id("c") != old
    say(f"c came back without its volume: entry of all four after {joint_s:.1f} s")


def test_sigterm_leaves_within_the_grace_and_nothing_crashed(swarm: SwarmOfContainers) -> None:
    took = {}
    for name, node in swarm.nodes.items():
        started = time.monotonic()
        docker("stop", "--time", str(GRACE_S), node.id)
        took[name] = round(time.monotonic() - started, 1)
        state = docker("inspect", "-f", "{{.State.ExitCode}} {{.State.OOMKilled}}", node.id)
        assert state == "0 false", f"{name}: {state}\n{node.logs()[-3000:]}"
        assert "the daemon has ended (SIGTERM)" in node.logs()
    say(f"left within {took} s of SIGTERM, exit code 0")
    assert swarm.tracebacks() == {}
