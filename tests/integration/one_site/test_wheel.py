"""The wheel alone, outside the repository: what people install starts, joins, trains, exports and has all its files.

It does so without transformers, which is an extra.
"""

import json
import os
import shutil
import site
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import psutil
import pytest

from tests.harness.paced.sitecustomize import STEP_VARIABLE
from tests.harness.running.run_directories import free_port
from tests.harness.running.sites import STEP_S, get_json, wait_until
from tests.harness.running.training import write_corpus
from tests.unit.models.families import FAMILY_CONFIGS

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[3]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "dilocoxd")
EXTRA = "transformers"
PATIENCE_S = 200.0
WHEEL_BYTES_MAX = 2 << 20
HELP_CPU_S_MAX = 0.3


class Installed:
    """dilocoxd in an environment of its own; other packages are those of the environment that runs the tests, but for
    the extra `hf`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wheel = built_wheel(folder)
        venv.create(folder / "env", with_pip=False)
        self.python = folder / "env" / "bin" / "python"
        run(sys.executable, "-m", "pip", "--python", self.python, "install", "--no-deps", "--no-index", self.wheel)
        (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
        shared = folder / "shared"
        shared.mkdir()
        for place in filter(Path.is_dir, map(Path, site.getsitepackages())):  # Debian names one that need not be there
            for entry in place.iterdir():
                if not entry.name.startswith(EXTRA):
                    (shared / entry.name).symlink_to(entry)
        # A path in a .pth file is not searched for further .pth files, so an editable install there is not seen.
        (packages / "shared.pth").write_text(str(shared))
        shutil.copy2(ROOT / "tests" / "harness" / "paced" / "sitecustomize.py", packages / "paced.py")
        (packages / "paced.pth").write_text("import sys, paced; sys.meta_path.insert(0, paced.PacedImport())")

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [self.python.parent / "dilocoxd", *arguments], cwd=self.folder, env=clean(), text=True,
            stdout=subprocess.PIPE, stderr=(self.folder / f"{arguments[0]}.err").open("w"),
        )  # fmt: skip

    def __call__(self, *arguments: str) -> str:
        return run(self.python.parent / "dilocoxd", *arguments, cwd=self.folder)


def clean() -> dict[str, str]:
    """The environment without a way back to the repository, in which trainers leave CPU to other tests."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**kept, "OMP_NUM_THREADS": "1", STEP_VARIABLE: STEP_S}


def run(*command: "str | Path", cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=clean(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def built_wheel(folder: Path, *before: str) -> Path:
    """Of a copy: building leaves folders behind. `before`: words in front of the command."""
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy2(ROOT / name, source / name)
    run(
        *before, sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation",
        "-w", folder, source,
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installed]:
    yield Installed(tmp_path)
    for process in psutil.process_iter(["cwd"]):
        if process.info["cwd"] == str(tmp_path) and process.pid != os.getpid():
            process.kill()


def cpu_s_of_help(dilocoxd: Installed) -> float:
    """CPU time of `dilocoxd --help`, which a busy machine hardly changes."""
    before = os.times()
    dilocoxd("--help")
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def wait_round(dilocoxd: Installed, name: str, port: int) -> None:
    """Until the site has brought something into the shared model, and `dilocoxd status` says so."""

    def has_contributed() -> bool:
        status = get_json(f"http://127.0.0.1:{port}/v1/status")  # the command imports for a third of a second
        return bool(status and status["totals"]["contributions"])

    def said() -> str:
        return (dilocoxd.folder / "start.err").read_text()[-2000:]

    wait_until(has_contributed, f"a contribution of {name}", PATIENCE_S, said)
    assert json.loads(dilocoxd("status", name, "--json"))["status"]["totals"]["contributions"]


def test_the_wheel_is_whole_and_trains_outside_the_repository(installed: Installed) -> None:
    names = ZipFile(installed.wheel).namelist()
    tracked = [path.relative_to(ROOT) for path in (ROOT / "dilocoxd").rglob("*") if path.is_file()]
    wanted = {str(path) for path in tracked if "__pycache__" not in path.parts and path.suffix != ".so"}
    assert wanted <= set(names), f"not in the wheel: {sorted(wanted - set(names))[:5]}"
    assert [name for name in names if name.startswith("dilocoxd/compress/_loops.")], "built without a C compiler"
    assert not [name for name in names if name.startswith("tests")]
    place = run(installed.python, "-c", "import dilocoxd; print(dilocoxd.__file__)", cwd=installed.folder)
    assert place.startswith(str(installed.folder / "env"))
    run(installed.python, "-c", "from dilocoxd.compress import loops; assert loops.found", cwd=installed.folder)
    assert "dilocoxd.service" in installed("files").split()
    assert installed.wheel.stat().st_size < WHEEL_BYTES_MAX
    assert min(cpu_s_of_help(installed) for _ in range(3)) < HELP_CPU_S_MAX

    (installed.folder / "config.json").write_text(json.dumps(FAMILY_CONFIGS["llama"]))
    refused = installed.start("start", "tiny", "--config", "config.json", "--dir", "family")
    assert refused.wait(900) == 78
    said = (installed.folder / "start.err").read_text()
    assert "needs transformers, which is not installed; install it with: pip install 'dilocoxd[hf]'" in said
    assert not (installed.folder / "family").exists()

    corpus = write_corpus(installed.folder)
    own = ["--host", "127.0.0.1", "--port", "0", "--cache", "cache", "--api-port"]
    ports = free_port(), free_port()
    founder = installed.start(
        "start", "tiny", "--dir", "a", "--data", f"library={corpus}", *own, str(ports[0]),
        "--set", "data.validation_sequences=2", "--set", "strategy.inner_steps=8", "--set", "snapshot.every_rounds=1",
    )  # fmt: skip
    assert founder.stdout is not None
    (line,) = [line.strip() for line in iter_until(founder.stdout, "  dilocoxd join ")][-1:]
    wait_round(installed, "a", ports[0])
    joiner = installed.start("join", *line.split()[2:], "--dir", "b", *own, str(ports[1]))
    wait_round(installed, "b", ports[1])
    for name, process in (("b", joiner), ("a", founder)):
        installed("leave", name)
        assert process.wait(900) == 0
    installed("export", "b", "--out", "model", "--cache", "cache")
    exported = {path.name for path in (installed.folder / "model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= exported


def test_without_a_c_compiler_there_is_a_wheel_too_and_it_works_by_torch(tmp_path: Path) -> None:
    wheel = built_wheel(tmp_path, "env", "CC=/there/is/no/compiler")
    names = ZipFile(wheel).namelist()
    assert "dilocoxd/compress/loops.py" in names
    assert not [name for name in names if name.endswith(".so")]
    ZipFile(wheel).extractall(tmp_path / "unpacked")
    code = "from dilocoxd.compress import loops, registry; assert loops.found is None; registry.codec_from_name('int4')"
    run(sys.executable, "-c", code, cwd=tmp_path / "unpacked")


def iter_until(lines: "Iterator[str]", start: str) -> Iterator[str]:
    """Lines up to the first one that begins so."""
    for line in lines:
        yield line
        if line.startswith(start):
            return
