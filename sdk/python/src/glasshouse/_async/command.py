"""Commands that run in a jail."""

from __future__ import annotations

from typing import Optional, Union

from .. import wire
from .._sse import ServerEvent
from .._values import Input, Output, Result, output_of, result_of
from .operations import AsyncOperations
from .stream import AsyncStream, Ended
from .transport import AsyncEvents, Content


class AsyncCommand:
    """A command that runs, or ran, in a jail. Iterate over it to read its output.

    It runs independently of this client and of the daemon.
    """

    def __init__(self, api: AsyncOperations, jail: str, info: wire.Exec, events: Optional[AsyncEvents] = None) -> None:
        self._api = api
        self._jail = jail
        self._first = events
        self._stream: Optional[AsyncStream[Output]] = None
        self.info = info

    @property
    def id(self) -> str:
        return self.info["id"]

    def output(self, from_: Optional[int] = None) -> AsyncStream[Output]:
        """Stream the output from an offset to the end; by default from the first byte that is
        still stored. The stream resumes if the connection breaks."""
        events, self._first = (self._first, None) if from_ is None else (None, self._first)
        at = from_

        async def connect(last: Optional[str], told: int) -> AsyncEvents:
            begin = None if last is not None else at
            return await self._api.get_exec_stream(self._jail, self.id, from_=begin, last_event_id=last)

        def take(event: ServerEvent) -> Optional[Output]:
            if event.name == "output":
                return output_of(event.data)
            if event.name == "exit":
                self.info = event.data
                raise Ended
            return None  # other events may be added by later versions

        return AsyncStream(connect, take, events=events)

    def __aiter__(self) -> AsyncCommand:
        return self

    async def __anext__(self) -> Output:
        if self._stream is None:
            self._stream = self.output()
        return await self._stream.__anext__()

    async def wait(self) -> Result:
        """Wait for the end of the command. The result contains all output that is still stored in
        the jail, including output that was read before."""
        if self.info.get("exit_code") is None:
            if self._stream is None:
                self._stream = self.output()
            async for _ in self._stream:
                pass
        return await self.result()

    async def result(self) -> Result:
        """Return the current state. The exit code of a running command is -1."""
        self.info = await self._api.get_exec(self._jail, self.id)
        return result_of(self.info)

    async def write(self, data: Union[Input, Content], *, close: bool = False) -> None:
        """Write to its standard input, and with close then close it."""
        content = data.encode() if isinstance(data, str) else data
        await self._api.write_stdin(self._jail, self.id, content, close=close)

    async def close_stdin(self) -> None:
        await self.write(b"", close=True)

    async def signal(self, signal: str) -> None:
        """Send a signal to its process group: INT, TERM, KILL or a number."""
        await self._api.signal_exec(self._jail, self.id, {"signal": signal})

    async def resize(self, cols: int, rows: int) -> None:
        await self._api.resize_exec(self._jail, self.id, {"cols": cols, "rows": rows})

    def close(self) -> None:
        """Stop reading output. The command continues to run."""
        if self._stream is not None:
            self._stream.close()
        if self._first is not None:
            self._first.close()

    async def __aenter__(self) -> AsyncCommand:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
