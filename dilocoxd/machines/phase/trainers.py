"""The phase machine's trainer side: what the trainers' messages mean, and what they are told next.

Delays: `none` closes with `wait` and resumes from the applied result; `phase` (DiLoCoX, ALGORITHMS 1.3) and `eager`
close with `replace`, one phase late; `arrival` (ALGORITHMS 7) closes with `keep` and merges when the result is there;
`streaming` does so too, but mixes what the entry with our contribution exchanged.
"""

from typing import assert_never

from dilocoxd.machines.phase import inputs as ev, outputs as cmd
from dilocoxd.machines.phase.flight import Flight
from dilocoxd.machines.phase.state import PhaseState
from dilocoxd.machines.phase.trainer_state import Closing, TrainerState
from dilocoxd.machines.phase.vocabulary import TrainerMessage
from dilocoxd.wire.local import outer_worker as local, trainer as local_trainer, worker as local_worker

EXTENSIONS_PER_PHASE = 20
_CLOSE_THEN = {"none": "wait", "phase": "replace", "eager": "replace", "arrival": "keep", "streaming": "keep"}


def on_trainer(m: PhaseState, event: ev.TrainerConnected | ev.TrainerSaid | ev.TrainerLost) -> None:
    """Take in one event; what a former generation said is stale."""
    match event:
        case ev.TrainerConnected(generation):
            m.connect_trainers(generation)
        case ev.TrainerLost(generation):
            if generation == m.trainer.number:
                m.lose_trainers()
        case ev.TrainerSaid(generation, message):
            if generation == m.trainer.number and m.trainer.state is not TrainerState.ABSENT:
                m.trainer.note_sign(m.now)
                _on_message(m, message)
        case _:
            assert_never(event)


def _on_message(m: PhaseState, message: TrainerMessage) -> None:
    trainer = m.trainer
    match message:
        case local_trainer.StepDone():
            _step_done(m, message)
        case local_trainer.BoundaryDue(phase, inner_steps):
            if trainer.state is TrainerState.TRAINING and trainer.is_in(phase):
                trainer.present_phase.inner_step = trainer.present_phase.boundary = inner_steps
        case local_trainer.BoundaryClosed():
            if trainer.state is TrainerState.CLOSING and trainer.is_in(message.phase):
                _boundary_closed(m, message)
        case local_trainer.AnchorTaken():
            _anchor_taken(m, message)
        case local_trainer.Evaluated():
            trainer.is_evaluating = False
        case local_trainer.TrainerStopped():
            m.lose_trainers()
        case local_worker.WorkerAlive() | local_trainer.TraceBegun() | local_trainer.TraceWritten():
            pass  # a sign of life, and no more
        case _:
            assert_never(message)
    _come_to_boundary(m)


def _come_to_boundary(m: PhaseState) -> None:
    """Where it is due. The rank that says so is not always the one that reports steps, whose word of the last one may
    come later: until then it is an inner step that is owed, if the shared state is not known to be sound."""
    phase = m.trainer.phase
    if m.trainer.state is not TrainerState.TRAINING or phase is None or phase.boundary is None:
        return
    if not m.soundness.awaits(phase.number, phase.boundary):
        m.trainer.state, phase.boundary = TrainerState.DUE, None


def _step_done(m: PhaseState, message: local_trainer.StepDone) -> None:
    m.trainer.note_step(message)
    phase = m.trainer.phase
    if phase is None:
        return
    if not m.soundness.step(message, min(phase.inner_steps, phase.longest(m.settings.extend_steps_max))):
        return
    spoiled = m.soundness.spoiled
    if spoiled is not None:
        m.emit(cmd.TellSpoiled(spoiled))
    elif m.soundness.sound is not None:
        m.emit(cmd.TellTrains(m.soundness.sound))


