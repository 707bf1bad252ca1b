"""`dilocoxd join` as a process against ports that are closed, silent or something else: what it says, and how soon."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.harness.running.run_directories import free_port

pytestmark = pytest.mark.processes

PEER = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"


def join(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dilocoxd", "join", "--timeout", "4", "--no-run", *arguments]
    root = Path(__file__).resolve().parents[3]
    environment = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def assert_clean_failure(done: subprocess.CompletedProcess[str], folder: Path, *parts: str) -> None:
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr, done.stderr
    assert list(folder.iterdir()) == [], "a join that failed left something behind"


def test_closed_port_is_named_with_its_address(tmp_path: Path) -> None:
    port = free_port()
    done = join(tmp_path, f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER}")
    assert_clean_failure(done, tmp_path, f"127.0.0.1 port {port} is closed", "`dilocoxd status` on that machine")
    assert PEER not in done.stderr
    said = done.stderr.partition("no site of the run was reached (tried for ")[2]
    assert int(said.partition(" s)")[0]) >= 1, "as long as it was"


def test_something_else_on_the_port_is_told_apart(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def greet() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        try:
            done = join(tmp_path, f"127.0.0.1:{port}/{PEER}")
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert_clean_failure(done, tmp_path, f"127.0.0.1 port {port}: something accepts", "no dilocoxd")
    assert "negotiate" not in done.stderr and "[/ip4" not in done.stderr, "libp2p's own words"


def test_every_address_is_tried_and_told(tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    done = join(tmp_path, *(f"127.0.0.1:{port}" for port in ports))
    assert_clean_failure(done, tmp_path, f"port {ports[0]} is closed", f"port {ports[1]} is closed")
