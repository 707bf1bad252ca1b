"""A network between node and head that can be cut: its connections end, in the middle of what they carry."""

import asyncio
from types import TracebackType
from typing import Self


class WireBetween:
    """Connections to `port` lead to the head's."""

    def __init__(self, head_port: int) -> None:
        self.port = 0
        self._head_port = head_port
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """All at once, and what was on its way is lost."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_head, to_head = await asyncio.open_connection("127.0.0.1", self._head_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers += [writer, to_head]
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(reader, to_head), name="to the head")
            group.create_task(_copy(from_head, writer), name="to the node")


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.transport.abort()
