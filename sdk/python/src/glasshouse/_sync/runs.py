# Made by `make sdk` from _async/runs.py. Do not edit.
"""Sessions, agent runs and schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator, List, Literal, Optional, cast

from .. import errors, wire
from .._sse import ServerEvent
from .operations import Operations
from .stream import Stream
from .transport import Events, new_key

if TYPE_CHECKING:
    from typing_extensions import Unpack

_ENDED = ("done", "failed", "cancelled")


class Run:
    """An agent run for a goal. info is the last known state."""

    def __init__(self, api: Operations, info: wire.Run) -> None:
        self.api = api
        self.info = info

    @property
    def id(self) -> str:
        return self.info["id"]

    @property
    def state(self) -> str:
        """The last known state: scheduled, active, paused, done, failed or cancelled."""
        return self.info["state"]

    @property
    def result(self) -> str:
        """The result, once the run is done."""
        return self.info.get("result", "")

    def __repr__(self) -> str:
        return f"<run {self.id} {self.state}>"

    def refresh(self) -> wire.Run:
        self.info = self.api.get_run(self.id)
        return self.info

    def wait(self) -> str:
        """Wait until the run is done, and return its result. If it fails or is cancelled, raise
        RunFailed. While it is paused, for approval or a budget, continue to wait."""
        self.refresh()
        if self.state not in _ENDED:
            # Read from the first event, so that no change after refresh is missed.
            with _session_events(self.api, self.info["session_id"], 0) as events:
                for event in events:
                    if event.get("run") == self.id and event.get("kind") == "run.moved":
                        self.refresh()
                        if self.state in _ENDED:
                            break
        if self.state != "done":
            why = self.info.get("error") or self.info.get("reason") or self.state
            raise errors.RunFailed(f"the run {self.id} is {self.state}: {why}", self.info)
        return self.result

    def actions(self) -> Iterator[wire.RunAction]:
        """List its actions in order."""
        after: Optional[int] = None
        while True:
            page = self.api.list_actions(self.id, after=after)
            for action in page["items"]:
                yield action
            if not page.get("next"):
                return
            after = int(page["next"])

    def pause(self) -> None:
        """Pause the run and freeze its jail."""
        self.info = self.api.pause_run(self.id)

    def resume(self, **how: Unpack[wire.ResumeRun]) -> None:
        """Resume the run, or restore it from a checkpoint."""
        runs = (self.api.resume_run(self.id, how, idempotency_key=new_key()))["runs"]
        self.info = runs[0]

    def branch(self, count: int, checkpoint: Optional[str] = None) -> List[Run]:
        """Start count runs from a checkpoint of this one."""
        how = cast(wire.ResumeRun, {"branch": count})
        if checkpoint is not None:
            how["checkpoint"] = checkpoint
        runs = (self.api.resume_run(self.id, how, idempotency_key=new_key()))["runs"]
        return [Run(self.api, r) for r in runs]

    def cancel(self) -> None:
        """Cancel the run and its child runs."""
        self.info = self.api.cancel_run(self.id)

    def checkpoint(self, **how: Unpack[wire.TakeCheckpoint]) -> wire.Checkpoint:
        """Take a checkpoint of the run and its jail."""
        return self.api.checkpoint_run(self.id, how, idempotency_key=new_key())

    def checkpoints(self) -> Iterator[wire.Checkpoint]:
        """List its checkpoints, oldest first."""
        after: Optional[int] = None
        while True:
            page = self.api.list_checkpoints(self.id, after=after)
            for c in page["items"]:
                yield c
            if not page.get("next"):
                return
            after = int(page["next"])


class Session:
    """A session: a conversation of a user with agents, with messages and runs that share a
    budget."""

    def __init__(self, api: Operations, info: wire.Session) -> None:
        self.api = api
        self.info = info

    @property
    def id(self) -> str:
        return self.info["id"]

    def __repr__(self) -> str:
        return f"<session {self.id}>"

    def run(self, goal: str, **how: Unpack[wire.StartRunOptions]) -> Run:
        """Start an agent run for a goal: now, at a time, or by a schedule."""
        return start_run(self.api, goal, cast(wire.StartRun, {"session_id": self.id, **how}))

    def send(self, text: str, **how: Unpack[wire.SendMessageOptions]) -> wire.Message:
        """Send a message to its agent."""
        return self.api.send_message(cast(wire.SendMessage, {"session_id": self.id, "text": text, **how}), idempotency_key=new_key())

    def messages(self, direction: Optional[Literal["in", "out"]] = None) -> Iterator[wire.Message]:
        """List its messages, oldest first, in one direction or both."""
        after: Optional[int] = None
        while True:
            page = self.api.list_messages(session_id=self.id, direction=direction, after=after)
            for m in page["items"]:
                yield m
            if not page.get("next"):
                return
            after = int(page["next"])

    def events(self, after: int = 0) -> Stream[wire.RunEvent]:
        """Stream its events after a sequence number."""
        return _session_events(self.api, self.id, after)

    def close(self) -> None:
        """Close the session. Its messages are kept."""
        self.api.close_session(self.id)


class Schedule:
    """A schedule of runs."""

    def __init__(self, api: Operations, info: wire.Schedule) -> None:
        self.api = api
        self.info = info

    @property
    def id(self) -> str:
        return self.info["id"]

    def refresh(self) -> wire.Schedule:
        """Update info, including the next ten times."""
        self.info = self.api.get_schedule(self.id)
        return self.info

    def pause(self) -> None:
        self.info = self.api.pause_schedule(self.id)

    def resume(self) -> None:
        self.info = self.api.resume_schedule(self.id)

    def delete(self) -> None:
        """Delete the schedule. Runs that it has started are kept."""
        self.api.delete_schedule(self.id)


def start_run(api: Operations, goal: str, how: wire.StartRun) -> Run:
    how["goal"] = goal
    return Run(api, api.start_run(how, idempotency_key=new_key()))


def _session_events(api: Operations, session: str, after: int) -> Stream[wire.RunEvent]:
    def connect(last: Optional[str], told: int) -> Events:
        return api.stream_session(session, after=after if last is None else None, last_event_id=last)

    def take(event: ServerEvent) -> Optional[wire.RunEvent]:
        return cast(wire.RunEvent, event.data)

    return Stream(connect, take)