def _anchor_taken(m: PhaseState, message: local_trainer.AnchorTaken) -> None:
    trainer = m.trainer
    if trainer.state is TrainerState.STARTING:
        trainer.state = TrainerState.TRAINING
    elif trainer.taking:
        if trainer.state is TrainerState.WAITING:
            trainer.state = TrainerState.TRAINING
        elif trainer.taking == "replace":
            trainer.present_phase.skipped_steps = message.inner_step
        trainer.needs_merge = trainer.must_replace = False
        trainer.taking = ""
    else:
        return
    is_merged = message.how in ("merge", "mix")
    m.soundness.took(message.round, message.phase, message.inner_step, is_merged=is_merged)
    trainer.present_phase.base_round = None
    m.queue.add(local.CopyBase(0))


def _boundary_closed(m: PhaseState, message: local_trainer.BoundaryClosed) -> None:
    trainer, closing = m.trainer, m.trainer.closing
    assert closing is not None
    steps = max(0, message.inner_steps - trainer.present_phase.skipped_steps)
    tokens = message.tokens * steps // max(1, message.inner_steps)
    base = min(closing.base_round, m.shared.round) if m.shared is not None else closing.base_round
    if not (steps and tokens):
        m.emit(cmd.DropContribution(message.phase, "nothing was trained since the shared state was replaced"))
    elif not m.is_leaving:  # who leaves contributes nothing more, whether its last phase was closed or not
        forgets = m.queue.is_forgetting  # it is formed before, of feedback as it is
        m.flight = Flight(message.phase, base, steps, tokens, m.lowrank_r, forgets=forgets)
        m.queue.add(local.FormContribution(0, message.phase, m.lowrank_r))
    told = closing.command
    if message.took_anchor:
        m.soundness.took(message.round, told.next_phase, 0, is_merged=m.settings.delay == "eager")
    trainer.begin_phase(told.next_phase, told.inner_steps)
    if told.then == "wait":
        trainer.state = TrainerState.WAITING
    elif told.then == "keep":
        trainer.needs_merge = True
    else:
        m.queue.add(local.CopyBase(0))


def on_deadline(m: PhaseState) -> None:
    """Silence of trainers that owe something is a hang; early calls do nothing."""
    trainer = m.trainer
    deadline = trainer.silent_until(m.settings)
    if deadline is None or m.now < deadline:
        return
    silence = m.now - trainer.last_sign
    m.emit(cmd.RestartTrainer(trainer.number, f"no sign of life for {silence:.0f} s while waiting for {trainer.owes}"))
    m.lose_trainers()


def boundary_obstacle(m: PhaseState) -> str:
    """Why a due boundary cannot be closed, behind `waits for`; empty: it can."""
    trainer, flight = m.trainer, m.flight
    if m.shared is None:
        return "the shared state to be loaded"
    if flight is not None:
        stage = {"forming": "be formed", "offered": "be committed", "settling": "be settled"}[flight.stage]
        return f"the contribution of phase {flight.phase} to {stage}"
    if trainer.taking or trainer.needs_merge or trainer.must_replace:
        return "the trainers to take the newest anchor"
    if _is_tried_further(m):
        return "the shared state to give a finite loss"
    takes_anchor = _CLOSE_THEN[m.settings.delay] == "replace"
    if trainer.state is TrainerState.WAITING or (takes_anchor and m.queue.is_changing_anchor):
        return "the committed entry to be applied"
    if trainer.present_phase.base_round is None or m.queue.is_copying:
        return "the base of the phase to be copied"
    return ""


def _is_tried_further(m: PhaseState) -> bool:
    """Whether the phase goes on because of a doubted state, whatever is left of extensions: a step or two, and it is
    sound or spoiled. Contributions of steps that were all skipped would make an entry, hence a newer state to be tried
    by all, without end. A phase as long as any may be had finite steps before it took that state (FIRST_STEPS)."""
    if not m.soundness.is_doubted:
        return False
    phase = m.trainer.present_phase
    return phase.inner_steps - phase.skipped_steps < phase.longest(m.settings.extend_steps_max)


