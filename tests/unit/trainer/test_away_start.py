"""What a node is told of a site holds there too: its processes have the environment of another machine."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dilocoxd.config.site import load_site
from dilocoxd.outerworker.away import main as of_parts
from dilocoxd.trainer.away import main as of_stages
from dilocoxd.wire.placement import OuterPart
from tests.harness.outer_worker.daemon_end import tiny_manifest

OF_A_STAGE = {"DILOCOXD_NODE_SERVED": "s", "RANK": "1", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1"}
OF_A_PART = {"DILOCOXD_NODE_SERVED": "s", "DILOCOXD_NODE_INCARNATION": "i", "DILOCOXD_NODE_NEW": "1"}
KINDS: dict[str, tuple[dict[str, str], Callable[[Path], bytes]]] = {
    "stage": (OF_A_STAGE, lambda folder: of_stages._start(folder).site_toml),
    "part": (OF_A_PART, lambda folder: of_parts._start(folder, OuterPart(1, 2, 1, 0)).site_toml),
}


@pytest.mark.parametrize("kind", KINDS)
def test_variables_of_the_head_hold_on_its_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    environment, sent = KINDS[kind]
    (tmp_path / "run.toml").write_text(tiny_manifest().to_toml(), encoding="utf-8")
    (tmp_path / "site.toml").write_text("[parallel]\npipeline = 2\nmicrobatches = 2\n", encoding="utf-8")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    given = {"DILOCOXD_PARALLEL__MICROBATCHES": "4", "DILOCOXD_WORKERS__OUTER_THREADS": "3"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    there = tmp_path / "there.toml"
    there.write_bytes(sent(tmp_path))
    for name in given:
        monkeypatch.delenv(name)
    site = load_site(there)
    assert (site.parallel.pipeline, site.parallel.microbatches, site.workers.outer_threads) == (2, 4, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_site_that_has_no_file_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    environment, sent = KINDS[kind]
    (tmp_path / "run.toml").write_text(tiny_manifest().to_toml(), encoding="utf-8")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert sent(tmp_path) == b""
