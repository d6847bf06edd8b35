"""The client for a daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, AsyncIterator, List, Mapping, Optional, cast

from .. import errors, wire
from .._sse import ServerEvent
from .jail import AsyncJail, AsyncSnapshot
from .operations import AsyncOperations
from .runs import AsyncRun, AsyncSchedule, AsyncSession, start_run
from .stream import AsyncStream
from .transport import AsyncEvents, AsyncLines, new_key

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncGlasshouse:
    """A Glasshouse daemon.

        async with AsyncGlasshouse() as gh:
            async with await gh.jail(name="box") as jail:
                print((await jail.run("uname -a")).stdout)

    address is unix:///path, http://host:port or https://host:port. The default is
    $GLASSHOUSE_ADDR, the socket in the data directory, or port 8082 of this host. Over the
    network a token is required; the default is $GLASSHOUSE_TOKEN.

    api has a method for each operation of the daemon, including those without a method of
    this class.
    """

    def __init__(self, address: Optional[str] = None, *, token: Optional[str] = None) -> None:
        self.api = AsyncOperations(address, token)

    async def __aenter__(self) -> AsyncGlasshouse:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close idle connections."""
        await self.api.aclose()

    async def version(self) -> wire.Version:
        return await self.api.get_version()

    async def me(self) -> wire.Me:
        """Return the identity and role of the caller."""
        return await self.api.get_caller()

    async def doctor(self) -> List[wire.Probe]:
        """Return the features of the host, with remedies for missing ones."""
        return (await self.api.diagnose_host())["items"]

    # Jails.

    async def jail(self, **spec: Unpack[wire.CreateJail]) -> AsyncJail:
        """Create a jail and start it, unless start is False. A with block removes it at its
        end."""
        spec.setdefault("start", True)
        return AsyncJail(self.api, await self.api.create_jail(spec, idempotency_key=new_key()))

    async def find_jail(self, id: str) -> AsyncJail:
        """Return an existing jail by its id."""
        return AsyncJail(self.api, await self.api.get_jail(id))

    async def jails(self, *, name: Optional[str] = None, state: Optional[Any] = None, labels: Optional[Mapping[str, str]] = None) -> AsyncIterator[AsyncJail]:
        """List jails, oldest first."""
        label = [f"{k}={v}" for k, v in labels.items()] if labels else None
        after: Optional[str] = None
        while True:
            page = await self.api.list_jails(after=after, name=name, state=state, label=label)
            for j in page["items"]:
                yield AsyncJail(self.api, j)
            after = page.get("next")
            if not after:
                return

    async def find_snapshot(self, id: str) -> AsyncSnapshot:
        return AsyncSnapshot(self.api, await self.api.get_snapshot(id))

    async def snapshots(self) -> AsyncIterator[AsyncSnapshot]:
        """List snapshots, oldest first."""
        after: Optional[str] = None
        while True:
            page = await self.api.list_snapshots(after=after)
            for s in page["items"]:
                yield AsyncSnapshot(self.api, s)
            after = page.get("next")
            if not after:
                return

    async def lineage(self, jail: Optional[str] = None) -> List[wire.LineageJail]:
        """Return the lineage of jails and snapshots as trees."""
        return (await self.api.get_lineage(jail=jail))["items"]

    # Approvals.

    async def approvals(self, *, jail: Optional[str] = None, state: Optional[Any] = None) -> List[wire.Approval]:
        """List pending approval requests, oldest first, or those in another state."""
        return (await self.api.list_approvals(state=state, jail=jail))["items"]

    async def approval(self, id: str, *, wait: float = 0) -> wire.Approval:
        """Return an approval request, after waiting up to wait seconds for a decision."""
        return await self.api.get_approval(id, wait_ms=round(wait * 1000) or None)

    async def approve(self, id: str, **how: Unpack[wire.AnswerApprovalOptions]) -> wire.Approval:
        """Approve a request: once, or for the given scope. The first decision is final."""
        return await self.api.answer_approval(id, cast(wire.AnswerApproval, {"answer": "allow", **how}))

    async def deny(self, id: str, reason: str = "") -> wire.Approval:
        return await self.api.answer_approval(id, {"answer": "deny", "reason": reason})

    def approval_events(self) -> AsyncStream[wire.ApprovalEvent]:
        """Stream changes of approval requests, starting with the pending ones. After a reconnect
        the pending requests are sent again."""

        async def connect(last: Optional[str], told: int) -> AsyncEvents:
            return await self.api.stream_approvals()

        def take(event: ServerEvent) -> Optional[wire.ApprovalEvent]:
            return cast(wire.ApprovalEvent, event.data)

        return AsyncStream(connect, take)

    # Capabilities.

    async def capabilities(self) -> List[wire.Capability]:
        """List all versions of capabilities, by id, newest first."""
        return (await self.api.list_capabilities())["items"]

    async def capability(self, id: str, version: Optional[str] = None) -> wire.Capability:
        """Return a version of a capability with its manifest and schemas; by default the newest."""
        return await self.api.get_capability(id, version=version)

    async def register(self, manifest: str, **how: Unpack[wire.RegisterOptions]) -> List[wire.Capability]:
        """Register the capabilities of a manifest. dir is the directory of its files on the
        daemon's host. New permissions require approval by a person."""
        return (await self.api.register_capabilities(cast(wire.Register, {"manifest": manifest, **how})))["items"]

    async def call(self, capability: str, input: Any = None, /, **how: Unpack[wire.Call]) -> Any:
        """Call a capability and return its output. If the capability fails, raise CallFailed; if
        the call is denied, raise one of the other errors."""
        called = await self.called(capability, input, **how)
        if called.get("state") != "done":
            error = cast(Mapping[str, Any], called.get("error") or {})
            raise errors.CallFailed(f"{capability}: {error.get('message') or called.get('state')}", called, error.get("remedy"))
        return called.get("output")

    async def called(self, capability: str, input: Any = None, /, **how: Unpack[wire.Call]) -> wire.Called:
        """Call a capability and return the complete result: output, usage, label, entry."""
        body = cast(wire.Call, {"input": {} if input is None else input, **how})
        return await self.api.call_capability(capability, body, idempotency_key=new_key())

    # Sessions and runs.

    async def session(self, **how: Unpack[wire.OpenSession]) -> AsyncSession:
        """Open a session, or return the existing one with this name."""
        return AsyncSession(self.api, await self.api.create_session(how, idempotency_key=new_key()))

    async def find_session(self, id: str) -> AsyncSession:
        return AsyncSession(self.api, await self.api.get_session(id))

    async def sessions(self, *, state: Optional[Any] = None) -> AsyncIterator[AsyncSession]:
        """List sessions, newest first."""
        after: Optional[str] = None
        while True:
            page = await self.api.list_sessions(after=after, state=state)
            for s in page["items"]:
                yield AsyncSession(self.api, s)
            after = page.get("next")
            if not after:
                return

    async def run(self, goal: str, **how: Unpack[wire.StartRunOptions]) -> AsyncRun:
        """Start an agent run for a goal: now, at a time, or by a schedule."""
        return await start_run(self.api, goal, cast(wire.StartRun, dict(how)))

    async def find_run(self, id: str) -> AsyncRun:
        return AsyncRun(self.api, await self.api.get_run(id))

    async def runs(self, *, session: Optional[str] = None, state: Optional[Any] = None) -> AsyncIterator[AsyncRun]:
        """List runs, newest first."""
        after: Optional[str] = None
        while True:
            page = await self.api.list_runs(session_id=session, state=state, after=after)
            for r in page["items"]:
                yield AsyncRun(self.api, r)
            after = page.get("next")
            if not after:
                return

    async def find_schedule(self, id: str) -> AsyncSchedule:
        return AsyncSchedule(self.api, await self.api.get_schedule(id))

    async def schedules(self) -> AsyncIterator[AsyncSchedule]:
        """List schedules, oldest first."""
        after: Optional[str] = None
        while True:
            page = await self.api.list_schedules(after=after)
            for s in page["items"]:
                yield AsyncSchedule(self.api, s)
            after = page.get("next")
            if not after:
                return

    # Audit log.

    async def chain(self, *, jail: Optional[str] = None, session: Optional[str] = None, run: Optional[str] = None, kind: Optional[str] = None, after: Optional[int] = None) -> AsyncIterator[wire.ChainEntry]:
        """List entries of the audit log, oldest first."""
        while True:
            page = await self.api.list_chain_entries(jail=jail, session=session, run=run, kind=kind, after=after)
            for entry in page["items"]:
                yield entry
            if not page.get("next"):
                return
            after = int(page["next"])

    async def chain_head(self) -> wire.ChainHead:
        return await self.api.get_chain_head()

    async def verify_chain(self, *, all: bool = False) -> wire.ChainReport:
        """Verify the audit log: the entries since the last verification, or all."""
        return await self.api.verify_chain(all=all or None)

    async def export_chain(self) -> AsyncLines:
        """Export the audit log with its checkpoints and public key, line by line."""
        return await self.api.export_chain()

    def feed(self, topics: Optional[str] = None) -> AsyncStream[ServerEvent]:
        """Stream events and resource usage of jails for comma-separated topics. The name of an
        event is its topic."""

        async def connect(last: Optional[str], told: int) -> AsyncEvents:
            return await self.api.stream_feed(topics=topics, last_event_id=last)

        def take(event: ServerEvent) -> Optional[ServerEvent]:
            return event

        return AsyncStream(connect, take)
