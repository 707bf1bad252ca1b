"""Real trainer processes: commands at step boundaries, anchors, checkpoints, and how they end."""

import contextlib
import os
import queue
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from dilocoxd.config.sections.paths import PathsSection
from dilocoxd.config.site import ParallelSection, SiteConfig, WorkersSection
from dilocoxd.daemon.workers.forked import PIPELINE_MODULE
from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.trainer.tokens.store import open_store
from dilocoxd.wire.local import buffers as local_buffers, trainer as local_trainer
from tests.harness.documents_read import write_documents
from tests.harness.outer_worker.forks import TRAINER, Forks
from tests.integration.trainers import noting_rank
from tests.integration.trainers.daemon_side import WAIT_S, TrainerSite

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """One process forks all ranks of this file; it has loaded what a daemon asks for with several stages."""
    with Forks(TRAINER, PIPELINE_MODULE) as started:
        yield started


@pytest.fixture
def site(tmp_path: Path, forks: Forks) -> Iterator[TrainerSite]:
    made = TrainerSite(tmp_path / "site", forks)
    yield made
    made.close()


def close_boundary(site: TrainerSite, then: str, next_phase: int, round_index: int = 0) -> local_trainer.BoundaryClosed:
    site.expect(local_trainer.BoundaryDue)
    site.send(local_trainer.CloseBoundary(then, RoundIndex(round_index), PhaseId(next_phase), 4))
    return site.expect(local_trainer.BoundaryClosed)


def test_a_phase_ends_with_the_pseudo_gradient_of_all_stages(site: TrainerSite) -> None:
    site.launch()
    site.start_training()
    anchor = site.read(local_buffers.ANCHOR)
    assert torch.equal(anchor, site.genesis())
    closed = close_boundary(site, "wait", 1)
    pseudo_gradient = site.read(local_buffers.PHASE)
    assert (closed.phase, closed.inner_steps, closed.tokens, closed.took_anchor) == (0, 4, 4 * 4 * 16, False)
    assert 3.0 < closed.mean_loss < 7.0
    for spec in site.layout.params:
        span = site.layout.span(spec.name)
        assert pseudo_gradient[span.start : span.stop].abs().max() > 0, f"{spec.name} did not move"
    # The last stage tells of steps, the first one of boundaries: which of them is read first is chance.
    steps = [site.expect(local_trainer.StepDone) for _ in range(4)]
    assert [step.inner_step for step in steps] == [1, 2, 3, 4]
    assert all(step.learning_rate > 0 and step.gradient_norm > 0 and not step.skipped_steps for step in steps)
    assert [len(step.rank_memory_bytes) for step in steps] == [2, 0, 0, 0]
    assert all(1 << 20 < held < 1 << 32 for held in steps[0].rank_memory_bytes)
    assert all(0 < step.data_seconds < step.step_seconds and 0 < step.bubble < 1 for step in steps)
    assert site.read(local_buffers.ANCHOR).equal(anchor)


def test_merge_keeps_own_progress_and_replace_drops_it(site: TrainerSite) -> None:
    site.launch()
    site.start_training()
    old = site.genesis()
    close_boundary(site, "keep", 1)
    at_boundary = old - site.read(local_buffers.PHASE)
    new = torch.linspace(-0.01, 0.01, site.layout.numel)
    site.write(local_buffers.ANCHOR, new)
    site.write(local_buffers.PHASE, new)
    site.send(local_trainer.TakeAnchor(RoundIndex(1), "merge"))
    taken = site.expect(local_trainer.AnchorTaken)
    assert (taken.how, taken.round, taken.phase) == ("merge", 1, 1)
    # One more phase, merged again at its boundary before it closes: progress of the phase survives both times.
    site.expect(local_trainer.BoundaryDue)
    site.send(local_trainer.CloseBoundary("replace", RoundIndex(1), PhaseId(2), 4))
    closed = site.expect(local_trainer.BoundaryClosed)
    assert closed.took_anchor
    progress = new - (new - site.read(local_buffers.PHASE)) - new
    assert torch.isfinite(progress).all()
    params = new - site.read(local_buffers.PHASE)
    assert 0 < (params - new).abs().max() < 0.2
    assert (params - at_boundary).abs().max() > 0
    # After replace the model is the anchor again: an untouched phase gives progress of its own steps only.
    site.write(local_buffers.PHASE, new)
    close_boundary(site, "wait", 3, 1)
    assert 0 < site.read(local_buffers.PHASE).abs().max() < 0.2