def direct(m: PhaseState) -> bool:
    """Tell the trainers one thing, if there is one to tell; True if so."""
    trainer = m.trainer
    if m.is_leaving:
        return _stop(m)
    if trainer.state is TrainerState.ABSENT:
        return False
    if trainer.state is TrainerState.IDLE:
        return _start(m)
    if m.is_halted != trainer.is_paused:
        trainer.is_paused = not trainer.is_paused
        m.tell(local_trainer.Pause() if trainer.is_paused else local_trainer.Resume())
        return True
    if trainer.is_paused:
        return False
    return _take(m) or _answer_boundary(m) or _evaluate(m)


def _stop(m: PhaseState) -> bool:
    if not m.is_trainer_active or m.trainer.is_stopping:
        return False
    m.tell(local_trainer.StopTraining())
    m.trainer.is_stopping = True
    return True


def _start(m: PhaseState) -> bool:
    if not m.is_begun or m.is_halted or not m.queue.is_attached or m.shared is None or m.queue.is_changing_anchor:
        return False
    phase, steps = m.take_phase_number(), m.planned_steps
    m.tell(
        local_trainer.StartTraining(
            phase, m.shared.round, steps, m.settings.checkpoint_directory, m.shared.shared_steps
        )
    )
    m.trainer.begin_phase(phase, steps)
    m.trainer.state = TrainerState.STARTING
    return True


def _take(m: PhaseState) -> bool:
    trainer = m.trainer
    if not trainer.can_take or m.shared is None or m.queue.is_changing_anchor or m.queue.is_copying:
        return False
    is_waiting = trainer.state is TrainerState.WAITING
    if (is_waiting and m.flight is None) or (trainer.must_replace and not is_waiting):
        how = "replace"
    elif trainer.needs_merge and m.flight is None:
        how = "mix" if m.settings.delay == "streaming" else "merge"
    else:
        return False
    mixed = m.included_round if how == "mix" else None
    m.tell(local_trainer.TakeAnchor(m.shared.round, how, m.shared.shared_steps, mixed))
    m.included_round = None
    trainer.taking = how
    return True


def _answer_boundary(m: PhaseState) -> bool:
    trainer, settings = m.trainer, m.settings
    if trainer.state is not TrainerState.DUE or trainer.taking:
        return False
    phase = trainer.present_phase
    left = settings.extend_steps_max - phase.extended
    if _is_tried_further(m):
        steps = 1
    elif not boundary_obstacle(m):
        steps = min(left, _steps_until_others(m))
        if steps <= 0:
            _close(m)
            return True
        phase.aligned += steps
    elif settings.delay == "none" or left <= 0:
        return False
    else:
        steps = min(left, -(-m.inner_steps // EXTENSIONS_PER_PHASE))
    m.tell(local_trainer.Extend(steps))
    phase.extended += steps
    phase.inner_steps += steps
    trainer.state = TrainerState.TRAINING
    return True


def _steps_until_others(m: PhaseState) -> int:
    """Inner steps that fit in before the other sites are due, at most a second phase's worth.

    Whoever is ahead would only wait for them in the group: better a larger contribution than an older one.
    """
    step_seconds = m.trainer.step_seconds
    if m.others.at is None or step_seconds <= 0:
        return 0
    return min(int((m.others.at - m.now) / step_seconds), m.inner_steps - m.trainer.present_phase.aligned)


def _close(m: PhaseState) -> None:
    trainer, phase = m.trainer, m.trainer.present_phase
    assert m.shared is not None and phase.base_round is not None
    closing = local_trainer.CloseBoundary(
        _CLOSE_THEN[m.settings.delay],
        m.shared.round,
        m.take_phase_number(),
        m.planned_steps,
        m.shared.shared_steps,
        m.num_contributors,
    )
    m.tell(closing)
    trainer.closing = Closing(closing, phase.base_round)
    trainer.state, phase.base_round = TrainerState.CLOSING, None


def _evaluate(m: PhaseState) -> bool:
    trainer = m.trainer
    is_free = trainer.state is TrainerState.TRAINING and not trainer.taking and not trainer.is_evaluating
    if not m.evaluation_due or not is_free or m.shared is None or m.queue.is_changing_anchor:
        return False
    m.evaluation_due = False
    m.tell(local_trainer.Evaluate(m.shared.round))
    trainer.is_evaluating = True
    return True
