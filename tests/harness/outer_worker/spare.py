"""A fork server that waits until it is asked for: a fork of a process that has loaded all that its workers import."""

import asyncio
import contextlib
import json
import os
import select
import socket
import subprocess
import traceback
from collections.abc import Mapping, Sequence
from typing import Final

from dilocoxd.ipc.child import die_with_parent
from tests.harness.outer_worker.first_fork_server import be_fork_server

MESSAGE_BYTES_MAX: Final = 1 << 17


class Spare:
    """The fork, which ends with the process that made it. Has what is used of asyncio's Process and of Popen."""

    def __init__(self) -> None:
        """Fork it now: this process must not have threads yet."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._status: int | None = None
        owner = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._control.close()
            status = 1
            try:
                status = _wait_and_be(theirs, owner)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        theirs.close()

    def be(self, command: Sequence[str], environment: Mapping[str, str], stdin: int, output: int) -> None:
        """Be the fork server of this command, once. Raises OSError if it has died."""
        order = {"command": [*command], "environment": {**environment}}
        with self._control:
            socket.send_fds(self._control, [json.dumps(order).encode()], [stdin, output])

    def launch(self, command: Sequence[str], environment: Mapping[str, str], control: socket.socket) -> "Spare":
        """`be`, with the control socket where a fork server looks for it (forks.Launch)."""
        self.be(command, environment, control.fileno(), 2)
        return self

    def poll(self) -> int | None:
        """Exit status, or None while it runs."""
        if self._status is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def wait_for(self, timeout_s: float) -> int:
        """Exit status. Raises subprocess.TimeoutExpired."""
        place = os.pidfd_open(self.pid) if self.poll() is None else -1
        if place >= 0:
            select.select([place], [], [], timeout_s)
            os.close(place)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout_s)
        return status

    async def wait(self) -> int:
        """Exit status."""
        if self.poll() is None:
            loop = asyncio.get_running_loop()
            place = os.pidfd_open(self.pid)
            ended = asyncio.Event()
            loop.add_reader(place, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(place)
                os.close(place)
        status = self.poll()
        assert status is not None
        return status


def _wait_and_be(control: socket.socket, owner: int) -> int:
    die_with_parent(owner)
    data, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES_MAX, 2)
    control.close()
    if not data:
        return 0
    order = json.loads(data)
    os.setsid()
    stdin, output = descriptors
    for descriptor, number in ((stdin, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, number)
    os.close(stdin)
    os.close(output)
    return be_fork_server(order["command"], order["environment"])
