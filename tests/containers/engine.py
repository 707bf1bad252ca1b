"""A Docker engine of our own and the two images that the tests need, from nothing: no registry of images is asked.

What takes long is kept between runs in DILOCOXD_ENGINE (default: below /var/tmp) and made when it is missing: the base
image (debootstrap), the wheels (pip on the host, which alone reaches the package index), the image of a site. As a
program it makes them all, for the tests that follow. A machine that cannot do this is told so: nothing is left out.
Several test processes may use the engine at once: whoever comes first starts it, whoever goes last ends it.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import psutil

from tests.containers.machine_fault import attempted
from tests.harness.running.sites import ROOT, wait_until
from tests.harness.running.training import write_corpus

FOLDER = Path(os.environ.get("DILOCOXD_ENGINE", "/var/tmp/dilocoxd-engine"))
PREFIX = os.environ.get("DILOCOXD_ENGINE_PREFIX", "dlx")
"""Starts the name of every container, network and volume."""
SUITE, PYTHON = "bookworm", "3.11"
PACKAGES = ("python3", "python3-venv", "make", "systemd", "systemd-sysv", "dbus")
CONTEXT = (".dockerignore", "constraints.txt", "pyproject.toml", "README.md", "LICENSE", "Makefile", "dilocoxd")
CONTEXT_READY = FOLDER / "context"
"""Copy of the repository with the wheels in it, left by `site_image`."""
CONTEXT_FOLDERS = ("docker",)
PROGRAMS = {
    "dockerd": "docker.io", "docker": "docker.io", "docker-compose": "docker-compose", "debootstrap": "debootstrap",
    "iptables": "iptables", "ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "prometheus": "prometheus",
}  # fmt: skip
"""Program of this host -> Debian package that brings it."""
SET_UP_S = 1800.0
"""One step of making an image, on a machine that is many times slower than ours."""


def run(*command: str | Path, timeout_s: float = 600.0, cwd: Path | None = None) -> str:
    """Output of a command; AssertionError with all it said if it fails."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, f"{' '.join(str(c) for c in command)[:300]}: status {done.returncode}\n{said[-6000:]}"
    return done.stdout


def say(text: str) -> None:
    """A line for whoever watches the tests."""
    print(f"-- {text}", flush=True)


def docker(*arguments: str | Path, timeout_s: float = 300.0) -> str:
    """Output of the docker client of our engine. MachineFaultError if the engine, not what it runs, fails again and
    again."""
    return attempted(str(arguments[0]), lambda: run(*client(), *arguments, timeout_s=timeout_s).strip(), say)


def client() -> tuple[str, ...]:
    """Start of a command of our engine. Debian's client goes with its engine; another one may insist on plugins."""
    program = "/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker"
    return program, "--host", f"unix://{FOLDER}/sock"


def _is_up() -> bool:
    return subprocess.run([*client(), "info"], capture_output=True, timeout=180, check=False).returncode == 0


@contextlib.contextmanager
def engine() -> Iterator[None]:
    """Our dockerd, for as long as this block or another process's lasts."""
    check_machine()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "users").open("w") as users:
        with _alone("starting"):
            fcntl.flock(users, fcntl.LOCK_SH)
            if not _is_up():
                _start()
        try:
            yield
        finally:
            with _alone("starting"):
                if _is_last(users):
                    _stop()


def _start() -> None:
    command = [
        "dockerd", "--data-root", f"{FOLDER}/data", "--exec-root", f"{FOLDER}/exec", "--pidfile", f"{FOLDER}/pid",
        "--host", f"unix://{FOLDER}/sock",
        # No default bridge, and the host's own packet filter stays as it is: the networks here are internal ones.
        "--bridge", "none", "--iptables=false", "--ip6tables=false",
    ]  # fmt: skip
    with (FOLDER / "dockerd.log").open("ab") as log:
        (FOLDER / "pid").unlink(missing_ok=True)
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    wait_until(lambda: _is_up() or process.poll() is not None, "dockerd answers", 180, _what_dockerd_said)
    assert process.poll() is None, f"no Docker engine starts on this machine:\n{_what_dockerd_said()}"