def test_waiting_trainer_continues_exactly_from_the_anchor_it_is_given(site: TrainerSite) -> None:
    site.launch()
    site.start_training()
    close_boundary(site, "wait", 1)
    new = site.genesis() * 0.5
    site.write(local_buffers.ANCHOR, new)
    site.send(local_trainer.Pause())
    site.send(local_trainer.TakeAnchor(RoundIndex(1), "replace"))
    site.expect(local_trainer.AnchorTaken)
    site.write(local_buffers.PHASE, new)
    site.send(local_trainer.Extend(0))
    site.send(local_trainer.CloseBoundary("wait", RoundIndex(1), PhaseId(2), 4))
    closed = site.expect(local_trainer.BoundaryClosed)
    assert closed.inner_steps == 0
    assert torch.equal(site.read(local_buffers.PHASE), torch.zeros_like(new))


def test_phase_whose_state_is_replaced_reads_what_it_is_told_from_there_on(tmp_path: Path, forks: Forks) -> None:
    """It has read all that it leased: what it was told first is not read on, nor counted on."""
    store, num_samples = tmp_path / "store", 48
    write_documents(store, num_samples, seq_len=16, seed=1)
    index = open_store(store).index
    source = {"name": "texts", "sha256": index.sha256(), "num_tokens": num_samples * 16 + 1}
    paths = PathsSection(corpora={"texts": str(store)})
    site = TrainerSite(
        tmp_path / "site",
        forks,
        model={"vocab_size": index.vocab_size},
        site=SiteConfig(parallel=ParallelSection(threads_per_rank=1), paths=paths),
        data={"sources": [source], "evaluate_every_rounds": 0},
    )
    try:
        site.launch()
        site.start_training(samples=(0, 16))
        site.expect(local_trainer.BoundaryDue)
        site.send(local_trainer.TakeAnchor(RoundIndex(0), "replace", samples=(16, 32)))
        site.send(local_trainer.Extend(4))
        assert site.expect(local_trainer.BoundaryDue).inner_steps == 8
        site.send(local_trainer.Extend(1))
        failed = site.expect_failure()
        assert "more than the 16 samples that it leased" in failed.detail
    finally:
        site.close()


LAYOUTS: tuple[dict[str, int], ...] = (
    {},
    {"stages": 2, "microbatches": 2},
    {"replicate": 2, "shard": 2, "microbatches": 1},
)
"""1, 2 and 4 ranks."""
LEASED = ((0, 16), (40, 44, 20, 32))
"""Samples of two phases of 4 steps with 4 sequences each."""
LOSS_TOLERANCE = 1e-5
"""Means of float32 in another order, near 5.7."""


def test_each_step_reads_the_same_documents_in_the_same_order_on_1_2_and_4_ranks(tmp_path: Path, forks: Forks) -> None:
    store = tmp_path / "store"
    written = write_documents(store, 48, seq_len=16, seed=1)
    found = [read_in(tmp_path / str(number), forks, store, layout) for number, layout in enumerate(LAYOUTS)]
    starts = [
        [written.places[np.array(line.split(), dtype=np.int64).tobytes()] for line in lines] for lines, _ in found
    ]
    assert len(set(starts[0])) == len(starts[0]) == 32
    documents = [np.searchsorted(written.starts, one, side="right").tolist() for one in starts]
    assert len(set(documents[0])) > 16
    assert documents[0] == documents[1] == documents[2]
    assert starts[0] == starts[1] == starts[2]
    for _, losses in found[1:]:
        assert losses == pytest.approx(found[0][1], abs=LOSS_TOLERANCE), "targets of other sequences"


def read_in(folder: Path, forks: Forks, store: Path, layout: dict[str, int]) -> tuple[list[str], list[float]]:
    """What a site of this layout computes on in two phases, in the order of its batches, and the loss of each step."""
    index = open_store(store).index
    source = {"name": "texts", "sha256": index.sha256(), "num_tokens": sum(shard.num_tokens for shard in index.shards)}
    paths = PathsSection(corpora={"texts": str(store)})
    site = TrainerSite(
        folder / "site",
        forks,
        model={"vocab_size": index.vocab_size},
        site=SiteConfig(parallel=ParallelSection(threads_per_rank=1, **layout), paths=paths),
        data={"sources": [source], "evaluate_every_rounds": 0},
    )
    try:
        site.launch(noting_rank.__name__, **{noting_rank.FOLDER_VARIABLE: str(folder)})
        site.start_training(samples=LEASED[0])
        site.expect(local_trainer.BoundaryDue)
        site.send(local_trainer.CloseBoundary("keep", RoundIndex(0), PhaseId(1), 4, samples=LEASED[1]))
        steps = [site.expect(local_trainer.StepDone) for _ in range(8)]
    finally:
        site.close()
    # Each rank of a stage reads every so manieth sequence of a batch; second stages get none.
    notes = [path.read_text().splitlines() for path in sorted(folder.glob("*.read"))]
    assert len(notes) == site.site.parallel.readers
    has_pipeline = site.site.parallel.pipeline > 1
    assert all((step.bubble >= 0) == has_pipeline for step in steps), "waits for other stages where there are some"
    return [line for rows in zip(*notes, strict=True) for line in rows], [step.loss for step in steps]


