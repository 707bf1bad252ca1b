"""The screen of `dilocoxd status`: how it goes, in the words of an operator."""

import math
from collections.abc import Sequence
from typing import Final

from dilocoxd.answers.nodes import nodes_in_words
from dilocoxd.answers.peers import Peer
from dilocoxd.answers.status import Audits, ExchangeTimes, PeerCounts, PublicAddress, Samples, Status, VotedTwice
from dilocoxd.answers.words import figure, in_bytes, in_time, plural, time_left, tokens_per_s, wrapped
from dilocoxd.cli.screens.layout import facts
from dilocoxd.cli.screens.peers import on_probation, peers_screen

PERPLEXITY_MAX: Final = 20.0
"""Of a loss: e to the power of more is no figure that tells anybody anything."""


def status_screen(status: Status, peers: Sequence[Peer], width: int | None) -> str:
    """Everything that `dilocoxd status` prints but the join line."""
    parts = [facts(rows(status), width)]
    parts += ["\n".join(wrapped(f"alert {a.code} ({a.severity}): {a.text}; {a.remedy}", width)) for a in status.alerts]
    if peers:
        parts.append(peers_screen(status, peers, width))
    return "\n\n".join(parts)


def rows(status: Status) -> list[tuple[str, str]]:
    """Facts about the daemon, its run and the swarm."""
    round_, totals, progress, phase = status.round, status.totals, status.progress, status.phase
    return [
        ("run", status.run_id),
        ("site", f"{status.name}  {status.peer_id}"),
        ("state", status.state.replace("_", " ")),
        ("waits for", status.waiting_for or "nothing"),
        ("progress", schedule(status)),
        ("speed", speed(status)),
        ("loss", losses(status)),
        ("learning", learning(status)),
        ("round", f"{round_.round} {round_.state}, attempt {round_.attempt}, {took_part(status.peers)}"),
        ("phase", "" if phase.phase is None else f"step {phase.inner_step:,} of {phase.inner_steps:,}"),
        ("swarm", swarm(status)),
        ("given", f"{plural(totals.contributions, 'round')} of {totals.rounds_committed:,}, "
                  f"{totals.tokens:,} tokens since the start"),
        ("traffic", f"{in_bytes(totals.bytes_sent)} up, {in_bytes(totals.bytes_received)} down since the start"),
        ("samples", samples(status.samples)),
        ("exchange", exchange(status.exchange)),
        ("audits", audits(status.audits)),
        ("outside", outside(status.public_addresses)),
        ("left out", voted_twice(status.voted_twice)),
        ("unwatched", status.unwatched),
        ("new here", probation(status)),
        ("trainers", idle(status)),
        ("nodes", nodes_in_words(status.nodes)),
        ("model", model(status)),
        ("memory", in_bytes(progress.memory_bytes) if progress.memory_bytes is not None else ""),
        ("up", f"{in_time(status.uptime_s)}, version {status.version}"),
    ]  # fmt: skip


def probation(status: Status) -> str:
    """Of this site; nothing where it counts in full."""
    if status.probation is None:
        return ""
    waits = f"; {status.place_wait}" if status.place_wait else ""
    return f"{on_probation(status.probation)}; it weighs less, and counts in no majority{waits}"


def outside(addresses: Sequence[PublicAddress]) -> str:
    """Where others see this site, and whether they get in there."""
    return "; ".join(
        f"{one.address}, reached by {one.num_reached} of {plural(one.num_tried, 'site')} that tried"
        + (", announced" if one.is_announced else "")
        for one in addresses[:2]
    )


def schedule(status: Status) -> str:
    """Tokens of a run that has an end, inner steps of one that has none, and what comes to its end when."""
    progress = status.progress
    if progress.steps_done is None:
        return f"outer step {status.height:,}"
    steps = done = f"step {progress.steps_done:,}"
    if progress.stop_after_tokens:
        done = _part(progress.swarm_tokens, progress.stop_after_tokens, " tokens")
    elif progress.steps_done <= progress.steps_total:
        done = f"step {_part(progress.steps_done, progress.steps_total)}"
    parts = ", ".join(filter(None, (done, time_left(progress))))
    return "; ".join([parts, *([steps] if progress.stop_after_tokens else []), f"outer step {status.height:,}"])


def _part(done: int, total: int, unit: str = "") -> str:
    share = f" ({done / total:.1%})" if done <= total else ""
    return f"{done:,} of {total:,}{unit}{share}"