def _is_last(users: IO[str]) -> bool:
    """Whether no other process uses the engine; the caller keeps newcomers out meanwhile."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _stop() -> None:
    """Not by the process that started it: that one may be gone, or may have gone on to something else."""
    with contextlib.suppress(FileNotFoundError, psutil.NoSuchProcess):
        process = psutil.Process(int((FOLDER / "pid").read_text()))
        process.terminate()
        process.wait(60)


def check_machine() -> None:
    """AssertionError with one sentence if this host lacks what an engine needs."""
    missing = sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})
    assert not missing, f"tests of services and containers need programs: apt-get install {' '.join(missing)}"
    found = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert found == PYTHON, f"the images have Python {PYTHON}, and wheels made by {found} do not fit"
    assert os.geteuid() == 0, "tests of services and containers start a Docker engine of their own: run them as root"


def _what_dockerd_said() -> str:
    return (FOLDER / "dockerd.log").read_text("utf-8", "replace")[-3000:]


def _tagged(name: str, digest: str) -> str:
    return f"{PREFIX}-{name}:{digest}"


def _has(image: str) -> bool:
    return bool(docker("images", "-q", image))


@contextlib.contextmanager
def _alone(what: str = "lock") -> Iterator[None]:
    """Nobody else does `what` (default: makes images or wheels) in the same folder meanwhile."""
    with (FOLDER / what).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def base_image() -> str:
    """Tag of a Debian with Python and systemd, made first if we do not have it."""
    with _alone():
        return _base_image()


def wheels() -> Path:
    """Folder with the wheels of torch and all dependencies, made first if they have changed."""
    with _alone():
        return _wheels()


def site_image() -> str:
    """Tag of the image that docker/Dockerfile makes of this tree, made first if the tree has changed."""
    with _alone():
        return _site_image()


def corpus() -> Path:
    """Folder with the text that sites in containers train on, made first if we do not have it."""
    with _alone():
        folder = FOLDER / "text"
        folder.mkdir(exist_ok=True)
        return folder / "corpus" if (folder / "corpus").exists() else write_corpus(folder)


def _base_image() -> str:
    """Tag of a Debian with Python and systemd; made by debootstrap if we do not have it."""
    image = _tagged("base", hashlib.sha256(" ".join((SUITE, *PACKAGES)).encode()).hexdigest()[:12])
    if _has(image):
        return image
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="debootstrap-", dir=FOLDER) as folder:
        root = Path(folder) / "root"
        run("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, root, timeout_s=SET_UP_S)
        for litter in [*(root / "var/cache/apt/archives").glob("*.deb"), *(root / "var/lib/apt/lists").glob("*_*")]:
            litter.unlink()
        archive = Path(folder) / "base.tar"
        run("tar", "-C", root, "-cf", archive, ".")
        docker("import", archive, image, timeout_s=SET_UP_S)
    say(f"base image by debootstrap in {time.monotonic() - started:.0f} s")
    return image


def _wheels() -> Path:
    """Folder with the wheels of torch and all dependencies; downloaded or built on this host if they have changed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = sorted([*project["dependencies"], *project["optional-dependencies"]["hf"]])
    wanted = hashlib.sha256((ROOT / "constraints.txt").read_bytes() + repr(needs).encode())
    folder = FOLDER / "wheels"
    stamp = folder / "stamp"
    if stamp.exists() and stamp.read_text() == wanted.hexdigest():
        return folder
    started = time.monotonic()
    fresh = FOLDER / "wheels.fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "-w", str(fresh), "-c", str(ROOT / "constraints.txt"))
    if folder.exists():
        pip += ("-f", str(folder))
    context = FOLDER / "wheels.source"
    copy_source(context)
    # In the order of the Makefile: torch decides by its exact version which build is taken.
    run(*pip, "torch==2.13.0", "setuptools", timeout_s=SET_UP_S)
    torch = f"torch @ file://{next(fresh.glob('torch-*.whl'))}"
    run(*pip, torch, "--no-build-isolation", f"{context}[hf]", cwd=context, timeout_s=SET_UP_S)
    for own in fresh.glob("dilocoxd-*.whl"):
        own.unlink()
    shutil.rmtree(context)
    (fresh / "stamp").write_text(wanted.hexdigest())
    shutil.rmtree(folder, ignore_errors=True)
    fresh.replace(folder)
    say(f"wheels in {time.monotonic() - started:.0f} s")
    return folder


def copy_source(target: Path) -> None:
    """What an image is built from, and what an operator would have checked out, without anything that is not in git."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.whl")
    for name in (*CONTEXT, *CONTEXT_FOLDERS):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignored)
        else:
            shutil.copy2(source, target / name)


def _context_of(wheel_folder: Path, base: str) -> str:
    """Digest of what the site image is made from; leaves it in CONTEXT_READY, untouched if it is there already, for
    another process may stand in it."""
    fresh = FOLDER / "context.fresh"
    copy_source(fresh)
    files = sorted(path for path in fresh.rglob("*") if path.is_file())
    whole = hashlib.sha256(b"".join(str(path.relative_to(fresh)).encode() + path.read_bytes() for path in files))
    whole.update((wheel_folder / "stamp").read_bytes())
    made_of = ("dilocoxd", "docker", "constraints.txt", "pyproject.toml", ".dockerignore")
    parts = [path for path in files if path.relative_to(fresh).parts[0] in made_of]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in parts) + base.encode()).hexdigest()[:12]
    stamp = FOLDER / "context.stamp"
    if CONTEXT_READY.exists() and stamp.exists() and stamp.read_text() == whole.hexdigest():
        shutil.rmtree(fresh)
    else:
        for wheel in wheel_folder.glob("*.whl"):
            os.link(wheel, fresh / "docker" / "wheels" / wheel.name)
        stamp.unlink(missing_ok=True)
        shutil.rmtree(CONTEXT_READY, ignore_errors=True)
        fresh.replace(CONTEXT_READY)
        stamp.write_text(whole.hexdigest())
    return digest


def _site_image() -> str:
    """Tag of the image that docker/Dockerfile makes of this tree, on our base image, without any network."""
    with ThreadPoolExecutor() as pool:
        making_base, making_wheels = pool.submit(_base_image), pool.submit(_wheels)
        base, folder = making_base.result(), making_wheels.result()
    context = CONTEXT_READY
    digest = _context_of(folder, base)
    image = _tagged("site", digest)
    if _has(image):
        return image
    started = time.monotonic()
    arguments = ("--build-arg", f"BASE_IMAGE={base}", "--build-arg", "OFFLINE=1", "--network", "none")
    docker("build", "-q", "-f", context / "docker/Dockerfile", *arguments, "-t", image, context, timeout_s=SET_UP_S)
    size = int(docker("image", "inspect", "-f", "{{.Size}}", image)) / 1e6
    base_size = int(docker("image", "inspect", "-f", "{{.Size}}", base)) / 1e6
    say(f"site image in {time.monotonic() - started:.0f} s: {size:.0f} MB, of which the base {base_size:.0f} MB")
    return image


if __name__ == "__main__":
    with engine():
        site_image()
        corpus()
