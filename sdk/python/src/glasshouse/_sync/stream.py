# Made by `make sdk` from _async/stream.py. Do not edit.
"""Streams that resume when their connection breaks."""

from __future__ import annotations

import time
import time
from typing import Awaitable, Callable, Generic, Optional, TypeVar

from .. import errors
from .._sse import ServerEvent
from .transport import Events

T = TypeVar("T")

# Time limit for reconnecting to a daemon, and delays between attempts.
PATIENCE_SECONDS = 30.0
_FIRST_SECONDS = 0.05
_LAST_SECONDS = 2.0


class Ended(Exception):
    """The stream has ended."""


class Stream(Generic[T]):
    """A stream of items from the daemon.

    If the connection breaks, the stream reconnects and resumes after the last item. It ends
    with an error if the daemon is unavailable for half a minute. If you do not read it to its
    end, close it or use it in a with block.
    """

    def __init__(
        self,
        connect: Callable[[Optional[str], int], Events],
        take: Callable[[ServerEvent], Optional[T]],
        *,
        resumes: bool = True,
        events: Optional[Events] = None,
    ) -> None:
        self._connect = connect  # with the id of the last event and the number of items so far
        self._take = take  # converts an event to an item or None, or raises Ended
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
        """Return the next event, or None if the connection broke and the stream may reconnect."""
        if self._events is None:
            self._events = self._come()
        try:
            event = self._events.__next__()
        except (StopIteration, errors.Disconnected) as e:
            self._events.close()
            self._events = None
            if not self._resumes:
                self._ended = True
                raise errors.Disconnected("the stream broke, and events may have been missed") from e
            # Delay the next attempt if the daemon accepts connections but sends no events.
            time.sleep(self._wait)
            self._wait = min(max(2 * self._wait, _FIRST_SECONDS), _LAST_SECONDS)
            return None
        self._wait = 0.0
        return event

    def _come(self) -> Events:
        """Connect. The first time, do not retry; later, retry for PATIENCE_SECONDS."""
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
                self._ended = True  # for example, the jail was deleted or the token revoked
                raise
            time.sleep(wait)
            wait = min(2 * wait, _LAST_SECONDS)

    def close(self) -> None:
        """Close the stream. It may be called twice."""
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
