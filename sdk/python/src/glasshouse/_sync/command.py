# Made by `make sdk` from _async/command.py. Do not edit.
"""Commands that run in a jail."""

from __future__ import annotations

from typing import Optional, Union

from .. import wire
from .._sse import ServerEvent
from .._values import Input, Output, Result, output_of, result_of
from .operations import Operations
from .stream import Stream, Ended
from .transport import Events, Content


class Command:
    """A command that runs, or ran, in a jail. Iterate over it to read its output.

    It runs independently of this client and of the daemon.
    """

    def __init__(self, api: Operations, jail: str, info: wire.Exec, events: Optional[Events] = None) -> None:
        self._api = api
        self._jail = jail
        self._first = events
        self._stream: Optional[Stream[Output]] = None
        self.info = info

    @property
    def id(self) -> str:
        return self.info["id"]

    def output(self, from_: Optional[int] = None) -> Stream[Output]:
        """Stream the output from an offset to the end; by default from the first byte that is
        still stored. The stream resumes if the connection breaks."""
        events, self._first = (self._first, None) if from_ is None else (None, self._first)
        at = from_

        def connect(last: Optional[str], told: int) -> Events:
            begin = None if last is not None else at
            return self._api.get_exec_stream(self._jail, self.id, from_=begin, last_event_id=last)

        def take(event: ServerEvent) -> Optional[Output]:
            if event.name == "output":
                return output_of(event.data)
            if event.name == "exit":
                self.info = event.data
                raise Ended
            return None  # other events may be added by later versions

        return Stream(connect, take, events=events)

    def __iter__(self) -> Command:
        return self

    def __next__(self) -> Output:
        if self._stream is None:
            self._stream = self.output()
        return self._stream.__next__()

    def wait(self) -> Result:
        """Wait for the end of the command. The result contains all output that is still stored in
        the jail, including output that was read before."""
        if self.info.get("exit_code") is None:
            if self._stream is None:
                self._stream = self.output()
            for _ in self._stream:
                pass
        return self.result()

    def result(self) -> Result:
        """Return the current state. The exit code of a running command is -1."""
        self.info = self._api.get_exec(self._jail, self.id)
        return result_of(self.info)

    def write(self, data: Union[Input, Content], *, close: bool = False) -> None:
        """Write to its standard input, and with close then close it."""
        content = data.encode() if isinstance(data, str) else data
        self._api.write_stdin(self._jail, self.id, content, close=close)

    def close_stdin(self) -> None:
        self.write(b"", close=True)

    def signal(self, signal: str) -> None:
        """Send a signal to its process group: INT, TERM, KILL or a number."""
        self._api.signal_exec(self._jail, self.id, {"signal": signal})

    def resize(self, cols: int, rows: int) -> None:
        self._api.resize_exec(self._jail, self.id, {"cols": cols, "rows": rows})

    def close(self) -> None:
        """Stop reading output. The command continues to run."""
        if self._stream is not None:
            self._stream.close()
        if self._first is not None:
            self._first.close()

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
