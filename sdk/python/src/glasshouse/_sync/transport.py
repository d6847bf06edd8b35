# Made by `make sdk` from _async/transport.py. Do not edit.
"""HTTP/1.1 to one daemon: requests, responses and connection errors."""

from __future__ import annotations

import time
import json
import os
import re
import secrets
from typing import Any, Iterator, Dict, Iterable, List, Mapping, Optional, Tuple, Union
from urllib.parse import quote, urlencode

from .. import _address, _sse, errors
from .connection import Connection

Content = Union[bytes, Iterable[bytes]]

# Maximum attempts of a request that can be retried, and the delay before a retry.
_TRIES = 3
_TRY_SECONDS = 0.2
_IDLE = 16  # maximum number of idle connections
_PIECE = 64 << 10
_LONGEST_LINE = 4 << 20


def new_key() -> str:
    """Return an idempotency key: the daemon executes requests with the same key once."""
    return secrets.token_hex(16)


class Answer:
    """A response whose body has not been read. Read it, iterate over it, or close it."""

    def __init__(self, transport: Transport, connection: Connection, status: int, headers: Dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self._transport = transport
        self._connection: Optional[Connection] = connection
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = headers.get("content-length")
        self._left: Optional[int] = None if self._chunked or length is None else int(length)
        if status in (204, 304):
            self._left, self._chunked = 0, False
        self._first = True

    def piece(self) -> bytes:
        """Read the next piece of the body; empty at its end."""
        connection = self._connection
        if connection is None:
            return b""
        try:
            if self._chunked and not self._left:
                self._left = self._chunk(connection)
            if self._left == 0:
                self._release()
                return b""
            data = connection.read(_PIECE if self._left is None else min(self._left, _PIECE))
        except OSError as e:
            self.close()
            raise errors.Disconnected(f"the connection to the daemon broke: {e}") from e
        except BaseException:
            self.close()
            raise
        if self._left is not None:
            if not data:
                self.close()
                raise errors.Disconnected("the connection was closed in the middle of the response")
            self._left -= len(data)
        elif not data:
            self.close()
        return data

    def _chunk(self, connection: Connection) -> int:
        """Read the length of the next chunk; 0 after the last one."""
        if not self._first:
            connection.readline()
        self._first = False
        line = connection.readline()
        try:
            size = int(line.split(b";")[0], 16)
        except ValueError:
            raise OSError("the response is truncated") from None
        if size == 0:
            while (connection.readline()).strip():
                pass
        return size

    def read(self) -> bytes:
        """Read the whole body."""
        pieces: List[bytes] = []
        while True:
            data = self.piece()
            if not data:
                return b"".join(pieces)
            pieces.append(data)

    def lines(self) -> Iterator[bytes]:
        """Iterate over the lines of the body, without line ends. An incomplete last line is
        dropped."""
        rest = b""
        while True:
            data = self.piece()
            if not data:
                return
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                yield line[:-1] if line.endswith(b"\r") else line
            if len(rest) > _LONGEST_LINE:
                self.close()
                raise errors.GlasshouseError("a line of the response is too long")

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if self.headers.get("connection", "").lower() == "close":
                connection.hang_up()
            else:
                self._transport._keep(connection)

    def close(self) -> None:
        """Discard the unread rest of the body. It may be called twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.hang_up()

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Answer:
        return self

    def __next__(self) -> bytes:
        data = self.piece()
        if not data:
            raise StopIteration
        return data


class Lines:
    """The lines of a response, decoded from JSON."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._lines = answer.lines()

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> Any:
        return json.loads((self._lines.__next__()).decode("utf-8", "surrogateescape"))

    def close(self) -> None:
        self._answer.close()


class Events:
    """The server-sent events of one response. It does not reconnect."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._lines = answer.lines()
        self._events = _sse.Events()

    def __iter__(self) -> Events:
        return self

    def __next__(self) -> _sse.ServerEvent:
        for line in self._lines:
            event = self._events.line(line)
            if event is not None:
                return event
        raise StopIteration

    def close(self) -> None:
        self._answer.close()


class Transport:
    """Makes requests. Safe for concurrent use by threads or tasks."""

    def __init__(self, address: Optional[str] = None, token: Optional[str] = None) -> None:
        self._address = _address.find(address)
        self._token = token if token is not None else os.environ.get("GLASSHOUSE_TOKEN")
        if self._token and not re.fullmatch(r"[\x21-\x7e]+", self._token):
            raise errors.Invalid("a token consists of printable ASCII characters", field="token")
        self._idle: List[Connection] = []

    def close(self) -> None:
        """Close idle connections. The client can still be used."""
        while self._idle:
            self._idle.pop().hang_up()

    def _keep(self, connection: Connection) -> None:
        if len(self._idle) < _IDLE:
            self._idle.append(connection)
        else:
            connection.hang_up()

    def _connection(self) -> Connection:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if not connection.stale():
                return connection
            connection.hang_up()
        try:
            return Connection.open(self._address)
        except OSError as e:
            raise errors.Unavailable(f"no daemon answers: {e}", remedy="start one: glasshouse serve") from e

    @staticmethod
    def _part(value: object) -> str:
        """Encode a value as a path element."""
        return quote(str(value), safe="")

    def _open(
        self,
        method: str,
        path: str,
        *,
        query: Optional[Mapping[str, Any]] = None,
        body: Optional[Any] = None,
        content: Optional[Content] = None,
        content_type: Optional[str] = None,
        accept: Optional[str] = None,
        key: Optional[str] = None,
        last: Optional[str] = None,
    ) -> Answer:
        """Make a request and return the response if its status is a success. If the connection
        breaks, retry requests that are safe to repeat."""
        if body is not None:
            content, content_type = json.dumps(body).encode(), "application/json"
        headers = {"Host": self._address.authority, "Accept": accept or "application/json"}
        for name, value in (("Content-Type", content_type), ("Idempotency-Key", key), ("Last-Event-ID", last)):
            if value is not None:
                headers[name] = value
        if self._token:
            headers["Authorization"] = "Bearer " + self._token
        again = method == "GET" or key is not None
        tries = 1
        while True:
            try:
                return self._send(method, path + _query(query), headers, content)
            except errors.Disconnected:
                if not again or tries == _TRIES:
                    raise
            time.sleep(tries * _TRY_SECONDS)
            tries += 1

    def _send(self, method: str, target: str, headers: Dict[str, str], content: Optional[Content]) -> Answer:
        connection = self._connection()
        try:
            _write(connection, method, target, headers, content)
            status, answered = _head(connection)
        except OSError as e:
            connection.hang_up()
            raise errors.Disconnected(f"the connection to the daemon broke: {e}") from e
        except BaseException:
            connection.hang_up()  # the rest of the response cannot be used
            raise
        answer = Answer(self, connection, status, answered)
        if 200 <= status < 300:
            return answer
        raise _problem(status, answered, answer.read())

    def _json(self, method: str, path: str, **request: Any) -> Any:
        answer = self._open(method, path, **request)
        return json.loads((answer.read()).decode("utf-8", "surrogateescape"))

    def _none(self, method: str, path: str, **request: Any) -> None:
        (self._open(method, path, **request)).read()

    def _text(self, method: str, path: str, **request: Any) -> str:
        return ((self._open(method, path, **request)).read()).decode("utf-8", "replace")

    def _sse(self, method: str, path: str, **request: Any) -> Events:
        return Events(self._open(method, path, **request))

    def _lines(self, method: str, path: str, **request: Any) -> Lines:
        return Lines(self._open(method, path, **request))


def _query(query: Optional[Mapping[str, Any]]) -> str:
    """Encode a query. None is omitted, and a list becomes one parameter for each item."""
    pairs: List[Tuple[str, str]] = []
    for name, value in (query or {}).items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is not None:
                pairs.append((name, str(one).lower() if isinstance(one, bool) else str(one)))
    return "?" + urlencode(pairs) if pairs else ""


def _write(connection: Connection, method: str, target: str, headers: Dict[str, str], content: Optional[Content]) -> None:
    if isinstance(content, bytes):
        headers["Content-Length"] = str(len(content))
    elif content is not None:
        headers["Transfer-Encoding"] = "chunked"
    elif method != "GET":
        headers["Content-Length"] = "0"
    for name, value in headers.items():
        if "\r" in value or "\n" in value:
            raise errors.Invalid("a header value cannot contain a line break", field=name)
    head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
    if content is None or isinstance(content, bytes):
        connection.write(head.encode("latin-1") + (content or b""))
        return
    connection.write(head.encode("latin-1"))
    for piece in content:
        if piece:
            connection.write(b"%x\r\n%b\r\n" % (len(piece), piece))
    connection.write(b"0\r\n\r\n")


def _head(connection: Connection) -> Tuple[int, Dict[str, str]]:
    """Read the status and the headers of a response."""
    while True:
        line = connection.readline()
        if not line:
            raise OSError("the connection was closed")
        version, _, rest = line.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            raise OSError("the response is not HTTP")
        headers: Dict[str, str] = {}
        while True:
            line = connection.readline()
            if not line.endswith(b"\n"):
                raise OSError("the connection was closed")
            if not line.strip():
                break
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        status = int(rest[:3])
        if status >= 200:  # skip informational responses (1xx)
            return status, headers


def _problem(status: int, headers: Mapping[str, str], body: bytes) -> errors.GlasshouseError:
    if headers.get("content-type", "").startswith("application/problem+json"):
        try:
            return errors.of_problem(json.loads(body))
        except ValueError:
            pass
    return errors.GlasshouseError(f"unexpected response with status {status}: is this a Glasshouse daemon?", status=status)
