"""Shared state 0 of runs that start from pretrained weights: made of files here, or fetched from a peer.

torch is never loaded here: `python -m dilocoxd.trained.incoming.first_state` does the work in a process of its own.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dilocoxd.cli.shell.helper_ends import cause_of, helper
from dilocoxd.cli.shell.step_announcer import StepAnnouncer
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.origin import InitSection
from dilocoxd.errors import ConfigError, StoreError
from dilocoxd.store.durable import hidden_folder
from dilocoxd.store.first_state import StateHashes, publish_first_state, require_same_files
from dilocoxd.store.rundir import RunDir

if TYPE_CHECKING:
    from dilocoxd.swarm.discovery.bootstrap import Access


_OWN_CODE: Final = ("native", "python", "external")
"""Kinds of models that no library builds from what a peer says."""


@dataclass(frozen=True, slots=True)
class FirstState:
    """Files of state 0 in a temporary `folder` beside the run directory; None: the run starts from scratch."""

    manifest: Manifest
    folder: Path | None = None
    hashes: StateHashes = field(default_factory=StateHashes)

    def publish(self, run_dir: RunDir, manifest: Manifest) -> None:
        """Let it be snapshot 0 of the run; `manifest` is the final one. Raises StoreError."""
        if self.folder is not None:
            publish_first_state(self.folder, run_dir, manifest, self.hashes)


@contextmanager
def made_first_state(manifest: Manifest, source: Sequence[str], near: Path) -> Iterator[FirstState]:
    """State 0 of a new run from `source`, with `manifest.init` filled in; nothing is left behind.

    Args:
        source: options of trained/incoming/first_state.py that name the weights; empty: a run from scratch.
    Also proves that a model of transformers can be cut. Raises ConfigError for weights or models that cannot be used.
    """
    if manifest.model.kind == "native" and not source:
        yield FirstState(manifest)
        return
    with _beside(near) as folder:
        found = _work(manifest, source, folder)
        if not source:
            yield FirstState(manifest)
            return
        if manifest.lora.rank and not manifest.lora.base_files:
            lora = manifest.lora.model_copy(update={"base_files": found["files"]})
            yield FirstState(manifest.model_copy(update={"lora": lora}))
            return
        named = {"files": found["files"], "state_digest": found["state_digest"]}
        section = InitSection(**named, parent=manifest.init.parent)
        yield FirstState(manifest.model_copy(update={"init": section}), folder, _hashes(found))


@contextmanager
def joined_first_state(manifest: Manifest, init: Path | None, near: Path, access: "Access") -> Iterator[FirstState]:
    """State 0 of a fetched run: from own files if they are the run's, else from a peer. Raises ConfigError."""
    if manifest.lora.rank:
        _require_base(manifest, init, near)
        init = None  # what the adapter began from comes from a peer
    if not manifest.init.state_digest:
        if init is not None:
            raise ConfigError(f"--init {init}: this run starts from scratch, not from pretrained weights; leave it out")
        if manifest.model.kind not in _OWN_CODE and not manifest.lora.rank and not (near / "run.toml").exists():
            with _beside(near) as folder:
                _work(manifest, (), folder)  # what a peer's config asks of a library is asked there, with limits
        yield FirstState(manifest)
        return
    if (near / "run.toml").exists() and (near / "snapshots" / "0").is_dir():
        yield FirstState(manifest)  # an earlier join brought it
        return
    with _beside(near) as folder:
        if init is not None:
            found = _work(manifest, ["--init", str(init)], folder)
            instead = ", or leave out --init to fetch them from a peer"
            require_same_files(manifest.init.files, found["files"], init, instead)
            if found["state_digest"] != manifest.init.state_digest:
                raise ConfigError(f"--init {init}: these files give another first state; update dilocoxd on both sites")
            yield FirstState(manifest, folder, _hashes(found))
            return
        # Only here: everything else does without the network.
        from dilocoxd.swarm.discovery.first_state import fetch_first_state

        said = replace(access, tell=_say)
        fetch_first_state(said, manifest, folder)
        found = _work(manifest, ["--fetched"], folder)
        if found["state_digest"] != manifest.init.state_digest:
            raise ConfigError(
                "a peer sent other weights than those that the run started from; give them with --init DIR, or join"
                " through another peer"
            )
        yield FirstState(manifest, folder, _hashes(found))


def _hashes(found: dict[str, Any]) -> StateHashes:
    return StateHashes(found["anchor_sha256"], tuple((values, text) for values, text in found["segments"]))


def _require_base(manifest: Manifest, init: Path | None, near: Path) -> None:
    """Raise ConfigError unless the files of the model under the run's adapter are here, and the run's."""
    if init is None and (near / "run.toml").exists():
        return  # an earlier join proved them; the trainers do so again when a file changed
    names = manifest.lora.base_files
    if init is None:
        first = min(names, default="")
        raise ConfigError(
            f"the run trains an adapter of {manifest.lora.base_name or 'a model'}, and peers do not send that model;"
            f" get its {len(names)} files of weights ({first}: sha256 {names.get(first, '')[:16]}), then join with"
            " --init DIR"
        )
    with _beside(near) as folder:
        require_same_files(names, _work(manifest, ["--init", str(init)], folder)["files"], init, "")


@contextmanager
def _beside(near: Path) -> Iterator[Path]:
    """A temporary folder on the disk of the run directory."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(hidden_folder(near, ".first-state"))
        except OSError as error:
            parent = near.absolute().parent
            raise StoreError(f"{parent}: cannot be written ({error.strerror}); give --dir a writable place") from error
        yield folder


def _work(manifest: Manifest, source: Sequence[str], folder: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="dilocoxd-start-") as scratch:
        run_toml = Path(scratch) / "run.toml"
        run_toml.write_text(manifest.to_toml(), encoding="utf-8")
        command = [sys.executable, "-m", "dilocoxd.trained.incoming.first_state", "--run-toml", str(run_toml)]
        if source:
            command += [*source, "--out", str(folder)]
        with helper(command) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            doing = "reading the weights" if source else "trying a tiny model of this shape"
            with StepAnnouncer(_say, doing) as steps:  # torch and transformers alone take seconds to load
                problem, last = _told(process.stderr, steps)
                answer = process.stdout.read()
    if process.returncode:
        raise ConfigError(problem or f"preparing the model failed: {cause_of(process.returncode, last)}")
    found: dict[str, Any] = json.loads(answer)
    return found


def _say(text: str) -> None:
    click.echo(f"model: {text}", err=True)


def _told(lines: Any, steps: StepAnnouncer) -> tuple[str, str]:
    """Show progress; the last line that is an error, without its mark; and the last of all: of a traceback, why."""
    problem = last = ""
    for line in lines:
        last = line.strip() or last
        if line.startswith("error: "):
            problem = line.removeprefix("error: ").strip()
        elif line.startswith(("reading ", "hashing ", "left out: ")):
            steps.note(line.strip())
    return problem, last
