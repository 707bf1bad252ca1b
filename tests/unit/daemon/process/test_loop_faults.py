"""An end of a TLS connection is told to nobody as a fault of the program; everything else is."""

import asyncio
import logging

import pytest
import uvloop

from dilocoxd.daemon.process.loop_faults import tell_faults


class SSLProtocol:
    """Named like uvloop's, which cannot be made without a connection."""


async def closed_transport_error() -> RuntimeError:
    """What uvloop itself raises for a transport that is closed."""
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.transport.abort()
        await asyncio.sleep(0)
        try:
            writer.transport.write(b"x")
            writer.transport.set_write_buffer_limits(1)
        except RuntimeError as error:
            return error
    raise AssertionError("uvloop takes a closed transport now: loop_faults.py can go")


def told(protocol: object, caplog: pytest.LogCaptureFixture) -> list[str]:
    async def say() -> None:
        loop = asyncio.get_running_loop()
        tell_faults(loop)
        error = await closed_transport_error()
        loop.call_exception_handler({"message": "Fatal error", "exception": error, "protocol": protocol})

    with caplog.at_level(logging.INFO):
        uvloop.run(say())
    return [record.getMessage() for record in caplog.records]


def test_end_of_a_tls_connection_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    assert told(SSLProtocol(), caplog) == []


def test_the_same_of_anything_else_is_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    assert any("Fatal error" in line for line in told(asyncio.Protocol(), caplog))
