"""Agents at work: sessions, runs, schedules."""

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
    """An agent that pursues a goal. info is what was last heard of it."""

    def __init__(self, api: AsyncOperations, info: wire.Run) -> None:
        self.api = api
        self.info = info

    @property
    def id(self) -> str:
        return self.info["id"]

    @property
    def state(self) -> str:
        """scheduled, active, paused, done, failed or cancelled, when last heard of."""
        return self.info["state"]

    @property
    def result(self) -> str:
        """What it came to, once it is done."""
        return self.info.get("result", "")

    def __repr__(self) -> str:
        return f"<run {self.id} {self.state}>"

    async def refresh(self) -> wire.Run:
        self.info = await self.api.get_chat_run_by_run(self.id)
        return self.info

    async def wait(self) -> str:
        """Wait until it is done, and return its result. One that fails or is cancelled
        raises RunFailed. One that pauses, for a person or a budget, is waited for."""
        await self.refresh()
        if self.state not in _ENDED:
            # Told from the first event on, so that none is missed between the two.
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
        """What it has done, in its order."""
        after: Optional[int] = None
        while True:
            page = await self.api.get_chat_run_by_run_actions(self.id, after=after)
            for action in page["items"]:
                yield action
            if not page.get("next"):
                return
            after = int(page["next"])

    async def pause(self) -> None:
        """Have it wait. Its jail stands still."""
        self.info = await self.api.post_chat_run_by_run_pause(self.id)

    async def resume(self, **how: Unpack[wire.ResumeRun]) -> None:
        """Have it go on where it was, or go back to a checkpoint."""
        runs = (await self.api.post_chat_run_by_run_resume(self.id, how, idempotency_key=new_key()))["runs"]
        self.info = runs[0]

    async def branch(self, count: int, checkpoint: Optional[str] = None) -> List[AsyncRun]:
        """Have so many others go on from a checkpoint of it."""
        how = cast(wire.ResumeRun, {"branch": count})
        if checkpoint is not None:
            how["checkpoint"] = checkpoint
        runs = (await self.api.post_chat_run_by_run_resume(self.id, how, idempotency_key=new_key()))["runs"]
        return [AsyncRun(self.api, r) for r in runs]

    async def cancel(self) -> None:
        """End it and those that are a part of it."""
        self.info = await self.api.post_chat_run_by_run_cancel(self.id)

    async def checkpoint(self, **how: Unpack[wire.TakeCheckpoint]) -> wire.Checkpoint:
        """Keep it as it is, with its jail."""
        return await self.api.post_chat_run_by_run_checkpoint(self.id, how, idempotency_key=new_key())

    async def checkpoints(self) -> AsyncIterator[wire.Checkpoint]:
        """Its checkpoints, oldest first."""
        after: Optional[int] = None
        while True:
            page = await self.api.get_chat_run_by_run_checkpoints(self.id, after=after)
            for c in page["items"]:
                yield c
            if not page.get("next"):
                return
            after = int(page["next"])


class AsyncSession:
    """Somebody's conversation with agents: messages, and runs that share a budget."""

    def __init__(self, api: AsyncOperations, info: wire.Session) -> None:
        self.api = api
        self.info = info

    @property
    def id(self) -> str:
        return self.info["id"]

    def __repr__(self) -> str:
        return f"<session {self.id}>"

    async def run(self, goal: str, **how: Unpack[wire.StartRunOptions]) -> AsyncRun:
        """Have an agent pursue a goal: now, at a time, or by a schedule."""
        return await start_run(self.api, goal, cast(wire.StartRun, {"session_id": self.id, **how}))

    async def send(self, text: str, **how: Unpack[wire.SendMessageOptions]) -> wire.Message:
        """Tell its agent something."""
        return await self.api.post_chat_send(cast(wire.SendMessage, {"session_id": self.id, "text": text, **how}), idempotency_key=new_key())

    async def messages(self, direction: Optional[Literal["in", "out"]] = None) -> AsyncIterator[wire.Message]:
        """What was said, oldest first, in one direction or both."""
        after: Optional[int] = None
        while True:
            page = await self.api.get_chat_inbox(session_id=self.id, direction=direction, after=after)
            for m in page["items"]:
                yield m
            if not page.get("next"):
                return
            after = int(page["next"])

    def events(self, after: int = 0) -> AsyncStream[wire.RunEvent]:
        """What happens in it, from after a seq on, for as long as one asks."""
        return _session_events(self.api, self.id, after)

    async def close(self) -> None:
        """Close it. What was said in it stays."""
        await self.api.delete_chat_session_by_session(self.id)


class AsyncSchedule:
    """When runs are made."""

    def __init__(self, api: AsyncOperations, info: wire.Schedule) -> None:
        self.api = api
        self.info = info

    @property
    def id(self) -> str:
        return self.info["id"]

    async def refresh(self) -> wire.Schedule:
        """Ask how it is now, and for its next ten times."""
        self.info = await self.api.get_schedules_by_schedule(self.id)
        return self.info

    async def pause(self) -> None:
        self.info = await self.api.post_schedules_by_schedule_pause(self.id)

    async def resume(self) -> None:
        self.info = await self.api.post_schedules_by_schedule_resume(self.id)

    async def delete(self) -> None:
        """Remove it. Runs that it has made stay."""
        await self.api.delete_schedules_by_schedule(self.id)


async def start_run(api: AsyncOperations, goal: str, how: wire.StartRun) -> AsyncRun:
    how["goal"] = goal
    return AsyncRun(api, await api.post_chat_run(how, idempotency_key=new_key()))


def _session_events(api: AsyncOperations, session: str, after: int) -> AsyncStream[wire.RunEvent]:
    async def connect(last: Optional[str], told: int) -> AsyncEvents:
        return await api.get_chat_events_by_session(session, after=after if last is None else None, last_event_id=last)

    def take(event: ServerEvent) -> Optional[wire.RunEvent]:
        return cast(wire.RunEvent, event.data)

    return AsyncStream(connect, take)
