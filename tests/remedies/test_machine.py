"""Remedies about the machine, in mounts and environments of its own: small disks, another Python, another torch."""

import importlib.metadata
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dilocoxd.cli.doctor.findings import FINDINGS
from dilocoxd.cli.doctor.machine import compiler_finding, gpu_finding, probe_torch, python_finding, torch_finding
from dilocoxd.errors import ConfigError
from dilocoxd.store.rundir import open_run_dir
from tests.remedies.test_findings import invoke, require_words, set_site

LOOK = """
import json, pathlib, sys
from dilocoxd.cli.doctor.machine import disk_finding, shm_finding
path = pathlib.Path(sys.argv[1])
print(json.dumps([shm_finding(None).level, disk_finding(path, None).level]))
"""
"""Levels of what the doctor says of /dev/shm and of the disk below a directory."""


def in_own_mounts(script: str, *arguments: str) -> list[list[str]]:
    """What `look DIR` printed each time in a shell script whose mounts are its own."""
    look = f"look() {{ {sys.executable} -c '{LOOK}' \"$1\"; }}"
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-e", "-c", f"{look}\n{script}", "sh", *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


@pytest.mark.remedy("finding:shm")
def test_small_shared_memory_is_made_larger_as_told(tmp_path: Path) -> None:
    command = FINDINGS["shm"][1].partition("otherwise `")[2].partition("`")[0]
    assert command.startswith("mount -o remount"), "the remedy no longer names a command: follow what it says"
    before, after = in_own_mounts(
        f'mount -t tmpfs -o size=1m tmpfs /dev/shm\nlook "$1"\n{command}\nlook "$1"', str(tmp_path)
    )
    assert (before[0], after[0]) == ("warning", "ok")


@pytest.mark.remedy("finding:disk")
def test_a_run_directory_moves_to_a_larger_disk_as_told(tmp_path: Path) -> None:
    require_words("disk", "move the run directory to a larger disk")
    run, small = tmp_path / "run", tmp_path / "small"
    invoke("init", "tiny", "--dir", str(run), "--host", "127.0.0.1")
    before = invoke("id", str(run)).output
    small.mkdir()
    found = in_own_mounts(
        'mount -t tmpfs -o size=64m tmpfs "$1"\nmv "$2" "$1/run"\nlook "$1/run"\nmv "$1/run" "$2"\nlook "$2"',
        str(small), str(run),
    )  # fmt: skip
    assert [disk for _, disk in found] == ["error", "ok"]
    assert invoke("id", str(run)).output == before
    assert invoke("check-config", str(run)).return_value == 0, "it is the same run in another place"


@pytest.mark.remedy("finding:gpu")
def test_a_site_without_enough_gpus_computes_on_the_cpu_as_told(tmp_path: Path) -> None:
    """With whatever GPUs the machine of the tests has: one stage more than those."""
    require_words("gpu", "use fewer processes", "set parallel.device = 'cpu' with parallel.backend = 'gloo'")
    run = tmp_path / "run"
    invoke("init", "tiny", "--dir", str(run), "--host", "127.0.0.1")
    torch = probe_torch()
    set_site(run, "parallel.device=cuda", "parallel.backend=nccl", f"parallel.stages={len(torch.gpus) + 1}")
    assert gpu_finding(torch, open_run_dir(run).load()[1]).level == "error"
    set_site(run, "parallel.device=cpu", "parallel.backend=gloo", "parallel.stages=1")
    assert gpu_finding(torch, open_run_dir(run).load()[1]).level == "info"
    assert invoke("check-config", str(run)).return_value == 0


@pytest.mark.remedy("finding:compiler")
def test_a_site_without_a_compiler_computes_uncompiled_as_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_words("compiler", "Install g++", "set parallel.compile = false")
    run = tmp_path / "run"
    invoke("init", "tiny", "--dir", str(run), "--host", "127.0.0.1")
    set_site(run, "parallel.compile=true")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    done = invoke("check-config", str(run))
    assert done.return_value == ConfigError.exit_code and "g++ (CXX) is not in PATH" in done.output
    set_site(run, "parallel.compile=false")
    assert invoke("check-config", str(run)).return_value == 0
    (tmp_path / "g++").symlink_to("/bin/true")  # as the package manager would, which takes the network
    set_site(run, "parallel.compile=true")
    assert compiler_finding(open_run_dir(run).load()[1]).level == "ok"


@pytest.mark.remedy("finding:python")
def test_an_environment_of_another_python_is_well_as_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_words("python", "Python 3.11", "make a new virtual environment with it")
    with monkeypatch.context() as older:
        older.setattr(sys, "version_info", (3, 10, 14))
        assert python_finding().level == "error"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "new")], check=True)
    ask = "from dilocoxd.cli.doctor.machine import python_finding; print(python_finding().level)"
    paths = [path for path in sys.path if path]  # stands for installing the package there, which takes the network
    done = subprocess.run(
        [tmp_path / "new" / "bin" / "python", "-c", f"import sys; sys.path += {paths!r}; {ask}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["ok"]


@pytest.mark.remedy("finding:torch")
def test_another_torch_is_replaced_by_one_of_the_range_that_the_text_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_words("torch", "Install a version of the range that the text names", "with pip")
    good = importlib.metadata.version("torch").partition("+")[0]
    for version in ("1.13.1", good):
        write_torch(tmp_path, version)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "environment"))
    pip_install(tmp_path, "torch==1.13.1")
    found = torch_finding(probe_torch())
    assert found.level == "warning" and "torch 1.13.1" in found.text
    (wanted,) = re.findall(r"tested with (\S+)$", found.text)
    pip_install(tmp_path, f"torch{wanted}")
    found = torch_finding(probe_torch())
    assert found.level == "ok" and f"torch {good}" in found.text


def write_torch(folder: Path, version: str) -> None:
    """A package that says that it is this version of torch: the real ones are a gigabyte each."""
    name = f"torch-{version}"
    files = {
        "torch/__init__.py": f"__version__ = '{version}'\nfrom torch import cuda, version\n",
        "torch/version.py": "cuda = None\n",
        "torch/cuda.py": "def is_available():\n    return False\n",
        f"{name}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n",
        f"{name}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{name}.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


def pip_install(folder: Path, what: str) -> None:
    place = ["--target", str(folder / "environment"), "--upgrade", "--no-index", "-f", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-compile", *place, what], check=True)
