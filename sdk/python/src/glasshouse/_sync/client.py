# Made by `make sdk` from _async/client.py. Do not edit.
"""The client for a daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, List, Mapping, Optional, cast

from .. import errors, wire
from .._sse import ServerEvent
from .jail import Jail, Snapshot
from .operations import Operations
from .runs import Run, Schedule, Session, start_run
from .stream import Stream
from .transport import Events, Lines, new_key

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Glasshouse:
    """A Glasshouse daemon.

        with Glasshouse() as gh:
            with gh.jail(name="box") as jail:
                print((jail.run("uname -a")).stdout)

    address is unix:///path, http://host:port or https://host:port. The default is
    $GLASSHOUSE_ADDR, the socket in the data directory, or port 8082 of this host. Over the
    network a token is required; the default is $GLASSHOUSE_TOKEN.

    api has a method for each operation of the daemon, including those without a method of
    this class.
    """

    def __init__(self, address: Optional[str] = None, *, token: Optional[str] = None) -> None:
        self.api = Operations(address, token)

    def __enter__(self) -> Glasshouse:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close idle connections."""
        self.api.close()

    def version(self) -> wire.Version:
        return self.api.get_version()

    def me(self) -> wire.Me:
        """Return the identity and role of the caller."""
        return self.api.get_caller()

    def doctor(self) -> List[wire.Probe]:
        """Return the features of the host, with remedies for missing ones."""
        return (self.api.diagnose_host())["items"]

    # Jails.

    def jail(self, **spec: Unpack[wire.CreateJail]) -> Jail:
        """Create a jail and start it, unless start is False. A with block removes it at its
        end."""
        spec.setdefault("start", True)
        return Jail(self.api, self.api.create_jail(spec, idempotency_key=new_key()))

    def find_jail(self, id: str) -> Jail:
        """Return an existing jail by its id."""
        return Jail(self.api, self.api.get_jail(id))

    def jails(self, *, name: Optional[str] = None, state: Optional[Any] = None, labels: Optional[Mapping[str, str]] = None) -> Iterator[Jail]:
        """List jails, oldest first."""
        label = [f"{k}={v}" for k, v in labels.items()] if labels else None
        after: Optional[str] = None
        while True:
            page = self.api.list_jails(after=after, name=name, state=state, label=label)
            for j in page["items"]:
                yield Jail(self.api, j)
            after = page.get("next")
            if not after:
                return

    def find_snapshot(self, id: str) -> Snapshot:
        return Snapshot(self.api, self.api.get_snapshot(id))

    def snapshots(self) -> Iterator[Snapshot]:
        """List snapshots, oldest first."""
        after: Optional[str] = None
        while True:
            page = self.api.list_snapshots(after=after)
            for s in page["items"]:
                yield Snapshot(self.api, s)
            after = page.get("next")
            if not after:
                return

    def lineage(self, jail: Optional[str] = None) -> List[wire.LineageJail]:
        """Return the lineage of jails and snapshots as trees."""
        return (self.api.get_lineage(jail=jail))["items"]

    # Approvals.

    def approvals(self, *, jail: Optional[str] = None, state: Optional[Any] = None) -> List[wire.Approval]:
        """List pending approval requests, oldest first, or those in another state."""
        return (self.api.list_approvals(state=state, jail=jail))["items"]

    def approval(self, id: str, *, wait: float = 0) -> wire.Approval:
        """Return an approval request, after waiting up to wait seconds for a decision."""
        return self.api.get_approval(id, wait_ms=round(wait * 1000) or None)

    def approve(self, id: str, **how: Unpack[wire.AnswerApprovalOptions]) -> wire.Approval:
        """Approve a request: once, or for the given scope. The first decision is final."""
        return self.api.answer_approval(id, cast(wire.AnswerApproval, {"answer": "allow", **how}))

    def deny(self, id: str, reason: str = "") -> wire.Approval:
        return self.api.answer_approval(id, {"answer": "deny", "reason": reason})

    def approval_events(self) -> Stream[wire.ApprovalEvent]:
        """Stream changes of approval requests, starting with the pending ones. After a reconnect
        the pending requests are sent again."""

        def connect(last: Optional[str], told: int) -> Events:
            return self.api.stream_approvals()

        def take(event: ServerEvent) -> Optional[wire.ApprovalEvent]:
            return cast(wire.ApprovalEvent, event.data)

        return Stream(connect, take)

    # Capabilities.

    def capabilities(self) -> List[wire.Capability]:
        """List all versions of capabilities, by id, newest first."""
        return (self.api.list_capabilities())["items"]

    def capability(self, id: str, version: Optional[str] = None) -> wire.Capability:
        """Return a version of a capability with its manifest and schemas; by default the newest."""
        return self.api.get_capability(id, version=version)

    def register(self, manifest: str, **how: Unpack[wire.RegisterOptions]) -> List[wire.Capability]:
        """Register the capabilities of a manifest. dir is the directory of its files on the
        daemon's host. New permissions require approval by a person."""
        return (self.api.register_capabilities(cast(wire.Register, {"manifest": manifest, **how})))["items"]

    def call(self, capability: str, input: Any = None, /, **how: Unpack[wire.Call]) -> Any:
        """Call a capability and return its output. If the capability fails, raise CallFailed; if
        the call is denied, raise one of the other errors."""
        called = self.called(capability, input, **how)
        if called.get("state") != "done":
            error = cast(Mapping[str, Any], called.get("error") or {})
            raise errors.CallFailed(f"{capability}: {error.get('message') or called.get('state')}", called, error.get("remedy"))
        return called.get("output")

    def called(self, capability: str, input: Any = None, /, **how: Unpack[wire.Call]) -> wire.Called:
        """Call a capability and return the complete result: output, usage, label, entry."""
        body = cast(wire.Call, {"input": {} if input is None else input, **how})
        return self.api.call_capability(capability, body, idempotency_key=new_key())

    # Sessions and runs.

    def session(self, **how: Unpack[wire.OpenSession]) -> Session:
        """Open a session, or return the existing one with this name."""
        return Session(self.api, self.api.create_session(how, idempotency_key=new_key()))

    def find_session(self, id: str) -> Session:
        return Session(self.api, self.api.get_session(id))

    def sessions(self, *, state: Optional[Any] = None) -> Iterator[Session]:
        """List sessions, newest first."""
        after: Optional[str] = None
        while True:
            page = self.api.list_sessions(after=after, state=state)
            for s in page["items"]:
                yield Session(self.api, s)
            after = page.get("next")
            if not after:
                return

    def run(self, goal: str, **how: Unpack[wire.StartRunOptions]) -> Run:
        """Start an agent run for a goal: now, at a time, or by a schedule."""
        return start_run(self.api, goal, cast(wire.StartRun, dict(how)))

    def find_run(self, id: str) -> Run:
        return Run(self.api, self.api.get_run(id))

    def runs(self, *, session: Optional[str] = None, state: Optional[Any] = None) -> Iterator[Run]:
        """List runs, newest first."""
        after: Optional[str] = None
        while True:
            page = self.api.list_runs(session_id=session, state=state, after=after)
            for r in page["items"]:
                yield Run(self.api, r)
            after = page.get("next")
            if not after:
                return

    def find_schedule(self, id: str) -> Schedule:
        return Schedule(self.api, self.api.get_schedule(id))

    def schedules(self) -> Iterator[Schedule]:
        """List schedules, oldest first."""
        after: Optional[str] = None
        while True:
            page = self.api.list_schedules(after=after)
            for s in page["items"]:
                yield Schedule(self.api, s)
            after = page.get("next")
            if not after:
                return

    # Audit log.

    def chain(self, *, jail: Optional[str] = None, session: Optional[str] = None, run: Optional[str] = None, kind: Optional[str] = None, after: Optional[int] = None) -> Iterator[wire.ChainEntry]:
        """List entries of the audit log, oldest first."""
        while True:
            page = self.api.list_chain_entries(jail=jail, session=session, run=run, kind=kind, after=after)
            for entry in page["items"]:
                yield entry
            if not page.get("next"):
                return
            after = int(page["next"])

    def chain_head(self) -> wire.ChainHead:
        return self.api.get_chain_head()

    def verify_chain(self, *, all: bool = False) -> wire.ChainReport:
        """Verify the audit log: the entries since the last verification, or all."""
        return self.api.verify_chain(all=all or None)

    def export_chain(self) -> Lines:
        """Export the audit log with its checkpoints and public key, line by line."""
        return self.api.export_chain()

    def feed(self, topics: Optional[str] = None) -> Stream[ServerEvent]:
        """Stream events and resource usage of jails for comma-separated topics. The name of an
        event is its topic."""

        def connect(last: Optional[str], told: int) -> Events:
            return self.api.stream_feed(topics=topics, last_event_id=last)

        def take(event: ServerEvent) -> Optional[ServerEvent]:
            return event

        return Stream(connect, take)
