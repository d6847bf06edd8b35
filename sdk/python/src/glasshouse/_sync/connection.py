"""A connection to the daemon, by a socket that blocks."""

from __future__ import annotations

import io
import select
import socket

from .._address import Address

CONNECT_SECONDS = 10
_LINE = 64 << 10  # of HTTP's own lines


class Connection:
    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = io.BufferedReader(socket.SocketIO(sock, "r"), _LINE)

    @classmethod
    def open(cls, address: Address) -> Connection:
        if address.path:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(CONNECT_SECONDS)
                sock.connect(address.path)
            except BaseException:
                sock.close()
                raise
        else:
            sock = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls:
                sock = address.tls.wrap_socket(sock, server_hostname=address.host)
        sock.settimeout(None)  # commands and streams last as long as they last
        return cls(sock)

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def readline(self) -> bytes:
        """The next line, or less at the end."""
        line = self._reader.readline(_LINE)
        if len(line) == _LINE:
            raise OSError("a line of the answer is too long")
        return line

    def read(self, most: int) -> bytes:
        """At least one byte, or nothing at the end."""
        return self._reader.read1(most)

    def stale(self) -> bool:
        """Whether the daemon has closed the connection. No request is pending, so data means the same."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLHUP)
        return bool(poll.poll(0))

    def hang_up(self) -> None:
        """End the connection, also for another thread that waits at it."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()
