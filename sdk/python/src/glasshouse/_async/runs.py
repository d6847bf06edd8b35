"""Sessions, agent runs and schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, AsyncIterator, List, Literal, Optional, cast

from .. import errors, wire
from .._sse import ServerEvent
from .operations import AsyncOperations
from .stream import AsyncStream
from .transport import AsyncEvents, new_key

if TYPE_CHECKING:
    from typing_extensions import Unpack

_ENDED = ("done", "failed", "cancelled")


class AsyncRun:
    """An agent run for a goal. info is the last known state."""

    def __init__(self, api: AsyncOperations, info: wire.Run) -> None:
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

    async def refresh(self) -> wire.Run:
        self.info = await self.api.get_run(self.id)
        return self.info

    async def wait(self) -> str:
        """Wait until the run is done, and return its result. If it fails or is cancelled, raise
        RunFailed. While it is paused, for approval or a budget, continue to wait."""
        await self.refresh()
        if self.state not in _ENDED:
            # Read from the first event, so that no change after refresh is missed.
            async with _session_events(self.api, self.info["session_id"], 0) as events:
                async for event in events:
                    if event.get("run") == self.id and event.get("kind") == "run.moved":
                        await self.refresh()
                        if self.state in _ENDED:
                            break
        if self.state != "done":
            why = self.info.get("error") or self.info.get("reason") or self.state
            raise errors.RunFailed(f"the run {self.id} is {self.state}: {why}", self.info)
        return self.result

    async def actions(self) -> AsyncIterator[wire.RunAction]:
        """List its actions in order."""
        after: Optional[int] = None
        while True:
            page = await self.api.list_actions(self.id, after=after)
            for action in page["items"]:
                yield action
            if not page.get("next"):
                return
            after = int(page["next"])

    async def pause(self) -> None:
        """Pause the run and freeze its jail."""
        self.info = await self.api.pause_run(self.id)

    async def resume(self, **how: Unpack[wire.ResumeRun]) -> None:
        """Resume the run, or restore it from a checkpoint."""
        runs = (await self.api.resume_run(self.id, how, idempotency_key=new_key()))["runs"]
        self.info = runs[0]

    async def branch(self, count: int, checkpoint: Optional[str] = None) -> List[AsyncRun]:
        """Start count runs from a checkpoint of this one."""
        how = cast(wire.ResumeRun, {"branch": count})
        if checkpoint is not None:
            how["checkpoint"] = checkpoint
        runs = (await self.api.resume_run(self.id, how, idempotency_key=new_key()))["runs"]
        return [AsyncRun(self.api, r) for r in runs]

    async def cancel(self) -> None:
        """Cancel the run and its child runs."""
        self.info = await self.api.cancel_run(self.id)

    async def checkpoint(self, **how: Unpack[wire.TakeCheckpoint]) -> wire.Checkpoint:
        """Take a checkpoint of the run and its jail."""
        return await self.api.checkpoint_run(self.id, how, idempotency_key=new_key())

    async def checkpoints(self) -> AsyncIterator[wire.Checkpoint]:
        """List its checkpoints, oldest first."""
        after: Optional[int] = None
        while True:
            page = await self.api.list_checkpoints(self.id, after=after)
            for c in page["items"]:
                yield c
            if not page.get("next"):
                return
            after = int(page["next"])


class AsyncSession:
    """A session: a conversation of a user with agents, with messages and runs that share a
    budget."""

    def __init__(self, api: AsyncOperations, info: wire.Session) -> None:
        self.api = api
        self.info = info

    @property
    def id(self) -> str:
        return self.info["id"]

    def __repr__(self) -> str:
        return f"<session {self.id}>"

    async def run(self, goal: str, **how: Unpack[wire.StartRunOptions]) -> AsyncRun:
        """Start an agent run for a goal: now, at a time, or by a schedule."""
        return await start_run(self.api, goal, cast(wire.StartRun, {"session_id": self.id, **how}))

    async def send(self, text: str, **how: Unpack[wire.SendMessageOptions]) -> wire.Message:
        """Send a message to its agent."""
        return await self.api.send_message(cast(wire.SendMessage, {"session_id": self.id, "text": text, **how}), idempotency_key=new_key())

    async def messages(self, direction: Optional[Literal["in", "out"]] = None) -> AsyncIterator[wire.Message]:
        """List its messages, oldest first, in one direction or both."""
        after: Optional[int] = None
        while True:
            page = await self.api.list_messages(session_id=self.id, direction=direction, after=after)
            for m in page["items"]:
                yield m
            if not page.get("next"):
                return
            after = int(page["next"])

    def events(self, after: int = 0) -> AsyncStream[wire.RunEvent]:
        """Stream its events after a sequence number."""
        return _session_events(self.api, self.id, after)

    async def close(self) -> None:
        """Close the session. Its messages are kept."""
        await self.api.close_session(self.id)


class AsyncSchedule:
    """A schedule of runs."""

    def __init__(self, api: AsyncOperations, info: wire.Schedule) -> None:
        self.api = api
        self.info = info

    @property
    def id(self) -> str:
        return self.info["id"]

    async def refresh(self) -> wire.Schedule:
        """Update info, including the next ten times."""
        self.info = await self.api.get_schedule(self.id)
        return self.info

    async def pause(self) -> None:
        self.info = await self.api.pause_schedule(self.id)

    async def resume(self) -> None:
        self.info = await self.api.resume_schedule(self.id)

    async def delete(self) -> None:
        """Delete the schedule. Runs that it has started are kept."""
        await self.api.delete_schedule(self.id)


async def start_run(api: AsyncOperations, goal: str, how: wire.StartRun) -> AsyncRun:
    how["goal"] = goal
    return AsyncRun(api, await api.start_run(how, idempotency_key=new_key()))


def _session_events(api: AsyncOperations, session: str, after: int) -> AsyncStream[wire.RunEvent]:
    async def connect(last: Optional[str], told: int) -> AsyncEvents:
        return await api.stream_session(session, after=after if last is None else None, last_event_id=last)

    def take(event: ServerEvent) -> Optional[wire.RunEvent]:
        return cast(wire.RunEvent, event.data)

    return AsyncStream(connect, take)
