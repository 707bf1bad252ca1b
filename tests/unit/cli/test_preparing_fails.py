"""`start` while it prepares something in a process of its own, and when that breaks: the cause is told."""

import sys
from pathlib import Path

import pytest

from dilocoxd.cli.commands import new_manifest
from dilocoxd.cli.corpus import prepare_text
from dilocoxd.cli.model.first_state import _work, joined_first_state
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError
from dilocoxd.swarm.discovery.bootstrap import Access
from tests.unit.models.families import FAMILY_CONFIGS
from tests.unit.models.test_refused_configs import ROTARY, described

CRASH = "#!/bin/sh\necho 'Traceback (most recent call last):\n  File x\nRuntimeError: no threads' >&2\nexit 1\n"
KILLED = "#!/bin/sh\necho 'tokenised 64 of 502' >&2\nkill -9 $$\n"


@pytest.mark.parametrize(("script", "cause"), [
    (CRASH, "RuntimeError: no threads"),
    (KILLED, "it was killed, probably for lack of memory"),
    ("#!/bin/sh\nexit 3\n", "it ended with status 3"),
])  # fmt: skip
def test_what_broke_a_preparation_is_told(
    script: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(script)
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    manifest = new_manifest("tiny", {})
    with pytest.raises(ConfigError) as caught:
        _work(manifest, [], tmp_path)
    assert str(caught.value) == f"preparing the model failed: {cause}"
    assert prepare_text(manifest, SiteConfig()) == ({}, f"preparing the text failed: {cause}")


@pytest.mark.parametrize(("source", "first"), [
    (["--init", "model"], "model: reading the weights\n"),
    ([], "model: trying a tiny model of this shape\n"),
])  # fmt: skip
def test_what_is_prepared_is_told_before_it_says_anything_itself(
    source: list[str], first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`start --init` was silent while torch and transformers were loaded and a whole model was hashed."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'reading parameter 2 of 7' >&2\necho a warning >&2\necho '{}'\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert _work(new_manifest("tiny", {}), source, tmp_path) == {}
    assert capsys.readouterr().err == f"{first}model: reading parameter 2 of 7\n"


def test_a_newcomer_tries_the_config_of_a_peer_before_it_writes_anything(tmp_path: Path) -> None:
    """Of a run from scratch nothing else is fetched: its trainers were the first to read it, again and again."""
    table = FAMILY_CONFIGS["gpt_neox"] | {"rope_parameters": ROTARY | {"partial_rotary_factor": 1e9}}
    nobody = Access(("unused",), 1.0, lambda line: None)
    with (
        pytest.raises(ConfigError, match=r"a tiny gpt_neox of this config.json takes more than 2 GiB of memory"),
        joined_first_state(described(table), None, tmp_path / "run", nobody),
    ):
        pass
    assert not list(tmp_path.iterdir())
    with joined_first_state(described(FAMILY_CONFIGS["gpt_neox"]), None, tmp_path / "run", nobody) as first:
        assert first.folder is None