def test_extend_trains_further_steps_before_the_boundary(site: TrainerSite) -> None:
    site.launch()
    site.start_training()
    assert site.expect(local_trainer.BoundaryDue).inner_steps == 4
    site.send(local_trainer.Extend(3))
    assert site.expect(local_trainer.BoundaryDue).inner_steps == 7
    site.send(local_trainer.CloseBoundary("keep", RoundIndex(0), PhaseId(1), 4))
    assert site.expect(local_trainer.BoundaryClosed).inner_steps == 7


def test_evaluation_is_of_the_anchor_and_leaves_own_parameters(site: TrainerSite) -> None:
    site.launch()
    site.start_training()
    site.expect(local_trainer.BoundaryDue)
    site.send(local_trainer.Evaluate(RoundIndex(0)))
    first = site.expect(local_trainer.Evaluated)
    site.write(local_buffers.ANCHOR, site.genesis() * 0.0)
    site.send(local_trainer.Evaluate(RoundIndex(1)))
    blank = site.expect(local_trainer.Evaluated)
    assert blank.validation_loss == pytest.approx(float(torch.tensor(300.0).log()), abs=1e-4)
    assert first.validation_loss != blank.validation_loss
    site.send(local_trainer.CloseBoundary("wait", RoundIndex(0), PhaseId(1), 4))
    site.expect(local_trainer.BoundaryClosed)
    params = site.genesis() - site.read(local_buffers.PHASE)
    assert params.abs().max() > 0.5  # norms are still about 1: own parameters came back


def test_pause_stops_at_a_step_and_resume_goes_on(site: TrainerSite) -> None:
    site.launch()
    site.start_training(inner_steps=100_000)
    first = site.expect(local_trainer.StepDone).inner_step
    site.send(local_trainer.Pause())
    evaluate(site)
    reached = max([first, *steps_told(site)])
    evaluate(site)
    assert not [step for step in steps_told(site) if step > reached]
    site.held.clear()
    site.send(local_trainer.Resume())
    assert site.expect(local_trainer.StepDone).inner_step == reached + 1


QUIET_S = 1.0


def evaluate(site: TrainerSite) -> None:
    """Once it is answered, all ranks have written what they had to tell."""
    site.send(local_trainer.Evaluate(RoundIndex(0)))
    site.expect(local_trainer.Evaluated)


def steps_told(site: TrainerSite) -> list[int]:
    """Of what was not expected yet. The last stage has a socket of its own, and who reads that may be behind."""
    with contextlib.suppress(queue.Empty):
        while True:
            site.held.append(site.inbox.get(timeout=QUIET_S))
    return [message.inner_step for message in site.held if isinstance(message, local_trainer.StepDone)]


def test_stop_writes_a_checkpoint_and_the_next_generation_continues(site: TrainerSite) -> None:
    site.launch()
    site.start_training()
    close_boundary(site, "keep", 1)
    site.expect(local_trainer.BoundaryDue)
    site.send(local_trainer.StopTraining())
    stopped = site.expect(local_trainer.TrainerStopped)
    assert (stopped.phase, stopped.inner_step) == (1, 4)
    assert site.wait_exit() == 0, site.log()
    site.hang_up()
    site.launch()
    site.start_training(phase=2)  # the last stage may tell of the first step before the first stage tells of the anchor
    assert site.expect(local_trainer.StepDone).global_step == 9


def test_every_second_boundary_is_saved_where_the_site_asks_for_it_and_a_stop_is(tmp_path: Path, forks: Forks) -> None:
    config = SiteConfig(parallel=ParallelSection(threads_per_rank=1), workers=WorkersSection(save_every=2))
    site = TrainerSite(tmp_path / "site", forks, site=config)
    try:
        site.launch()
        site.start_training()
        for phase in range(3):
            close_boundary(site, "keep", phase + 1)
        site.expect(local_trainer.BoundaryDue)
        site.stop_training()
    finally:
        site.close()
    saved = sorted(int(folder.name) for folder in (site.folder / "site" / "trainer").iterdir())
    assert saved == [8, 16], "inner steps, of 4 a phase; the newest two are kept"