def speed(status: Status) -> str:
    """Tokens and times."""
    progress = status.progress
    parts = [f"{tokens_per_s(progress.tokens_per_s)} here", f"{tokens_per_s(progress.swarm_tokens_per_s)} together"]
    if status.phase.step_seconds:
        parts.append(f"{in_time(status.phase.step_seconds)} a step")
    if progress.round_s is not None:
        parts.append(f"{in_time(progress.round_s)} a round")
    return ", ".join(parts)


def losses(status: Status) -> str:
    """Of the newest step here, and of the shared model on held-out text, with its perplexity."""
    found = status.losses
    text = f"{figure(found.inner)} here"
    if found.validation is None:
        return f"{text}, shared model not measured yet"
    perplexity = f", perplexity {math.exp(found.validation):.1f}" if found.validation < PERPLEXITY_MAX else ""
    sources = ", ".join(f"{name} {loss:.3f}" for name, loss in found.validation_by_source.items())
    each = f" ({sources})" if len(found.validation_by_source) > 1 else ""
    return f"{text}, shared model {found.validation:.3f} at round {found.validation_round}{perplexity}{each}"


def learning(status: Status) -> str:
    """Learning rate and gradient norm; empty before the first step."""
    progress = status.progress
    if progress.learning_rate is None:
        return ""
    norm = f", gradient norm {progress.gradient_norm:.2f}" if progress.gradient_norm is not None else ""
    return f"rate {progress.learning_rate:.3g}{norm}"


def swarm(status: Status) -> str:
    """All sites, ours included, by what they do; and what is in the model."""
    counts = [f"{number:,} {state.replace('_', ' ')}" for state, number in status.progress.sites.items()]
    return f"{', '.join(counts)}; {status.progress.swarm_tokens:,} tokens in the model"


def took_part(peers: PeerCounts) -> str:
    """Who was in the newest entry, and what it means for its step if that is fewer than usual."""
    present, missed = peers.took_part_last_round, peers.missed_last_round
    if missed:
        return f"{present} of {plural(present + missed, 'site')} in the one before (a smaller step)"
    return f"{plural(present, 'site')} in the one before"


def exchange(times: ExchangeTimes | None) -> str:
    """The newest exchange beside what was predicted; nothing before there is one."""
    if times is None or not times.measured_s:
        return ""
    ratio = times.predicted_s / times.measured_s
    return f"{times.measured_s:.2f} s, predicted {times.predicted_s:.2f} s (predicted / measured {ratio:.2f})"


def samples(found: Samples | None) -> str:
    """What the model has read of token stores; nothing in a run on one text."""
    if found is None:
        return ""
    twice = f" and {found.twice:,} a second time" if found.twice else ", none twice"
    return f"{found.taken:,} read{twice}"


def audits(found: Audits) -> str:
    """Sums of others that were made again; nothing in runs that check none."""
    tried = found.made + found.unanswered + found.undecided
    if not tried:
        return ""
    text = f"{plural(found.made, 'sum')} made again, {found.proofs:,} false, {in_bytes(found.bytes_received)}"
    return text + (f"; {tried - found.made:,} not compared" if tried > found.made else "")


def voted_twice(found: Sequence[VotedTwice]) -> str:
    """Whose work does not count for a while; nothing where nobody voted twice."""
    return ", ".join(f"{one.name}, which voted twice, to round {one.until_round:,}" for one in found)


def idle(status: Status) -> str:
    """How much of their time the trainers waited, and what of an inner step goes into no arithmetic."""
    busy, progress = status.totals.train_s + status.totals.idle_s, status.progress
    if not busy:
        return ""
    parts = [f"waited {status.totals.idle_s / busy:.1%} of the time"]
    if progress.data_s is not None:
        parts.append(f"{in_time(progress.data_s)} of a step for data")
    if progress.bubble is not None:
        parts.append(f"{progress.bubble:.1%} for other stages")
    if progress.stages is not None and progress.stages.faster_saves is not None:
        cut = list(progress.stages.faster_layers)
        parts.append(f"layers_per_stage = {cut} would save {progress.stages.faster_saves:.0%} of a step")
    return ", ".join(parts)


def model(status: Status) -> str:
    """Size, what an exchange carries, and from where on payloads are kept."""
    payload = status.payload
    if payload is None:
        return ""
    size = f"{payload.parameters:,} parameters, {in_bytes(payload.payload_bytes)} an exchange"
    ratio = f" ({payload.compression_ratio:.0f} x less than fp32)" if payload.compression_ratio else ""
    return f"{size}{ratio}" + (f"; payloads kept from round {payload.kept_from:,}" if payload.kept_from else "")
