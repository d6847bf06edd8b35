"""Jails and snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, AsyncIterator, List, Mapping, Optional, Sequence, Tuple, Union, cast

from .. import errors, wire
from .._sse import ServerEvent
from .._values import CommandLine, Input, Result, exec_request, result_of
from .command import AsyncCommand
from .files import AsyncFiles
from .operations import AsyncOperations
from .stream import AsyncStream
from .transport import AsyncEvents, new_key

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncJail:
    """A jail. A with block removes it at its end.

    info is the last known state; refresh() updates it.
    """

    def __init__(self, api: AsyncOperations, info: wire.Jail) -> None:
        self.api = api
        self.info = info
        self.files = AsyncFiles(api, info["id"])

    @property
    def id(self) -> str:
        return self.info["id"]

    @property
    def name(self) -> str:
        return self.info.get("name", "")

    @property
    def state(self) -> str:
        """The last known state: created, starting, running, paused, stopped or failed."""
        return self.info["state"]

    def __repr__(self) -> str:
        return f"<jail {self.id} {self.state}>"

    async def __aenter__(self) -> AsyncJail:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.delete()
        except errors.NotFound:
            pass

    async def refresh(self) -> wire.Jail:
        """Update info, including resource usage."""
        self.info = await self.api.get_jail(self.id)
        return self.info

    async def start(self) -> None:
        self.info = await self.api.start_jail(self.id)

    async def stop(self, grace: Optional[float] = None) -> None:
        """End all processes. grace is the time in seconds between SIGTERM and SIGKILL. Files
        are kept."""
        body = None if grace is None else cast(wire.StopJail, {"grace_ms": round(grace * 1000)})
        self.info = await self.api.stop_jail(self.id, body)

    async def pause(self) -> None:
        """Freeze all processes."""
        self.info = await self.api.pause_jail(self.id)

    async def resume(self) -> None:
        self.info = await self.api.resume_jail(self.id)

    async def delete(self, *, snapshots: bool = False) -> None:
        """Remove the jail and its files, and with snapshots also its snapshots."""
        await self.api.delete_jail(self.id, snapshots=snapshots or None)

    async def set_limits(self, **limits: Unpack[wire.Limits]) -> None:
        """Change resource limits while the jail runs. Limits that are not given do not change."""
        self.info = await self.api.update_jail_limits(self.id, limits)

    # Commands.

    async def run(
        self,
        command: CommandLine,
        *,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        user: Optional[str] = None,
        stdin: Optional[Input] = None,
        timeout: Optional[float] = None,
        pty: Optional[Tuple[int, int]] = None,
        keep_bytes: Optional[int] = None,
        check: bool = False,
    ) -> Result:
        """Run a command and wait for its end. A string is run by /bin/sh; a list is a program
        and its arguments. After timeout seconds the command is killed. With check, an exit code
        other than 0 raises CommandFailed."""
        request = exec_request(command, env, cwd, user, stdin, timeout, pty, keep_bytes)
        result = result_of(await self.api.exec_command(self.id, request))
        return result.check() if check else result

    async def stream(
        self,
        command: CommandLine,
        *,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        user: Optional[str] = None,
        stdin: Optional[Input] = None,
        stdin_open: bool = False,
        timeout: Optional[float] = None,
        pty: Optional[Tuple[int, int]] = None,
        keep_bytes: Optional[int] = None,
        lossless: bool = False,
    ) -> AsyncCommand:
        """Run a command and stream its output. With stdin_open, write() writes to its standard
        input. With lossless, a slow reader blocks the command instead of losing output."""
        request = exec_request(command, env, cwd, user, stdin, timeout, pty, keep_bytes)
        request["stream"] = True
        if stdin_open:
            request["stdin_open"] = True
        if lossless:
            request["lossless"] = True
        events = await self.api.exec_command_stream(self.id, request)
        try:
            start = await events.__anext__()
        except StopAsyncIteration:
            raise errors.Disconnected("the connection was closed before the command's id was received") from None
        if start.name == "error":
            raise errors.of_problem(start.data)
        return AsyncCommand(self.api, self.id, start.data, events)

    async def spawn(
        self,
        command: CommandLine,
        *,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        user: Optional[str] = None,
        stdin: Optional[Input] = None,
        stdin_open: bool = False,
        timeout: Optional[float] = None,
        pty: Optional[Tuple[int, int]] = None,
        keep_bytes: Optional[int] = None,
    ) -> AsyncCommand:
        """Start a command in the background. Up to keep_bytes of its output are stored in the
        jail for later readers."""
        request = exec_request(command, env, cwd, user, stdin, timeout, pty, keep_bytes)
        request["detach"] = True
        if stdin_open:
            request["stdin_open"] = True
        return AsyncCommand(self.api, self.id, await self.api.exec_command(self.id, request, idempotency_key=new_key()))

    async def command(self, id: str) -> AsyncCommand:
        """Return a command that was started before."""
        return AsyncCommand(self.api, self.id, await self.api.get_exec(self.id, id))

    async def commands(self) -> AsyncIterator[wire.Exec]:
        """List the commands that are still known, oldest first."""
        after: Optional[str] = None
        while True:
            page = await self.api.list_execs(self.id, after=after)
            for x in page["items"]:
                yield x
            after = page.get("next")
            if not after:
                return

    # Events.

    def events(
        self,
        filter: Optional[str] = None,
        *,
        after: Optional[int] = None,
        since: Optional[str] = None,
        until: Optional[str] = None,
        tail: Optional[int] = None,
        limit: Optional[int] = None,
        follow: bool = True,
    ) -> AsyncStream[wire.Event]:
        """Stream events, oldest first: past events and, by default, new ones.

        The filter consists of terms separated by spaces, such as "type:file path:/etc ret:<0".
        since and until are times (RFC 3339) or durations before now, such as "5m"; after is a
        sequence number. The stream ends with the jail and resumes after a restart of the daemon.
        """

        async def connect(last: Optional[str], told: int) -> AsyncEvents:
            return await self.api.stream_events_stream(
                self.id,
                q=filter,
                after=after if last is None else None,
                since=since,
                until=until,
                tail=tail if last is None else None,
                limit=None if limit is None else limit - told,
                follow=follow,
                last_event_id=last,
            )

        def take(event: ServerEvent) -> Optional[wire.Event]:
            return cast(wire.Event, event.data)

        return AsyncStream(connect, take)

    async def processes(self, at: Optional[str] = None, *, all: bool = False) -> List[wire.Process]:
        """List processes, each after its parent: now, at a time, at a duration before now, or at a
        sequence number. With all, include processes that have ended."""
        return (await self.api.list_processes(self.id, at=at, all=all or None))["items"]

    async def connections(self) -> AsyncIterator[wire.Flow]:
        """List network connections in the order of their start."""
        after: Optional[str] = None
        while True:
            page = await self.api.list_network_flows(self.id, after=after)
            for flow in page["items"]:
                yield flow
            after = page.get("next")
            if not after:
                return

    async def changes(self, *, workspace: bool = False, against: Optional[str] = None, path: Optional[str] = None, unified: bool = False) -> AsyncIterator[wire.Change]:
        """Return the changes of its root filesystem or workspace, or the differences from a
        snapshot or another jail, by path. With unified, include unified diffs."""
        after: Optional[str] = None
        while True:
            page = await self.api.diff_files(
                self.id, after=after, workspace=workspace or None, against=against, path=path, content="unified" if unified else None
            )
            for change in page["items"]:
                yield change
            after = page.get("next")
            if not after:
                return

    async def diff(self, against: Union[str, AsyncJail, AsyncSnapshot], *, only: Optional[Sequence[str]] = None, unified: bool = False) -> wire.Comparison:
        """Return the changes that lead from this jail to another jail or a snapshot: files,
        workspace, processes, events and usage, or only some of them."""
        return await self.api.compare_jail(
            self.id, against=_id(against), only=",".join(only) if only else None, content="unified" if unified else None
        )

    # Snapshots and branches.

    async def snapshot(self, **how: Unpack[wire.TakeSnapshot]) -> AsyncSnapshot:
        """Take a snapshot of memory and files. The jail continues to run."""
        return AsyncSnapshot(self.api, await self.api.take_snapshot(self.id, how, idempotency_key=new_key()))

    async def snapshots(self) -> AsyncIterator[AsyncSnapshot]:
        """List its snapshots, oldest first."""
        after: Optional[str] = None
        while True:
            page = await self.api.list_jail_snapshots(self.id, after=after)
            for s in page["items"]:
                yield AsyncSnapshot(self.api, s)
            after = page.get("next")
            if not after:
                return

    async def branch(self, count: int = 1, **how: Unpack[wire.BranchOptions]) -> AsyncBranches:
        """Branch (fork) count jails from the current state. This jail continues to run.

        Returns a list of the branches with their snapshot. A with block removes all of them at
        its end. If some branches cannot be created, raises BranchFailed with those that were
        created.
        """
        body = cast(wire.Branch, {"count": count, **how})
        return _branches(self.api, await self.api.branch_jail(self.id, body, idempotency_key=new_key()))

    async def rewind(self, snapshot: Union[str, AsyncSnapshot]) -> None:
        """Rewind to a snapshot. Later events stay in the event log."""
        self.info = await self.api.rewind_jail(self.id, {"snapshot": _id(snapshot)}, idempotency_key=new_key())

    # Policy.

    async def policy(self) -> wire.PolicyState:
        """Return the policy, its interpretation, and lint findings."""
        return await self.api.get_policy(self.id)

    async def set_policy(self, **policy: Unpack[wire.Policy]) -> wire.PolicyState:
        """Replace the policy. It takes effect immediately."""
        return await self.api.put_policy(self.id, policy)

    async def set_level(self, level: int) -> wire.PolicyState:
        """Change the autonomy level: lower it, or raise it up to its ceiling. It takes effect
        immediately."""
        return await self.api.set_policy_level(self.id, {"level": level})

    async def decide(self, action: str, resource: str = "", *, agent: Optional[str] = None, attributes: Optional[Mapping[str, str]] = None, wait: float = 0) -> wire.Verdict:
        """Evaluate the policy for an action, and wait up to wait seconds if it requires
        approval."""
        body = {"action": action, "resource": resource, "agent": agent, "attributes": attributes and dict(attributes), "wait_ms": round(wait * 1000)}
        return await self.api.request_decision(self.id, cast(wire.Decide, {k: v for k, v in body.items() if v}))

    async def trail(self) -> AsyncIterator[wire.TrailEntry]:
        """List its policy decisions, oldest first."""
        after: Optional[int] = None
        while True:
            page = await self.api.list_decisions(self.id, after=after)
            for entry in page["items"]:
                yield entry
            if not page.get("next"):
                return
            after = int(page["next"])

    async def egress(self) -> wire.EgressState:
        """Return the egress rules and counters."""
        return await self.api.get_egress(self.id)

    async def set_egress(self, **rules: Unpack[wire.Egress]) -> wire.EgressState:
        """Change the egress rules. They take effect immediately."""
        return await self.api.put_egress(self.id, rules)


class AsyncSnapshot:
    """A snapshot of a jail."""

    def __init__(self, api: AsyncOperations, info: wire.Snapshot) -> None:
        self.api = api
        self.info = info

    @property
    def id(self) -> str:
        return self.info["id"]

    def __repr__(self) -> str:
        return f"<snapshot {self.id} of {self.info['jail']}>"

    async def refresh(self) -> wire.Snapshot:
        self.info = await self.api.get_snapshot(self.id)
        return self.info

    async def restore(self, **how: Unpack[wire.Overrides]) -> AsyncJail:
        """Restore a jail from the snapshot."""
        return AsyncJail(self.api, await self.api.restore_snapshot(self.id, how, idempotency_key=new_key()))

    async def branch(self, count: int = 1, **how: Unpack[wire.BranchOptions]) -> AsyncBranches:
        """Branch (fork) count jails from the snapshot. If some cannot be created, raises
        BranchFailed with those that were created."""
        body = cast(wire.Branch, {"count": count, **how})
        return _branches(self.api, await self.api.branch_snapshot(self.id, body, idempotency_key=new_key()))

    async def warm(self, count: int) -> wire.Warmed:
        """Prepare count frozen copies, so that later branches start faster."""
        return await self.api.warm_snapshot(self.id, {"count": count})

    async def diff(self, against: Union[None, str, AsyncJail, AsyncSnapshot] = None, *, only: Optional[Sequence[str]] = None, unified: bool = False) -> wire.Comparison:
        """Return the differences from its jail, or from another jail or snapshot."""
        return await self.api.compare_snapshot(
            self.id, against=None if against is None else _id(against), only=",".join(only) if only else None, content="unified" if unified else None
        )

    async def delete(self) -> None:
        """Delete the snapshot. Data that jails and other snapshots need is kept."""
        await self.api.delete_snapshot(self.id)


class AsyncBranches(List[AsyncJail]):
    """Branches of one snapshot. A with block removes them at its end, and also the snapshot
    if it was taken for them."""

    snapshot: Optional[AsyncSnapshot] = None

    async def __aenter__(self) -> AsyncBranches:
        return self

    async def __aexit__(self, *_: object) -> None:
        for jail in self:
            await jail.__aexit__()
        if self.snapshot is not None:
            try:
                await self.snapshot.delete()
            except errors.NotFound:
                pass


def _branches(api: AsyncOperations, made: wire.Branches) -> AsyncBranches:
    jails = AsyncBranches(AsyncJail(api, j) for j in made["jails"])
    snapshot = made.get("snapshot")
    if snapshot is not None:
        jails.snapshot = AsyncSnapshot(api, snapshot)
    failed = made.get("errors")
    if failed:
        cause = errors.of_problem(cast(Any, failed[0]["problem"]))
        raise errors.BranchFailed(f"{len(failed)} of {len(failed) + len(jails)} branches could not be created: {cause.detail}", jails, cause.remedy) from cause
    return jails


def _id(thing: Union[str, AsyncJail, AsyncSnapshot]) -> str:
    return thing if isinstance(thing, str) else thing.id