@pytest.mark.parametrize("stages", [1, 2])
def test_checkpoint_of_two_stages_is_read_by_any_number(tmp_path: Path, forks: Forks, stages: int) -> None:
    first = TrainerSite(tmp_path / "site", forks)
    try:
        first.launch()
        first.start_training()
        first.expect(local_trainer.BoundaryDue)
        first.stop_training()
    finally:
        first.close()
    second = TrainerSite(
        tmp_path / "site", forks, site=SiteConfig(parallel=ParallelSection(threads_per_rank=1, stages=stages))
    )
    try:
        second.launch()
        second.start_training(phase=1)
        assert second.expect(local_trainer.StepDone).global_step == 5
    finally:
        second.close()


def test_a_damaged_checkpoint_means_a_fresh_optimizer_not_a_crash(site: TrainerSite) -> None:
    site.launch()
    site.start_training()
    site.expect(local_trainer.BoundaryDue)
    site.stop_training()
    site.hang_up()
    for path in (site.folder / "site" / "trainer").rglob("stage-1-*.safetensors"):
        path.write_bytes(b"torn")
    site.launch()
    site.start_training(phase=1)
    assert site.expect(local_trainer.StepDone).global_step == 1
    assert "checkpoint 000000000004 is not used" in site.log(), "nobody would know why the loss rises"


def test_loss_falls_below_the_unigram_entropy_within_a_few_phases(site: TrainerSite) -> None:
    site.launch()
    site.start_training(inner_steps=60)
    site.send(local_trainer.Evaluate(RoundIndex(0)))
    before = site.expect(local_trainer.Evaluated).validation_loss
    site.expect(local_trainer.BoundaryDue)
    site.send(local_trainer.CloseBoundary("wait", RoundIndex(0), PhaseId(1), 4))
    site.expect(local_trainer.BoundaryClosed)
    site.write(local_buffers.ANCHOR, site.genesis() - site.read(local_buffers.PHASE))
    site.send(local_trainer.Evaluate(RoundIndex(1)))
    assert site.expect(local_trainer.Evaluated).validation_loss < 0.6 * before


def test_end_of_the_daemons_socket_ends_all_ranks(site: TrainerSite) -> None:
    site.launch()
    site.start_training(inner_steps=100_000)
    site.expect(local_trainer.StepDone)
    processes = [psutil.Process(pid) for pid in site.pids.values()]
    site.hang_up()
    _, alive = psutil.wait_procs(processes, timeout=WAIT_S)
    assert alive == []
    assert site.wait_exit() != 0


def test_killed_rank_ends_the_generation_and_the_next_one_works(site: TrainerSite) -> None:
    site.launch()
    site.start_training(inner_steps=100_000)
    site.expect(local_trainer.StepDone)
    os.kill(site.pids[1], signal.SIGKILL)
    assert site.wait_exit() != 0
    site.hang_up()
    site.launch()
    site.start_training(phase=1)
    site.expect(local_trainer.BoundaryDue)


def test_fork_server_that_is_killed_takes_its_ranks_along(tmp_path: Path) -> None:
    with Forks(TRAINER, PIPELINE_MODULE) as forks:
        site = TrainerSite(tmp_path / "site", forks)
        site.launch()
        site.start_training(inner_steps=100_000)
        site.expect(local_trainer.StepDone)
        processes = [psutil.Process(pid) for pid in site.pids.values()]
        os.kill(forks.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(processes, timeout=WAIT_S)
        assert alive == []
        site.ranks.clear()  # nobody is left to tell how they ended
        site.close()


def test_gpu_that_is_not_there_is_reported_to_the_daemon_in_one_sentence(tmp_path: Path, forks: Forks) -> None:
    """Of a kind that ends the daemon: as a crash it was tried again, ten times, and the cause stood in a log alone."""
    on_gpu = SiteConfig(parallel=ParallelSection(device="cuda", backend="nccl"))
    site = TrainerSite(tmp_path / "site", forks, site=on_gpu)
    try:
        site.launch(CUDA_VISIBLE_DEVICES="")  # where the machine of the tests has some
        failed = site.expect_failure()
        assert failed.kind == "config"
        assert "parallel.device = 'cuda' wants cuda:0" in failed.detail and "'cpu'" in failed.detail
    finally:
        site.close()


def test_wrong_corpus_is_reported_to_the_daemon_in_one_sentence(tmp_path: Path, forks: Forks) -> None:
    site = TrainerSite(tmp_path / "site", forks)
    try:
        text = (site.folder / "run.toml").read_text(encoding="utf-8")
        (site.folder / "run.toml").write_text(
            text.replace(str(tmp_path / "corpus.txt"), "no-such-corpus"), encoding="utf-8"
        )
        site.launch()
        failed = site.expect_failure()
        assert failed.kind == "config"
        assert "choose one of" in failed.detail
    finally:
        site.close()
