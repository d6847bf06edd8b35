# Made by `make sdk` from _async/stream.py. Do not edit.
"""Streams that go on where they were when their connection breaks."""

from __future__ import annotations

import time
import time
from typing import Awaitable, Callable, Generic, Optional, TypeVar

from .. import errors
from .._sse import ServerEvent
from .transport import Events

T = TypeVar("T")

# How long a stream tries to come back to a daemon that has gone away, and how long it
# waits between.
PATIENCE_SECONDS = 30.0
_FIRST_SECONDS = 0.05
_LAST_SECONDS = 2.0


class Ended(Exception):
    """Nothing more comes."""


class Stream(Generic[T]):
    """What the daemon tells, one after the other, for as long as one asks.

    If the connection breaks it is made again, and the stream goes on behind the last
    that was told; only a daemon that stays away for half a minute ends it. Close it, or
    use it in a with block, if it is left before its end.
    """

    def __init__(
        self,
        connect: Callable[[Optional[str], int], Events],
        take: Callable[[ServerEvent], Optional[T]],
        *,
        resumes: bool = True,
        events: Optional[Events] = None,
    ) -> None:
        self._connect = connect  # from the id of the last event on, of so many that were told
        self._take = take  # what an event tells, if it tells anything; or Ended
        self._resumes = resumes
        self._events = events
        self._begun = events is not None
        self._ended = False
        self._last: Optional[str] = None
        self._told = 0
        self._wait = 0.0

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        while not self._ended:
            event = self._event()
            if event is None:
                continue
            if event.name == "end":
                break
            if event.name == "error":
                self.close()
                raise errors.of_problem(event.data)
            try:
                item = self._take(event)
            except Ended:
                break
            if event.id is not None:
                self._last = event.id
            if item is not None:
                self._told += 1
                return item
        self.close()
        raise StopIteration

    def _event(self) -> Optional[ServerEvent]:
        """The next event, or None when the connection broke and may be made again."""
        if self._events is None:
            self._events = self._come()
        try:
            event = self._events.__next__()
        except (StopIteration, errors.Disconnected) as e:
            self._events.close()
            self._events = None
            if not self._resumes:
                self._ended = True
                raise errors.Disconnected("the stream broke, and what came since is not known") from e
            # A daemon that takes the call and says nothing is not to be asked in haste.
            time.sleep(self._wait)
            self._wait = min(max(2 * self._wait, _FIRST_SECONDS), _LAST_SECONDS)
            return None
        self._wait = 0.0
        return event

    def _come(self) -> Events:
        """Connect: the first time at once or not at all, later with patience."""
        until = time.monotonic() + PATIENCE_SECONDS
        wait = _FIRST_SECONDS
        while True:
            try:
                events = self._connect(self._last, self._told)
                self._begun = True
                return events
            except errors.Unavailable:
                if not self._begun or time.monotonic() > until:
                    self._ended = True
                    raise
            except errors.GlasshouseError:
                self._ended = True  # what it was about is gone, or we may no longer
                raise
            time.sleep(wait)
            wait = min(2 * wait, _LAST_SECONDS)

    def close(self) -> None:
        """Hear no more. It may be called twice."""
        self._ended = True
        if self._events is not None:
            self._events.close()
            self._events = None

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_events", None) is not None:
            self.close()
