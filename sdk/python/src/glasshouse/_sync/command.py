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
    """A command that runs, or ran, in a jail: go through it for what it writes.

    It goes on whether or not anybody listens, and also without the daemon.
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
        """What it wrote and writes, from an offset on: without one, from the first that
        is still kept. It goes on where it was when the connection breaks, to the end."""
        events, self._first = (self._first, None) if from_ is None else (None, self._first)
        at = from_

        def connect(last: Optional[str], told: int) -> Events:
            begin = None if last is not None else at
            return self._api.get_jails_by_id_execs_by_exec_stream(self._jail, self.id, from_=begin, last_event_id=last)

        def take(event: ServerEvent) -> Optional[Output]:
            if event.name == "output":
                return output_of(event.data)
            if event.name == "exit":
                self.info = event.data
                raise Ended
            return None  # a later daemon may say more

        return Stream(connect, take, events=events)

    def __iter__(self) -> Command:
        return self

    def __next__(self) -> Output:
        if self._stream is None:
            self._stream = self.output()
        return self._stream.__next__()

    def wait(self) -> Result:
        """Wait for its end. The result has the output that is still kept in the jail;
        its stdout and stderr are not what was gone through before, but all."""
        if self.info.get("exit_code") is None:
            if self._stream is None:
                self._stream = self.output()
            for _ in self._stream:
                pass
        return self.result()

    def result(self) -> Result:
        """What is known of it now. The exit code of one that runs is -1."""
        self.info = self._api.get_jails_by_id_execs_by_exec(self._jail, self.id)
        return result_of(self.info)

    def write(self, data: Union[Input, Content], *, close: bool = False) -> None:
        """Give it something to read, and with close then nothing more."""
        content = data.encode() if isinstance(data, str) else data
        self._api.post_jails_by_id_execs_by_exec_stdin(self._jail, self.id, content, close=close)

    def close_stdin(self) -> None:
        self.write(b"", close=True)

    def signal(self, signal: str) -> None:
        """Send a signal to its process group: INT, TERM, KILL or a number."""
        self._api.post_jails_by_id_execs_by_exec_signal(self._jail, self.id, {"signal": signal})

    def resize(self, cols: int, rows: int) -> None:
        self._api.post_jails_by_id_execs_by_exec_resize(self._jail, self.id, {"cols": cols, "rows": rows})

    def close(self) -> None:
        """Listen no more. The command goes on."""
        if self._stream is not None:
            self._stream.close()
        if self._first is not None:
            self._first.close()

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
