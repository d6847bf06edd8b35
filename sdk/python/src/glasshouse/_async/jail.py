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
    """A jail. In a with block it is removed at the end.

    info is what was last heard of it; refresh() asks anew.
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
        """created, starting, running, paused, stopped or failed, when last heard of."""
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
        """Ask how it is now, and what it uses."""
        self.info = await self.api.get_jails_by_id(self.id)
        return self.info

    async def start(self) -> None:
        self.info = await self.api.post_jails_by_id_start(self.id)

    async def stop(self, grace: Optional[float] = None) -> None:
        """End every process. With grace, in seconds, they are asked first. Files stay."""
        body = None if grace is None else cast(wire.StopJail, {"grace_ms": round(grace * 1000)})
        self.info = await self.api.post_jails_by_id_stop(self.id, body)

    async def pause(self) -> None:
        """Freeze it, as it is."""
        self.info = await self.api.post_jails_by_id_pause(self.id)

    async def resume(self) -> None:
        self.info = await self.api.post_jails_by_id_resume(self.id)

    async def delete(self, *, snapshots: bool = False) -> None:
        """Remove it and its files, and with snapshots also those that were taken of it."""
        await self.api.delete_jails_by_id(self.id, snapshots=snapshots or None)

    async def set_limits(self, **limits: Unpack[wire.Limits]) -> None:
        """Change what it may use, while it runs. What is not named stays as it is."""
        self.info = await self.api.patch_jails_by_id_limits(self.id, limits)

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
        """Run a command and wait for it: a string is a line for /bin/sh, a list a program
        and its arguments. After timeout seconds all of it is killed. With check a code
        other than 0 raises CommandFailed."""
        request = exec_request(command, env, cwd, user, stdin, timeout, pty, keep_bytes)
        result = result_of(await self.api.post_jails_by_id_exec(self.id, request))
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
        """Run a command and go through what it writes as it comes. stdin_open lets one
        write() to it; with lossless a slow reader slows it down, rather than lose output."""
        request = exec_request(command, env, cwd, user, stdin, timeout, pty, keep_bytes)
        request["stream"] = True
        if stdin_open:
            request["stdin_open"] = True
        if lossless:
            request["lossless"] = True
        events = await self.api.post_jails_by_id_exec_stream(self.id, request)
        try:
            start = await events.__anext__()
        except StopAsyncIteration:
            raise errors.Disconnected("the daemon hung up before it said which command it started") from None
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
        """Start a command and leave it to itself. What it writes is kept in the jail, up
        to keep_bytes, for whoever asks later."""
        request = exec_request(command, env, cwd, user, stdin, timeout, pty, keep_bytes)
        request["detach"] = True
        if stdin_open:
            request["stdin_open"] = True
        return AsyncCommand(self.api, self.id, await self.api.post_jails_by_id_exec(self.id, request, idempotency_key=new_key()))

    async def command(self, id: str) -> AsyncCommand:
        """A command that was started before."""
        return AsyncCommand(self.api, self.id, await self.api.get_jails_by_id_execs_by_exec(self.id, id))

    async def commands(self) -> AsyncIterator[wire.Exec]:
        """The commands that are still known, oldest first."""
        after: Optional[str] = None
        while True:
            page = await self.api.get_jails_by_id_execs(self.id, after=after)
            for x in page["items"]:
                yield x
            after = page.get("next")
            if not after:
                return

    # What it does.

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
        """What it does, oldest first: what there is, and unless told otherwise what comes.

        The filter is of terms joined by spaces, such as "type:file path:/etc ret:<0"; since
        and until are times (RFC 3339) or how long ago, such as "5m"; after is a seq. The
        stream ends with the jail, and goes on where it was when the daemon has been away.
        """

        async def connect(last: Optional[str], told: int) -> AsyncEvents:
            return await self.api.get_jails_by_id_events_stream(
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
        """Its processes, each after its parent: now, or at a time, so long ago, or at a seq.
        With all also those that have ended."""
        return (await self.api.get_jails_by_id_processes(self.id, at=at, all=all or None))["items"]

    async def connections(self) -> AsyncIterator[wire.Flow]:
        """Whom it talked to, in the order it began."""
        after: Optional[str] = None
        while True:
            page = await self.api.get_jails_by_id_network_log(self.id, after=after)
            for flow in page["items"]:
                yield flow
            after = page.get("next")
            if not after:
                return

    async def changes(self, *, workspace: bool = False, against: Optional[str] = None, path: Optional[str] = None, unified: bool = False) -> AsyncIterator[wire.Change]:
        """What it changed in its root filesystem or its workspace, or how it differs from a
        snapshot or another jail, by path. With unified as diff -u has it."""
        after: Optional[str] = None
        while True:
            page = await self.api.get_jails_by_id_fs_diff(
                self.id, after=after, workspace=workspace or None, against=against, path=path, content="unified" if unified else None
            )
            for change in page["items"]:
                yield change
            after = page.get("next")
            if not after:
                return

    async def diff(self, against: Union[str, AsyncJail, AsyncSnapshot], *, only: Optional[Sequence[str]] = None, unified: bool = False) -> wire.Comparison:
        """What would have to change to come from this jail to that jail or snapshot: of
        files, workspace, processes, events and usage, or only some of them."""
        return await self.api.get_jails_by_id_diff(
            self.id, against=_id(against), only=",".join(only) if only else None, content="unified" if unified else None
        )

    # As it was, and in many directions.

    async def snapshot(self, **how: Unpack[wire.TakeSnapshot]) -> AsyncSnapshot:
        """Keep it as it is, memory and files. It goes on."""
        return AsyncSnapshot(self.api, await self.api.post_jails_by_id_snapshot(self.id, how, idempotency_key=new_key()))

    async def snapshots(self) -> AsyncIterator[AsyncSnapshot]:
        """Its snapshots, oldest first."""
        after: Optional[str] = None
        while True:
            page = await self.api.get_jails_by_id_snapshots(self.id, after=after)
            for s in page["items"]:
                yield AsyncSnapshot(self.api, s)
            after = page.get("next")
            if not after:
                return

    async def branch(self, count: int = 1, **how: Unpack[wire.BranchOptions]) -> AsyncBranches:
        """Make so many jails that each go on from where this one is; it goes on too.

        What is returned is a list of them, and its snapshot is the one they are made from.
        In a with block all of that is removed at the end. If not all can be made,
        BranchFailed has those that were.
        """
        body = cast(wire.Branch, {"count": count, **how})
        return _branches(self.api, await self.api.post_jails_by_id_branch(self.id, body, idempotency_key=new_key()))

    async def rewind(self, snapshot: Union[str, AsyncSnapshot]) -> None:
        """Take it back to a snapshot. What it did since stays in its log."""
        self.info = await self.api.post_jails_by_id_rewind(self.id, {"snapshot": _id(snapshot)}, idempotency_key=new_key())

    # What it may do.

    async def policy(self) -> wire.PolicyState:
        """Its policy, how it is read, and what in it does not do what it seems to."""
        return await self.api.get_jails_by_id_policy(self.id)

    async def set_policy(self, **policy: Unpack[wire.Policy]) -> wire.PolicyState:
        """Give it another policy, at once."""
        return await self.api.put_jails_by_id_policy(self.id, policy)

    async def set_level(self, level: int) -> wire.PolicyState:
        """Change its level of autonomy, at once: down, or up to its ceiling."""
        return await self.api.post_jails_by_id_policy_level(self.id, {"level": level})

    async def decide(self, action: str, resource: str = "", *, agent: Optional[str] = None, attributes: Optional[Mapping[str, str]] = None, wait: float = 0) -> wire.Verdict:
        """Ask whether something may be done, and wait so many seconds for a person, if one
        is to be asked."""
        body = {"action": action, "resource": resource, "agent": agent, "attributes": attributes and dict(attributes), "wait_ms": round(wait * 1000)}
        return await self.api.post_jails_by_id_decide(self.id, cast(wire.Decide, {k: v for k, v in body.items() if v}))

    async def trail(self) -> AsyncIterator[wire.TrailEntry]:
        """What was decided about it, oldest first."""
        after: Optional[int] = None
        while True:
            page = await self.api.get_sandbox_by_id_decisions(self.id, after=after)
            for entry in page["items"]:
                yield entry
            if not page.get("next"):
                return
            after = int(page["next"])

    async def egress(self) -> wire.EgressState:
        """What may leave it, and what did, in numbers."""
        return await self.api.get_jails_by_id_egress(self.id)

    async def set_egress(self, **rules: Unpack[wire.Egress]) -> wire.EgressState:
        """Change what may leave it, at once."""
        return await self.api.put_jails_by_id_egress(self.id, rules)


class AsyncSnapshot:
    """A jail as it was at one moment."""

    def __init__(self, api: AsyncOperations, info: wire.Snapshot) -> None:
        self.api = api
        self.info = info

    @property
    def id(self) -> str:
        return self.info["id"]

    def __repr__(self) -> str:
        return f"<snapshot {self.id} of {self.info['jail']}>"

    async def refresh(self) -> wire.Snapshot:
        self.info = await self.api.get_snapshots_by_sid(self.id)
        return self.info

    async def restore(self, **how: Unpack[wire.Overrides]) -> AsyncJail:
        """Make a jail from it, as it was."""
        return AsyncJail(self.api, await self.api.post_snapshots_by_sid_restore(self.id, how, idempotency_key=new_key()))

    async def branch(self, count: int = 1, **how: Unpack[wire.BranchOptions]) -> AsyncBranches:
        """Make so many jails from it. If not all can be made, BranchFailed has those that
        were."""
        body = cast(wire.Branch, {"count": count, **how})
        return _branches(self.api, await self.api.post_snapshots_by_sid_branch(self.id, body, idempotency_key=new_key()))

    async def warm(self, count: int) -> wire.Warmed:
        """Make so many frozen copies of it ahead of need."""
        return await self.api.post_snapshots_by_sid_warm(self.id, {"count": count})

    async def diff(self, against: Union[None, str, AsyncJail, AsyncSnapshot] = None, *, only: Optional[Sequence[str]] = None, unified: bool = False) -> wire.Comparison:
        """What differs between it and the jail it was taken of, or another jail or snapshot."""
        return await self.api.get_snapshots_by_sid_diff(
            self.id, against=None if against is None else _id(against), only=",".join(only) if only else None, content="unified" if unified else None
        )

    async def delete(self) -> None:
        """Remove it. What jails and other snapshots stand on stays."""
        await self.api.delete_snapshots_by_sid(self.id)


class AsyncBranches(List[AsyncJail]):
    """Jails that go on from one snapshot. In a with block they are removed at the end,
    and the snapshot too, if it was taken for them."""

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
        raise errors.BranchFailed(f"{len(failed)} of {len(failed) + len(jails)} branches were not made: {cause.detail}", jails, cause.remedy) from cause
    return jails


def _id(thing: Union[str, AsyncJail, AsyncSnapshot]) -> str:
    return thing if isinstance(thing, str) else thing.id
