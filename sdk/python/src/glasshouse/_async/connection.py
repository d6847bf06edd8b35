"""A connection to the daemon with asyncio."""

from __future__ import annotations

import asyncio
import socket
from typing import Optional

from .._address import Address

CONNECT_SECONDS = 10
_LINE = 64 << 10  # maximum length of a line of the HTTP header


class AsyncConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(cls, address: Address) -> AsyncConnection:
        if address.path:
            dial = asyncio.open_unix_connection(address.path, limit=_LINE)
        else:
            dial = asyncio.open_connection(address.host, address.port, ssl=address.tls, limit=_LINE)
        try:
            reader, writer = await asyncio.wait_for(dial, CONNECT_SECONDS)
        except asyncio.TimeoutError:
            raise OSError(f"connection timed out after {CONNECT_SECONDS} s") from None
        sock: Optional[socket.socket] = writer.get_extra_info("socket")
        if sock is not None and not address.path:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return cls(reader, writer)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def readline(self) -> bytes:
        """Read a line; at the end of the stream it may be incomplete or empty."""
        try:
            return await self._reader.readline()
        except ValueError:
            raise OSError("a line of the response is too long") from None

    async def read(self, most: int) -> bytes:
        """Read at least one byte, or none at the end of the stream."""
        return await self._reader.read(most)

    def stale(self) -> bool:
        """Report whether the daemon has closed the connection, or the event loop has changed."""
        return self._reader.at_eof() or self._writer.is_closing() or self._loop is not asyncio.get_running_loop()

    def hang_up(self) -> None:
        try:
            self._writer.transport.abort()
        except RuntimeError:
            pass  # the event loop is closed, which has closed the connection
