# Made by `make sdk` from the OpenAPI document. Do not edit.
"""One method for each operation of the API."""

from __future__ import annotations

from typing import Any, Literal, Optional, Union, cast

from .. import wire
from .transport import AsyncAnswer, AsyncEvents, AsyncLines, AsyncTransport, Content


class AsyncOperations(AsyncTransport):
    """The API, route by route, with nothing done beyond what is asked.

    A route that answers in more than one form has a method for each: the plain name
    gives the first of JSON, events, lines of JSON, text and bytes.
    """

    async def show_approval_link(self, token: str) -> str:
        """Show the approval request of an approval link."""
        return await self._text("GET", f"/answers/{self._part(token)}", accept="text/html")

    async def answer_approval_link(self, token: str) -> str:
        """Answer the approval request of an approval link."""
        return await self._text("POST", f"/answers/{self._part(token)}", accept="text/html")

    async def list_approvals(self, *, state: Optional[Literal["pending", "answered", "expired", "withdrawn", "all"]] = None, jail: Optional[str] = None, limit: Optional[int] = None, nodes: Optional[Literal["all", "self"]] = None) -> wire.ApprovalPage:
        """List approval requests: pending ones oldest first, or settled ones newest first.
        Requires the role viewer.
        """
        return cast("wire.ApprovalPage", await self._json("GET", "/approvals", query={"state": state, "jail": jail, "limit": limit, "nodes": nodes}))

    async def stream_approvals(self, *, last_event_id: Optional[str] = None) -> AsyncEvents:
        """Stream the state changes of approval requests. The stream starts with the pending
        requests. Requires the role viewer.
        """
        return await self._sse("GET", "/approvals/events", last=last_event_id, accept="text/event-stream")

    async def get_approval(self, approval: str, *, wait_ms: Optional[int] = None, last: Optional[int] = None) -> wire.Approval:
        """Show an approval request, immediately or when it is settled. Requires the role viewer."""
        return cast("wire.Approval", await self._json("GET", f"/approvals/{self._part(approval)}", query={"wait_ms": wait_ms, "last": last}))

    async def answer_approval(self, approval: str, body: wire.AnswerApproval, *, idempotency_key: Optional[str] = None) -> wire.Approval:
        """Answer an approval request. Only the first answer takes effect; repeating it is not an
        error. Requires the role operator.
        """
        return cast("wire.Approval", await self._json("POST", f"/approvals/{self._part(approval)}", body=body, key=idempotency_key))

    async def withdraw_approval(self, approval: str) -> wire.Approval:
        """Withdraw an approval request. Requires the role operator."""
        return cast("wire.Approval", await self._json("DELETE", f"/approvals/{self._part(approval)}"))

    async def list_backends(self) -> wire.BackendPage:
        """List the isolation backends of this host. Requires the role viewer."""
        return cast("wire.BackendPage", await self._json("GET", "/backends"))

    async def list_bundles(self) -> wire.BundlePage:
        """List installed bundles and pending installations, by name. Requires the role viewer."""
        return cast("wire.BundlePage", await self._json("GET", "/bundles"))

    async def install_bundle(self, content: Content, *, name: str, content_type: str = "application/octet-stream") -> wire.Bundle:
        """Install a bundle. It is verified immediately; then approval is requested. Requires the
        role admin.
        """
        return cast("wire.Bundle", await self._json("POST", "/bundles", content=content, content_type=content_type, query={"name": name}))

    async def delete_bundle(self, name: str) -> None:
        """Delete a bundle with its capabilities and its skill. Requires the role admin."""
        await self._none("DELETE", f"/bundles/{self._part(name)}")

    async def get_call(self, call: str) -> wire.Called:
        """Show the result of a recent call. Requires the role viewer."""
        return cast("wire.Called", await self._json("GET", f"/calls/{self._part(call)}"))

    async def list_capabilities(self) -> wire.CapabilityPage:
        """List the versions of all capabilities, by id, newest first. Requires the role viewer."""
        return cast("wire.CapabilityPage", await self._json("GET", "/capabilities"))

    async def register_capabilities(self, body: wire.Register, *, idempotency_key: Optional[str] = None) -> wire.CapabilityPage:
        """Register the capabilities of a manifest. New permissions require approval. Requires the
        role admin.
        """
        return cast("wire.CapabilityPage", await self._json("POST", "/capabilities", body=body, key=idempotency_key))

    async def import_capabilities(self, body: wire.ImportServer, *, idempotency_key: Optional[str] = None) -> wire.ImportedServer:
        """Start an MCP (Model Context Protocol) server in a jail and generate manifests for its
        tools. Requires the role admin.
        """
        return cast("wire.ImportedServer", await self._json("POST", "/capabilities/import", body=body, key=idempotency_key))

    async def get_capability(self, capability: str, *, version: Optional[str] = None) -> wire.Capability:
        """Show a version of a capability with its manifest and schemas. Requires the role viewer."""
        return cast("wire.Capability", await self._json("GET", f"/capabilities/{self._part(capability)}", query={"version": version}))

    async def delete_capability(self, capability: str, *, version: Optional[str] = None) -> None:
        """Delete a version of a capability and its stored data. Requires the role admin."""
        await self._none("DELETE", f"/capabilities/{self._part(capability)}", query={"version": version})

    async def call_capability(self, capability: str, body: wire.Call, *, idempotency_key: Optional[str] = None) -> wire.Called:
        """Call a capability. A failed call is a successful response with state failed; a denied
        call is an error. Requires the role operator.
        """
        return cast("wire.Called", await self._json("POST", f"/capabilities/{self._part(capability)}/call", body=body, key=idempotency_key))

    async def revoke_capability(self, capability: str, body: wire.RevokeCapability, *, version: Optional[str] = None, idempotency_key: Optional[str] = None) -> wire.Capability:
        """Revoke a version of a capability, so that it cannot be called. Requires the role
        operator.
        """
        return cast("wire.Capability", await self._json("POST", f"/capabilities/{self._part(capability)}/revoke", body=body, query={"version": version}, key=idempotency_key))

    async def trust_capability(self, capability: str, body: wire.TrustCapability, *, version: Optional[str] = None, idempotency_key: Optional[str] = None) -> wire.Capability:
        """Set whether a version, identified by its digest, may run directly on the host. Requires
        the role admin.
        """
        return cast("wire.Capability", await self._json("POST", f"/capabilities/{self._part(capability)}/trust", body=body, query={"version": version}, key=idempotency_key))

    async def list_chain_entries(self, *, limit: Optional[int] = None, after: Optional[int] = None, session: Optional[str] = None, run: Optional[str] = None, jail: Optional[str] = None, capability: Optional[str] = None, kind: Optional[str] = None, parent: Optional[int] = None, under: Optional[int] = None, from_: Optional[str] = None, until: Optional[str] = None, newest: Optional[bool] = None) -> wire.ChainEntryPage:
        """List entries of the causal chain (the audit log), oldest first or newest first. Requires
        the role viewer.
        """
        return cast("wire.ChainEntryPage", await self._json("GET", "/chain", query={"limit": limit, "after": after, "session": session, "run": run, "jail": jail, "capability": capability, "kind": kind, "parent": parent, "under": under, "from": from_, "until": until, "newest": newest}))

    async def get_chain_consistency(self, body: wire.ChainFrom, *, idempotency_key: Optional[str] = None) -> wire.ChainConsistency:
        """Prove that the audit log extends the log of an earlier checkpoint. Requires the role
        viewer.
        """
        return cast("wire.ChainConsistency", await self._json("POST", "/chain/consistency", body=body, key=idempotency_key))

    async def export_chain(self, *, stored: Optional[str] = None, last_event_id: Optional[str] = None) -> AsyncLines:
        """Download the audit log with its checkpoints and public key, for verification elsewhere.
        Requires the role viewer.
        """
        return await self._lines("GET", "/chain/export", query={"stored": stored}, last=last_event_id, accept="application/x-ndjson")

    async def get_chain_head(self) -> wire.ChainHead:
        """Show the length of the audit log, its public key, and its newest checkpoint. Requires
        the role viewer.
        """
        return cast("wire.ChainHead", await self._json("GET", "/chain/head"))

    async def list_stored_logs(self) -> wire.StoredLogPage:
        """List the copies of the audit logs of all nodes of the fleet in the object store.
        Requires the role viewer.
        """
        return cast("wire.StoredLogPage", await self._json("GET", "/chain/stored"))

    async def verify_chain(self, *, all: Optional[bool] = None) -> wire.ChainReport:
        """Verify the audit log: entries, hash links, tree and signatures. Requires the role
        viewer.
        """
        return cast("wire.ChainReport", await self._json("GET", "/chain/verify", query={"all": all}))

    async def list_witnessed_logs(self) -> wire.WitnessedLogPage:
        """List what this daemon has seen of the audit logs of other nodes of the fleet. Requires
        the role viewer.
        """
        return cast("wire.WitnessedLogPage", await self._json("GET", "/chain/witnessed"))

    async def get_chain_entry(self, seq: str) -> wire.ChainEntry:
        """Show an entry of the audit log. Requires the role viewer."""
        return cast("wire.ChainEntry", await self._json("GET", f"/chain/{self._part(seq)}"))

    async def list_chain_causes(self, seq: str) -> wire.ChainEntryPage:
        """List the causes of an audit log entry, first cause first. Requires the role viewer."""
        return cast("wire.ChainEntryPage", await self._json("GET", f"/chain/{self._part(seq)}/causes"))

    async def get_chain_proof(self, seq: str) -> wire.ChainProof:
        """Prove that an entry is in the audit log. The proof is verified with the public key.
        Requires the role viewer.
        """
        return cast("wire.ChainProof", await self._json("GET", f"/chain/{self._part(seq)}/proof"))

    async def replay_call(self, seq: str, *, idempotency_key: Optional[str] = None) -> wire.Replayed:
        """Repeat a recorded call of a pure capability and compare the outputs. Requires the role
        operator.
        """
        return cast("wire.Replayed", await self._json("POST", f"/chain/{self._part(seq)}/replay", key=idempotency_key))

    async def stream_session(self, session: str, *, after: Optional[int] = None, last_event_id: Optional[str] = None) -> AsyncEvents:
        """Stream the events of a session, from the first one, or after a number or Last-Event-ID.
        Over a WebSocket, each text frame is one event. Requires the role viewer.
        """
        return await self._sse("GET", f"/chat/events/{self._part(session)}", query={"after": after}, last=last_event_id, accept="text/event-stream")

    async def list_messages(self, *, session_id: Optional[str] = None, direction: Optional[Literal["in", "out"]] = None, limit: Optional[int] = None, after: Optional[int] = None) -> wire.MessagePage:
        """List the messages of a session in one direction, oldest first. Requires the role viewer."""
        return cast("wire.MessagePage", await self._json("GET", "/chat/inbox", query={"session_id": session_id, "direction": direction, "limit": limit, "after": after}))

    async def list_runs(self, *, session_id: Optional[str] = None, state: Optional[Literal["scheduled", "active", "paused", "done", "failed", "cancelled"]] = None, parent: Optional[str] = None, limit: Optional[int] = None, after: Optional[str] = None) -> wire.RunPage:
        """List runs, newest first. Requires the role viewer."""
        return cast("wire.RunPage", await self._json("GET", "/chat/run", query={"session_id": session_id, "state": state, "parent": parent, "limit": limit, "after": after}))

    async def start_run(self, body: wire.StartRun, *, idempotency_key: Optional[str] = None) -> wire.Run:
        """Start a run: an agent pursues a goal, now, at a given time, or on a schedule. Requires
        the role operator.
        """
        return cast("wire.Run", await self._json("POST", "/chat/run", body=body, key=idempotency_key))

    async def get_run(self, run: str) -> wire.Run:
        """Show a run. Requires the role viewer."""
        return cast("wire.Run", await self._json("GET", f"/chat/run/{self._part(run)}"))

    async def list_actions(self, run: str, *, limit: Optional[int] = None, after: Optional[int] = None) -> wire.RunActionPage:
        """List the steps of a run in order. Requires the role viewer."""
        return cast("wire.RunActionPage", await self._json("GET", f"/chat/run/{self._part(run)}/actions", query={"limit": limit, "after": after}))

    async def cancel_run(self, run: str, *, idempotency_key: Optional[str] = None) -> wire.Run:
        """Cancel a run and its child runs. For a run that waits for its schedule, the schedule is
        cancelled. Requires the role operator.
        """
        return cast("wire.Run", await self._json("POST", f"/chat/run/{self._part(run)}/cancel", key=idempotency_key))

    async def checkpoint_run(self, run: str, body: Optional[wire.TakeCheckpoint] = None, *, idempotency_key: Optional[str] = None) -> wire.Checkpoint:
        """Take a checkpoint of a run and its jail. Requires the role operator."""
        return cast("wire.Checkpoint", await self._json("POST", f"/chat/run/{self._part(run)}/checkpoint", body=body, key=idempotency_key))

    async def list_checkpoints(self, run: str, *, limit: Optional[int] = None, after: Optional[int] = None) -> wire.CheckpointPage:
        """List the checkpoints of a run, oldest first. Requires the role viewer."""
        return cast("wire.CheckpointPage", await self._json("GET", f"/chat/run/{self._part(run)}/checkpoints", query={"limit": limit, "after": after}))

    async def get_checkpoint(self, run: str, checkpoint: str) -> wire.Checkpoint:
        """Show a checkpoint with the state that the agent saved. Requires the role viewer."""
        return cast("wire.Checkpoint", await self._json("GET", f"/chat/run/{self._part(run)}/checkpoints/{self._part(checkpoint)}"))

    async def pause_run(self, run: str, *, idempotency_key: Optional[str] = None) -> wire.Run:
        """Pause a run. Its jail is frozen. Requires the role operator."""
        return cast("wire.Run", await self._json("POST", f"/chat/run/{self._part(run)}/pause", key=idempotency_key))

    async def resume_run(self, run: str, body: Optional[wire.ResumeRun] = None, *, idempotency_key: Optional[str] = None) -> wire.Resumed:
        """Resume a run where it was paused, rewind it to a checkpoint, or branch new runs from a
        checkpoint. Requires the role operator.
        """
        return cast("wire.Resumed", await self._json("POST", f"/chat/run/{self._part(run)}/resume", body=body, key=idempotency_key))

    async def transition_run(self, run: str, body: wire.MoveRun, *, idempotency_key: Optional[str] = None) -> wire.Run:
        """Change a run's state manually. Requires the role operator."""
        return cast("wire.Run", await self._json("POST", f"/chat/run/{self._part(run)}/transition", body=body, key=idempotency_key))

    async def send_message(self, body: wire.SendMessage, *, idempotency_key: Optional[str] = None) -> wire.Message:
        """Send a message to a session's agent. Requires the role operator."""
        return cast("wire.Message", await self._json("POST", "/chat/send", body=body, key=idempotency_key))

    async def list_sessions(self, *, limit: Optional[int] = None, after: Optional[str] = None, state: Optional[Literal["open", "closed"]] = None, group: Optional[str] = None) -> wire.SessionPage:
        """List sessions, newest first. Requires the role viewer."""
        return cast("wire.SessionPage", await self._json("GET", "/chat/session", query={"limit": limit, "after": after, "state": state, "group": group}))

    async def create_session(self, body: wire.OpenSession, *, idempotency_key: Optional[str] = None) -> wire.Session:
        """Open a session. An existing session with the same id is returned. Requires the role
        operator.
        """
        return cast("wire.Session", await self._json("POST", "/chat/session", body=body, key=idempotency_key))

    async def get_session(self, session: str) -> wire.Session:
        """Show a session. Requires the role viewer."""
        return cast("wire.Session", await self._json("GET", f"/chat/session/{self._part(session)}"))

    async def close_session(self, session: str) -> None:
        """Close a session. Its messages are kept. Requires the role operator."""
        await self._none("DELETE", f"/chat/session/{self._part(session)}")

    async def list_connectors(self) -> wire.ConnectorPage:
        """List connectors (inbound webhooks, outbound webhooks and relays) and their pending
        deliveries. Requires the role viewer.
        """
        return cast("wire.ConnectorPage", await self._json("GET", "/connectors"))

    async def list_deliveries(self, connector: str, *, state: Optional[Literal["pending", "delivered", "dead"]] = None, limit: Optional[int] = None, after: Optional[str] = None) -> wire.DeliveryPage:
        """List the deliveries of a connector, by due time. Requires the role viewer."""
        return cast("wire.DeliveryPage", await self._json("GET", f"/connectors/{self._part(connector)}/deliveries", query={"state": state, "limit": limit, "after": after}))

    async def redeliver_message(self, delivery: str, *, idempotency_key: Optional[str] = None) -> wire.Delivery:
        """Retry a failed delivery. Requires the role operator."""
        return cast("wire.Delivery", await self._json("POST", f"/deliveries/{self._part(delivery)}/redeliver", key=idempotency_key))

    async def diagnose_host(self) -> wire.ProbePage:
        """Check which features this host supports, with remedies for missing ones. Requires the
        role viewer.
        """
        return cast("wire.ProbePage", await self._json("GET", "/doctor"))

    async def create_e2b_key(self, body: wire.CreateE2BKey) -> wire.E2BKey:
        """Create a key for clients of the E2B protocol. The key is returned only in this response.
        Requires the role admin.
        """
        return cast("wire.E2BKey", await self._json("POST", "/e2b/keys", body=body))

    async def stream_feed(self, *, topics: Optional[str] = None, last_event_id: Optional[str] = None) -> AsyncEvents:
        """Stream events and the state of jails. The topics jail, approval, run, notice, step,
        decision and egress are audit log entries and resume after Last-Event-ID. The topics
        jails and schedules report the current state. Requires the role viewer.
        """
        return await self._sse("GET", "/feed", query={"topics": topics}, last=last_event_id, accept="text/event-stream")

    async def revoke_grant(self, grant: str) -> None:
        """Revoke a grant. The revocation takes effect immediately. Requires the role operator."""
        await self._none("DELETE", f"/grants/{self._part(grant)}")

    async def check_health(self) -> wire.Health:
        """Check that the daemon is alive."""
        return cast("wire.Health", await self._json("GET", "/health"))

    async def check_readiness(self) -> wire.Health:
        """Check that the daemon is ready to serve requests."""
        return cast("wire.Health", await self._json("GET", "/health/ready"))

    async def receive_hook(self, connector: str) -> wire.Received:
        """Receive an inbound webhook for a session."""
        return cast("wire.Received", await self._json("POST", f"/hooks/{self._part(connector)}"))

    async def list_images(self, *, limit: Optional[int] = None, after: Optional[str] = None) -> wire.ImagePage:
        """List the prepared root filesystems, newest first. Requires the role viewer."""
        return cast("wire.ImagePage", await self._json("GET", "/images", query={"limit": limit, "after": after}))

    async def prepare_image(self, body: wire.Rootfs, *, idempotency_key: Optional[str] = None) -> wire.Prepared:
        """Prepare a root filesystem, so that the first jail that uses it starts faster. Requires
        the role operator.
        """
        return cast("wire.Prepared", await self._json("POST", "/images", body=body, key=idempotency_key))

    async def prune_images(self, *, idempotency_key: Optional[str] = None) -> wire.ImagePage:
        """Delete the root filesystems that no jail uses, and list them. Requires the role admin."""
        return cast("wire.ImagePage", await self._json("POST", "/images/prune", key=idempotency_key))

    async def list_jails(self, *, limit: Optional[int] = None, after: Optional[str] = None, state: Optional[Literal["created", "starting", "running", "paused", "stopped", "failed"]] = None, name: Optional[str] = None, label: Optional[list[str]] = None, nodes: Optional[Literal["all", "self"]] = None) -> wire.JailPage:
        """List jails, oldest first. Requires the role viewer."""
        return cast("wire.JailPage", await self._json("GET", "/jails", query={"limit": limit, "after": after, "state": state, "name": name, "label": label, "nodes": nodes}))

    async def create_jail(self, body: Optional[wire.CreateJail] = None, *, idempotency_key: Optional[str] = None) -> wire.Jail:
        """Create a jail. Requires the role operator."""
        return cast("wire.Jail", await self._json("POST", "/jails", body=body, key=idempotency_key))

    async def get_jail(self, id: str) -> wire.Jail:
        """Show a jail and its resource usage. Requires the role viewer."""
        return cast("wire.Jail", await self._json("GET", f"/jails/{self._part(id)}"))

    async def delete_jail(self, id: str, *, snapshots: Optional[bool] = None) -> None:
        """Delete a jail and its files, in any state. Requires the role operator."""
        await self._none("DELETE", f"/jails/{self._part(id)}", query={"snapshots": snapshots})

    async def get_past_state(self, id: str, *, ts: Optional[str] = None, all: Optional[bool] = None, limit: Optional[int] = None) -> wire.Past:
        """Show the state of a jail at an earlier time: its processes, changed files, and the
        nearest snapshot. Requires the role viewer.
        """
        return cast("wire.Past", await self._json("GET", f"/jails/{self._part(id)}/at", query={"ts": ts, "all": all, "limit": limit}))

    async def branch_jail(self, id: str, body: Optional[wire.Branch] = None, *, idempotency_key: Optional[str] = None) -> wire.Branches:
        """Branch (fork) a jail. A snapshot is taken, and new jails are created from it. Requires
        the role operator.
        """
        return cast("wire.Branches", await self._json("POST", f"/jails/{self._part(id)}/branch", body=body, key=idempotency_key))

    async def list_connections(self, id: str, *, from_: Optional[str] = None, to: Optional[str] = None, limit: Optional[int] = None) -> wire.Connections:
        """Summarize the network connections of a jail by host, with the egress decisions. Requires
        the role viewer.
        """
        return cast("wire.Connections", await self._json("GET", f"/jails/{self._part(id)}/connections", query={"from": from_, "to": to, "limit": limit}))

    async def request_decision(self, id: str, body: wire.Decide, *, idempotency_key: Optional[str] = None) -> wire.Verdict:
        """Evaluate a policy decision, and wait for approval if it is required. Requires the role
        operator.
        """
        return cast("wire.Verdict", await self._json("POST", f"/jails/{self._part(id)}/decide", body=body, key=idempotency_key))

    async def compare_jail(self, id: str, *, against: Optional[str] = None, only: Optional[str] = None, content: Optional[Literal["unified"]] = None, format: Optional[Literal["json", "text", "html"]] = None) -> wire.Comparison:
        """Compare a jail with another jail or a snapshot. Requires the role viewer."""
        return cast("wire.Comparison", await self._json("GET", f"/jails/{self._part(id)}/diff", query={"against": against, "only": only, "content": content, "format": format}))

    async def compare_jail_text(self, id: str, *, against: Optional[str] = None, only: Optional[str] = None, content: Optional[Literal["unified"]] = None, format: Optional[Literal["json", "text", "html"]] = None) -> str:
        """Compare a jail with another jail or a snapshot. Requires the role viewer."""
        return await self._text("GET", f"/jails/{self._part(id)}/diff", query={"against": against, "only": only, "content": content, "format": format}, accept="text/plain")

    async def compare_jail_html(self, id: str, *, against: Optional[str] = None, only: Optional[str] = None, content: Optional[Literal["unified"]] = None, format: Optional[Literal["json", "text", "html"]] = None) -> str:
        """Compare a jail with another jail or a snapshot. Requires the role viewer."""
        return await self._text("GET", f"/jails/{self._part(id)}/diff", query={"against": against, "only": only, "content": content, "format": format}, accept="text/html")

    async def get_egress(self, id: str) -> wire.EgressState:
        """Show a jail's egress rules and traffic statistics. Requires the role viewer."""
        return cast("wire.EgressState", await self._json("GET", f"/jails/{self._part(id)}/egress"))

    async def put_egress(self, id: str, body: wire.Egress, *, version: Optional[str] = None) -> wire.EgressState:
        """Replace a jail's egress rules. They take effect immediately; open connections that they
        do not allow are closed. Requires the role operator.
        """
        return cast("wire.EgressState", await self._json("PUT", f"/jails/{self._part(id)}/egress", body=body, query={"version": version}))

    async def stream_events(self, id: str, *, q: Optional[str] = None, type: Optional[str] = None, pid: Optional[str] = None, path: Optional[str] = None, host: Optional[str] = None, name: Optional[str] = None, ret: Optional[str] = None, comm: Optional[str] = None, op: Optional[str] = None, since: Optional[str] = None, until: Optional[str] = None, after: Optional[int] = None, tail: Optional[int] = None, limit: Optional[int] = None, follow: Optional[bool] = None, offset: Optional[int] = None, at: Optional[str] = None, format: Optional[Literal["sse", "ndjson"]] = None) -> wire.EventWindow:
        """Stream the events of a jail, from the first one, or from the position that a filter, a
        time or Last-Event-ID selects. The id of each server-sent event is its seq; the last one
        is 'end'. With offset or at, return a JSON window of the events instead. Requires the
        role viewer.
        """
        return cast("wire.EventWindow", await self._json("GET", f"/jails/{self._part(id)}/events", query={"q": q, "type": type, "pid": pid, "path": path, "host": host, "name": name, "ret": ret, "comm": comm, "op": op, "since": since, "until": until, "after": after, "tail": tail, "limit": limit, "follow": follow, "offset": offset, "at": at, "format": format}))

    async def stream_events_stream(self, id: str, *, q: Optional[str] = None, type: Optional[str] = None, pid: Optional[str] = None, path: Optional[str] = None, host: Optional[str] = None, name: Optional[str] = None, ret: Optional[str] = None, comm: Optional[str] = None, op: Optional[str] = None, since: Optional[str] = None, until: Optional[str] = None, after: Optional[int] = None, tail: Optional[int] = None, limit: Optional[int] = None, follow: Optional[bool] = None, offset: Optional[int] = None, at: Optional[str] = None, format: Optional[Literal["sse", "ndjson"]] = None, last_event_id: Optional[str] = None) -> AsyncEvents:
        """Stream the events of a jail, from the first one, or from the position that a filter, a
        time or Last-Event-ID selects. The id of each server-sent event is its seq; the last one
        is 'end'. With offset or at, return a JSON window of the events instead. Requires the
        role viewer.
        """
        return await self._sse("GET", f"/jails/{self._part(id)}/events", query={"q": q, "type": type, "pid": pid, "path": path, "host": host, "name": name, "ret": ret, "comm": comm, "op": op, "since": since, "until": until, "after": after, "tail": tail, "limit": limit, "follow": follow, "offset": offset, "at": at, "format": format}, last=last_event_id, accept="text/event-stream")

    async def stream_events_lines(self, id: str, *, q: Optional[str] = None, type: Optional[str] = None, pid: Optional[str] = None, path: Optional[str] = None, host: Optional[str] = None, name: Optional[str] = None, ret: Optional[str] = None, comm: Optional[str] = None, op: Optional[str] = None, since: Optional[str] = None, until: Optional[str] = None, after: Optional[int] = None, tail: Optional[int] = None, limit: Optional[int] = None, follow: Optional[bool] = None, offset: Optional[int] = None, at: Optional[str] = None, format: Optional[Literal["sse", "ndjson"]] = None, last_event_id: Optional[str] = None) -> AsyncLines:
        """Stream the events of a jail, from the first one, or from the position that a filter, a
        time or Last-Event-ID selects. The id of each server-sent event is its seq; the last one
        is 'end'. With offset or at, return a JSON window of the events instead. Requires the
        role viewer.
        """
        return await self._lines("GET", f"/jails/{self._part(id)}/events", query={"q": q, "type": type, "pid": pid, "path": path, "host": host, "name": name, "ret": ret, "comm": comm, "op": op, "since": since, "until": until, "after": after, "tail": tail, "limit": limit, "follow": follow, "offset": offset, "at": at, "format": format}, last=last_event_id, accept="application/x-ndjson")

    async def exec_command(self, id: str, body: wire.ExecRequest, *, idempotency_key: Optional[str] = None) -> wire.Exec:
        """Run a command and wait for it, stream its output, or detach from it. Requires the role
        operator.
        """
        return cast("wire.Exec", await self._json("POST", f"/jails/{self._part(id)}/exec", body=body, key=idempotency_key))

    async def exec_command_stream(self, id: str, body: wire.ExecRequest, *, idempotency_key: Optional[str] = None) -> AsyncEvents:
        """Run a command and wait for it, stream its output, or detach from it. Requires the role
        operator.
        """
        return await self._sse("POST", f"/jails/{self._part(id)}/exec", body=body, key=idempotency_key, accept="text/event-stream")

    async def list_execs(self, id: str, *, limit: Optional[int] = None, after: Optional[str] = None) -> wire.ExecPage:
        """List the recent and running commands of a jail, oldest first. Requires the role viewer."""
        return cast("wire.ExecPage", await self._json("GET", f"/jails/{self._part(id)}/execs", query={"limit": limit, "after": after}))

    async def get_exec(self, id: str, exec: str, *, from_: Optional[int] = None, lossless: Optional[bool] = None) -> wire.Exec:
        """Show a command and its output, or stream its output as events. Requires the role viewer."""
        return cast("wire.Exec", await self._json("GET", f"/jails/{self._part(id)}/execs/{self._part(exec)}", query={"from": from_, "lossless": lossless}))

    async def get_exec_stream(self, id: str, exec: str, *, from_: Optional[int] = None, lossless: Optional[bool] = None, last_event_id: Optional[str] = None) -> AsyncEvents:
        """Show a command and its output, or stream its output as events. Requires the role viewer."""
        return await self._sse("GET", f"/jails/{self._part(id)}/execs/{self._part(exec)}", query={"from": from_, "lossless": lossless}, last=last_event_id, accept="text/event-stream")

    async def resize_exec(self, id: str, exec: str, body: wire.Size, *, idempotency_key: Optional[str] = None) -> None:
        """Change the size of a command's terminal. Requires the role operator."""
        await self._none("POST", f"/jails/{self._part(id)}/execs/{self._part(exec)}/resize", body=body, key=idempotency_key)

    async def signal_exec(self, id: str, exec: str, body: wire.Signal, *, idempotency_key: Optional[str] = None) -> None:
        """Send a signal to a command's process group. Requires the role operator."""
        await self._none("POST", f"/jails/{self._part(id)}/execs/{self._part(exec)}/signal", body=body, key=idempotency_key)

    async def write_stdin(self, id: str, exec: str, content: Content, *, close: Optional[bool] = None, content_type: str = "application/octet-stream") -> None:
        """Write to a command's standard input. Requires the role operator."""
        await self._none("POST", f"/jails/{self._part(id)}/execs/{self._part(exec)}/stdin", content=content, content_type=content_type, query={"close": close})

    async def get_file(self, id: str, *, path: str, list: Optional[bool] = None, stat: Optional[bool] = None, tar: Optional[bool] = None, offset: Optional[int] = None, bytes: Optional[int] = None, limit: Optional[int] = None, after: Optional[str] = None) -> Union[wire.File, wire.FilePage]:
        """Read a file, list a directory, show metadata, or download a tar archive. Requires the
        role viewer.
        """
        return cast("Union[wire.File, wire.FilePage]", await self._json("GET", f"/jails/{self._part(id)}/files", query={"path": path, "list": list, "stat": stat, "tar": tar, "offset": offset, "bytes": bytes, "limit": limit, "after": after}))

    async def get_file_bytes(self, id: str, *, path: str, list: Optional[bool] = None, stat: Optional[bool] = None, tar: Optional[bool] = None, offset: Optional[int] = None, bytes: Optional[int] = None, limit: Optional[int] = None, after: Optional[str] = None) -> AsyncAnswer:
        """Read a file, list a directory, show metadata, or download a tar archive. Requires the
        role viewer.
        """
        return await self._open("GET", f"/jails/{self._part(id)}/files", query={"path": path, "list": list, "stat": stat, "tar": tar, "offset": offset, "bytes": bytes, "limit": limit, "after": after}, accept="application/octet-stream")

    async def put_file(self, id: str, content: Content, *, path: str, tar: Optional[bool] = None, mkdir: Optional[bool] = None, mode: Optional[str] = None, append: Optional[bool] = None, parents: Optional[bool] = None, uid: Optional[int] = None, gid: Optional[int] = None, content_type: str = "application/octet-stream") -> wire.File:
        """Write a file, create a directory, or extract a tar archive. Requires the role operator."""
        return cast("wire.File", await self._json("PUT", f"/jails/{self._part(id)}/files", content=content, content_type=content_type, query={"path": path, "tar": tar, "mkdir": mkdir, "mode": mode, "append": append, "parents": parents, "uid": uid, "gid": gid}))

    async def delete_file(self, id: str, *, path: str, recursive: Optional[bool] = None) -> None:
        """Delete a file or directory. Requires the role operator."""
        await self._none("DELETE", f"/jails/{self._part(id)}/files", query={"path": path, "recursive": recursive})

    async def move_file(self, id: str, body: wire.MoveFile, *, idempotency_key: Optional[str] = None) -> None:
        """Rename a file or directory. Requires the role operator."""
        await self._none("POST", f"/jails/{self._part(id)}/files/move", body=body, key=idempotency_key)

    async def watch_files(self, id: str, *, path: str, recursive: Optional[bool] = None, last_event_id: Optional[str] = None) -> AsyncEvents:
        """Stream file changes below a path. Requires the role viewer."""
        return await self._sse("GET", f"/jails/{self._part(id)}/files/watch", query={"path": path, "recursive": recursive}, last=last_event_id, accept="text/event-stream")

    async def diff_files(self, id: str, *, limit: Optional[int] = None, after: Optional[str] = None, against: Optional[str] = None, workspace: Optional[bool] = None, path: Optional[str] = None, content: Optional[Literal["unified"]] = None) -> wire.ChangePage:
        """List file changes by path: of a jail's root filesystem or workspace, or relative to a
        snapshot or another jail. Requires the role viewer.
        """
        return cast("wire.ChangePage", await self._json("GET", f"/jails/{self._part(id)}/fs/diff", query={"limit": limit, "after": after, "against": against, "workspace": workspace, "path": path, "content": content}))

    async def diff_files_text(self, id: str, *, limit: Optional[int] = None, after: Optional[str] = None, against: Optional[str] = None, workspace: Optional[bool] = None, path: Optional[str] = None, content: Optional[Literal["unified"]] = None) -> str:
        """List file changes by path: of a jail's root filesystem or workspace, or relative to a
        snapshot or another jail. Requires the role viewer.
        """
        return await self._text("GET", f"/jails/{self._part(id)}/fs/diff", query={"limit": limit, "after": after, "against": against, "workspace": workspace, "path": path, "content": content}, accept="text/plain")

    async def diff_files_html(self, id: str, *, limit: Optional[int] = None, after: Optional[str] = None, against: Optional[str] = None, workspace: Optional[bool] = None, path: Optional[str] = None, content: Optional[Literal["unified"]] = None) -> str:
        """List file changes by path: of a jail's root filesystem or workspace, or relative to a
        snapshot or another jail. Requires the role viewer.
        """
        return await self._text("GET", f"/jails/{self._part(id)}/fs/diff", query={"limit": limit, "after": after, "against": against, "workspace": workspace, "path": path, "content": content}, accept="text/html")

    async def get_jail_limits(self, id: str, *, after: Optional[int] = None) -> wire.JailLimits:
        """Show a jail's limits and the history of changes and requests. Requires the role viewer."""
        return cast("wire.JailLimits", await self._json("GET", f"/jails/{self._part(id)}/limits", query={"after": after}))

    async def update_jail_limits(self, id: str, body: wire.Limits) -> wire.Jail:
        """Change a jail's limits, also while it runs. Omitted limits are unchanged. Requires the
        role operator.
        """
        return cast("wire.Jail", await self._json("PATCH", f"/jails/{self._part(id)}/limits", body=body))

    async def move_jail(self, id: str, body: Optional[wire.MoveJail] = None, *, idempotency_key: Optional[str] = None) -> wire.MovedJail:
        """Move a jail to another node of the fleet. Its processes, files, ID and event log are
        kept; its connections are closed. Requires the role operator.
        """
        return cast("wire.MovedJail", await self._json("POST", f"/jails/{self._part(id)}/move", body=body, key=idempotency_key))

    async def list_network_flows(self, id: str, *, limit: Optional[int] = None, after: Optional[str] = None, since: Optional[str] = None, until: Optional[str] = None, packets: Optional[bool] = None) -> wire.Flows:
        """List the network flows of a jail, in order of their start. Requires the role viewer."""
        return cast("wire.Flows", await self._json("GET", f"/jails/{self._part(id)}/network/log", query={"limit": limit, "after": after, "since": since, "until": until, "packets": packets}))

    async def list_network_flows_lines(self, id: str, *, limit: Optional[int] = None, after: Optional[str] = None, since: Optional[str] = None, until: Optional[str] = None, packets: Optional[bool] = None, last_event_id: Optional[str] = None) -> AsyncLines:
        """List the network flows of a jail, in order of their start. Requires the role viewer."""
        return await self._lines("GET", f"/jails/{self._part(id)}/network/log", query={"limit": limit, "after": after, "since": since, "until": until, "packets": packets}, last=last_event_id, accept="application/x-ndjson")

    async def list_network_flows_text(self, id: str, *, limit: Optional[int] = None, after: Optional[str] = None, since: Optional[str] = None, until: Optional[str] = None, packets: Optional[bool] = None) -> str:
        """List the network flows of a jail, in order of their start. Requires the role viewer."""
        return await self._text("GET", f"/jails/{self._part(id)}/network/log", query={"limit": limit, "after": after, "since": since, "until": until, "packets": packets}, accept="text/plain")

    async def get_network_packets(self, id: str) -> AsyncAnswer:
        """Download the captured packets of a jail. Requires the role viewer."""
        return await self._open("GET", f"/jails/{self._part(id)}/network/pcap", accept="application/x-pcapng")

    async def pause_jail(self, id: str, *, idempotency_key: Optional[str] = None) -> wire.Jail:
        """Pause (freeze) a jail. Requires the role operator."""
        return cast("wire.Jail", await self._json("POST", f"/jails/{self._part(id)}/pause", key=idempotency_key))

    async def get_policy(self, id: str) -> wire.PolicyState:
        """Show a jail's policy, how it is interpreted, and lint findings. Requires the role
        viewer.
        """
        return cast("wire.PolicyState", await self._json("GET", f"/jails/{self._part(id)}/policy"))

    async def put_policy(self, id: str, body: wire.Policy) -> wire.PolicyState:
        """Replace a jail's policy. The new policy takes effect immediately. Requires the role
        operator.
        """
        return cast("wire.PolicyState", await self._json("PUT", f"/jails/{self._part(id)}/policy", body=body))

    async def delete_policy(self, id: str) -> None:
        """Remove a jail's policy. Actions that need a policy decision are then denied. Requires
        the role operator.
        """
        await self._none("DELETE", f"/jails/{self._part(id)}/policy")

    async def set_policy_level(self, id: str, body: wire.PolicyLevel, *, idempotency_key: Optional[str] = None) -> wire.PolicyState:
        """Change a jail's autonomy level. It can be lowered, or raised up to the ceiling, and
        takes effect immediately. Requires the role operator.
        """
        return cast("wire.PolicyState", await self._json("POST", f"/jails/{self._part(id)}/policy/level", body=body, key=idempotency_key))

    async def list_processes(self, id: str, *, at: Optional[str] = None, all: Optional[bool] = None) -> wire.Processes:
        """Show the process tree of a jail, now or at an earlier time. Requires the role viewer."""
        return cast("wire.Processes", await self._json("GET", f"/jails/{self._part(id)}/processes", query={"at": at, "all": all}))

    async def list_processes_text(self, id: str, *, at: Optional[str] = None, all: Optional[bool] = None) -> str:
        """Show the process tree of a jail, now or at an earlier time. Requires the role viewer."""
        return await self._text("GET", f"/jails/{self._part(id)}/processes", query={"at": at, "all": all}, accept="text/plain")

    async def get_report(self, id: str, *, since: Optional[str] = None, until: Optional[str] = None, format: Optional[Literal["json", "html", "md"]] = None) -> dict[str, Any]:
        """Generate a report of the activity of a jail. Requires the role viewer."""
        return cast("dict[str, Any]", await self._json("GET", f"/jails/{self._part(id)}/report", query={"since": since, "until": until, "format": format}))

    async def get_report_text(self, id: str, *, since: Optional[str] = None, until: Optional[str] = None, format: Optional[Literal["json", "html", "md"]] = None) -> str:
        """Generate a report of the activity of a jail. Requires the role viewer."""
        return await self._text("GET", f"/jails/{self._part(id)}/report", query={"since": since, "until": until, "format": format}, accept="text/markdown")

    async def get_report_html(self, id: str, *, since: Optional[str] = None, until: Optional[str] = None, format: Optional[Literal["json", "html", "md"]] = None) -> str:
        """Generate a report of the activity of a jail. Requires the role viewer."""
        return await self._text("GET", f"/jails/{self._part(id)}/report", query={"since": since, "until": until, "format": format}, accept="text/html")

    async def resume_jail(self, id: str, *, idempotency_key: Optional[str] = None) -> wire.Jail:
        """Resume a paused jail. Requires the role operator."""
        return cast("wire.Jail", await self._json("POST", f"/jails/{self._part(id)}/resume", key=idempotency_key))

    async def rewind_jail(self, id: str, body: wire.Rewind, *, idempotency_key: Optional[str] = None) -> wire.Jail:
        """Rewind a jail to a snapshot. Events since the snapshot are kept in the event log.
        Requires the role operator.
        """
        return cast("wire.Jail", await self._json("POST", f"/jails/{self._part(id)}/rewind", body=body, key=idempotency_key))

    async def take_snapshot(self, id: str, body: Optional[wire.TakeSnapshot] = None, *, idempotency_key: Optional[str] = None) -> wire.Snapshot:
        """Take a snapshot of a jail. The jail continues to run. Requires the role operator."""
        return cast("wire.Snapshot", await self._json("POST", f"/jails/{self._part(id)}/snapshot", body=body, key=idempotency_key))

    async def list_jail_snapshots(self, id: str, *, limit: Optional[int] = None, after: Optional[str] = None, usage: Optional[bool] = None) -> wire.SnapshotPage:
        """List the snapshots of a jail, oldest first. The jail may have been deleted. Requires the
        role viewer.
        """
        return cast("wire.SnapshotPage", await self._json("GET", f"/jails/{self._part(id)}/snapshots", query={"limit": limit, "after": after, "usage": usage}))

    async def start_jail(self, id: str, *, idempotency_key: Optional[str] = None) -> wire.Jail:
        """Start a jail. Requires the role operator."""
        return cast("wire.Jail", await self._json("POST", f"/jails/{self._part(id)}/start", key=idempotency_key))

    async def stop_jail(self, id: str, body: Optional[wire.StopJail] = None, *, idempotency_key: Optional[str] = None) -> wire.Jail:
        """Stop a jail. Its processes end; its files are kept. Requires the role operator."""
        return cast("wire.Jail", await self._json("POST", f"/jails/{self._part(id)}/stop", body=body, key=idempotency_key))

    async def get_syscall_profile(self, id: str, *, q: Optional[str] = None, type: Optional[str] = None, pid: Optional[str] = None, path: Optional[str] = None, host: Optional[str] = None, name: Optional[str] = None, ret: Optional[str] = None, comm: Optional[str] = None, op: Optional[str] = None, from_: Optional[str] = None, to: Optional[str] = None, processes: Optional[int] = None, limit: Optional[int] = None) -> wire.Profile:
        """Summarize the system calls of a jail: frequency, duration and errors. Requires the role
        viewer.
        """
        return cast("wire.Profile", await self._json("GET", f"/jails/{self._part(id)}/syscalls", query={"q": q, "type": type, "pid": pid, "path": path, "host": host, "name": name, "ret": ret, "comm": comm, "op": op, "from": from_, "to": to, "processes": processes, "limit": limit}))

    async def get_timeline(self, id: str, *, q: Optional[str] = None, type: Optional[str] = None, pid: Optional[str] = None, path: Optional[str] = None, host: Optional[str] = None, name: Optional[str] = None, ret: Optional[str] = None, comm: Optional[str] = None, op: Optional[str] = None, from_: Optional[str] = None, to: Optional[str] = None, buckets: Optional[int] = None, lanes: Optional[int] = None) -> wire.Timeline:
        """Count the events of a jail by time and type, and by process. Requires the role viewer."""
        return cast("wire.Timeline", await self._json("GET", f"/jails/{self._part(id)}/timeline", query={"q": q, "type": type, "pid": pid, "path": path, "host": host, "name": name, "ret": ret, "comm": comm, "op": op, "from": from_, "to": to, "buckets": buckets, "lanes": lanes}))

    async def get_lineage(self, *, jail: Optional[str] = None) -> wire.LineageJailPage:
        """Show the lineage of jails and snapshots as trees. Requires the role viewer."""
        return cast("wire.LineageJailPage", await self._json("GET", "/lineage", query={"jail": jail}))

    async def log_in(self, body: wire.LogIn) -> wire.Me:
        """Log in a browser with the code of a login link."""
        return cast("wire.Me", await self._json("POST", "/login", body=body))

    async def create_login_link(self, body: wire.CreateLoginLink) -> wire.LoginLink:
        """Create a login link for a browser. It is valid for ten minutes and can be used once.
        Requires the role admin.
        """
        return cast("wire.LoginLink", await self._json("POST", "/login-links", body=body))

    async def list_logins(self, *, limit: Optional[int] = None, after: Optional[str] = None) -> wire.LoginPage:
        """List logged-in browsers, oldest first. Requires the role admin."""
        return cast("wire.LoginPage", await self._json("GET", "/logins", query={"limit": limit, "after": after}))

    async def delete_login(self, login: str) -> None:
        """End a login and close its streams. Requires the role admin."""
        await self._none("DELETE", f"/logins/{self._part(login)}")

    async def log_out(self) -> None:
        """End the login that the request's cookie identifies. Requires the role viewer."""
        await self._none("POST", "/logout")

    async def search_market(self, *, q: Optional[str] = None) -> wire.OfferPage:
        """Search the bundles that markets offer. Requires the role viewer."""
        return cast("wire.OfferPage", await self._json("GET", "/market", query={"q": q}))

    async def install_from_market(self, body: wire.MarketInstall, *, idempotency_key: Optional[str] = None) -> wire.Bundle:
        """Install a bundle from a market. Requires the role admin."""
        return cast("wire.Bundle", await self._json("POST", "/market/install", body=body, key=idempotency_key))

    async def list_outdated_bundles(self) -> wire.OfferPage:
        """List installed bundles for which their publisher offers a newer version. Requires the
        role viewer.
        """
        return cast("wire.OfferPage", await self._json("GET", "/market/outdated"))

    async def get_caller(self) -> wire.Me:
        """Show the identity of the caller. Requires the role viewer."""
        return cast("wire.Me", await self._json("GET", "/me"))

    async def get_metrics(self, *, node: Optional[str] = None) -> str:
        """Get Prometheus metrics. Requires the role viewer."""
        return await self._text("GET", "/metrics", query={"node": node}, accept="text/plain")

    async def list_nodes(self) -> wire.NodePage:
        """List the daemons that share the database of runs, by ID. The list is empty if this
        daemon shares it with no other. Requires the role viewer.
        """
        return cast("wire.NodePage", await self._json("GET", "/nodes"))

    async def create_node_token(self) -> wire.NodeToken:
        """Create a token with which one daemon can join the fleet within ten minutes. It is
        returned only in this response. Requires the role admin.
        """
        return cast("wire.NodeToken", await self._json("POST", "/nodes/tokens"))

    async def update_node(self, node: str, body: wire.UpdateNode) -> wire.Node:
        """Set whether a daemon of the fleet gets new jails and sessions. Requires the role admin."""
        return cast("wire.Node", await self._json("PATCH", f"/nodes/{self._part(node)}", body=body))

    async def remove_node(self, node: str, *, lost: Optional[bool] = None) -> None:
        """Remove a daemon from the fleet. Its certificate is then refused. Requires the role
        admin.
        """
        await self._none("DELETE", f"/nodes/{self._part(node)}", query={"lost": lost})

    async def list_dead_notices(self) -> wire.DeadNoticePage:
        """List the notifications that could not be delivered. Requires the role viewer."""
        return cast("wire.DeadNoticePage", await self._json("GET", "/notices/dead"))

    async def redeliver_notice(self, notice: str, *, idempotency_key: Optional[str] = None) -> None:
        """Retry a notification. Requires the role operator."""
        await self._none("POST", f"/notices/{self._part(notice)}/redeliver", key=idempotency_key)

    async def get_open_api(self) -> Any:
        """Get this OpenAPI document."""
        return await self._json("GET", "/openapi.json")

    async def explain_policy(self, body: wire.Explain, *, idempotency_key: Optional[str] = None) -> wire.Explained:
        """Evaluate a policy decision without effect, and show the rules considered. No approval is
        requested and nothing is recorded. Requires the role viewer.
        """
        return cast("wire.Explained", await self._json("POST", "/policy/explain", body=body, key=idempotency_key))

    async def lint_policy(self, body: wire.Policy, *, idempotency_key: Optional[str] = None) -> wire.PolicyState:
        """Lint permission files. Requires the role viewer."""
        return cast("wire.PolicyState", await self._json("POST", "/policy/lint", body=body, key=idempotency_key))

    async def get_problem(self, problem: str) -> str:
        """Explain a problem type."""
        return await self._text("GET", f"/problems/{self._part(problem)}", accept="text/html")

    async def list_publishers(self) -> wire.PublisherPage:
        """List trusted publishers and the highest tier of each. Requires the role viewer."""
        return cast("wire.PublisherPage", await self._json("GET", "/publishers"))

    async def revoke_publisher_trust(self, body: wire.RevokeTrust, *, idempotency_key: Optional[str] = None) -> None:
        """Revoke trust in a key or bundle digest. Affected bundles can no longer be installed or
        called. Requires the role admin.
        """
        await self._none("POST", "/publishers/revoke", body=body, key=idempotency_key)

    async def rotate_publisher_key(self, body: wire.RotateKey, *, idempotency_key: Optional[str] = None) -> None:
        """Replace a publisher's key. Existing signatures of the old key remain valid. Requires the
        role admin.
        """
        await self._none("POST", "/publishers/rotate", body=body, key=idempotency_key)

    async def put_publisher(self, name: str, body: wire.AddPublisher) -> None:
        """Trust a publisher's key. Requires the role admin."""
        await self._none("PUT", f"/publishers/{self._part(name)}", body=body)

    async def delete_publisher(self, name: str) -> None:
        """Remove a publisher. Its bundles can no longer be installed or called. Requires the role
        admin.
        """
        await self._none("DELETE", f"/publishers/{self._part(name)}")

    async def list_browsers(self) -> wire.PushBrowserPage:
        """List the browsers that receive push notifications, oldest first. Requires the role
        operator.
        """
        return cast("wire.PushBrowserPage", await self._json("GET", "/push/browsers"))

    async def subscribe_browser(self, body: wire.SubscribeBrowser) -> wire.PushBrowser:
        """Subscribe a browser to push notifications for approval requests. The subscription
        replaces the browser's previous one and ends with its login. Requires the role operator.
        """
        return cast("wire.PushBrowser", await self._json("POST", "/push/browsers", body=body))

    async def unsubscribe_browser(self, browser: str) -> None:
        """Unsubscribe a browser from push notifications. Requires the role operator."""
        await self._none("DELETE", f"/push/browsers/{self._part(browser)}")

    async def get_push_key(self) -> wire.PushKey:
        """Show the public key with which a browser subscribes to push notifications. Requires the
        role viewer.
        """
        return cast("wire.PushKey", await self._json("GET", "/push/key"))

    async def list_decisions(self, id: str, *, limit: Optional[int] = None, after: Optional[int] = None, observed: Optional[Literal["true", "false"]] = None, tool: Optional[str] = None, tag: Optional[Literal["AUTONOMOUS", "WHITELISTED", "APPROVED", "DENIED"]] = None, from_: Optional[str] = None, until: Optional[str] = None) -> wire.TrailEntryPage:
        """List the policy decisions about a jail, oldest first. Requires the role viewer."""
        return cast("wire.TrailEntryPage", await self._json("GET", f"/sandbox/{self._part(id)}/decisions", query={"limit": limit, "after": after, "observed": observed, "tool": tool, "tag": tag, "from": from_, "until": until}))

    async def report_tool_call(self, id: str, body: wire.ClaimedDecision, *, idempotency_key: Optional[str] = None) -> wire.Verdict:
        """Report a tool call that an agent is about to make, and get the policy decision. Requires
        the role operator.
        """
        return cast("wire.Verdict", await self._json("POST", f"/sandbox/{self._part(id)}/decisions", body=body, key=idempotency_key))

    async def list_schedules(self, *, session_id: Optional[str] = None, limit: Optional[int] = None, after: Optional[str] = None) -> wire.SchedulePage:
        """List schedules, oldest first. Requires the role viewer."""
        return cast("wire.SchedulePage", await self._json("GET", "/schedules", query={"session_id": session_id, "limit": limit, "after": after}))

    async def preview_schedule(self, *, schedule: Optional[str] = None, time_zone: Optional[str] = None) -> wire.Times:
        """Preview the due times of a schedule. No schedule is created. Requires the role viewer."""
        return cast("wire.Times", await self._json("GET", "/schedules/times", query={"schedule": schedule, "time_zone": time_zone}))

    async def get_schedule(self, schedule: str) -> wire.Schedule:
        """Show a schedule and its next ten due times. Requires the role viewer."""
        return cast("wire.Schedule", await self._json("GET", f"/schedules/{self._part(schedule)}"))

    async def update_schedule(self, schedule: str, body: wire.EditSchedule) -> wire.Schedule:
        """Change when a schedule starts runs. Omitted fields are unchanged. Requires the role
        operator.
        """
        return cast("wire.Schedule", await self._json("PATCH", f"/schedules/{self._part(schedule)}", body=body))

    async def delete_schedule(self, schedule: str) -> None:
        """Delete a schedule. Its runs are kept. Requires the role operator."""
        await self._none("DELETE", f"/schedules/{self._part(schedule)}")

    async def pause_schedule(self, schedule: str, *, idempotency_key: Optional[str] = None) -> wire.Schedule:
        """Pause a schedule. Requires the role operator."""
        return cast("wire.Schedule", await self._json("POST", f"/schedules/{self._part(schedule)}/pause", key=idempotency_key))

    async def resume_schedule(self, schedule: str, *, idempotency_key: Optional[str] = None) -> wire.Schedule:
        """Resume a paused schedule. Requires the role operator."""
        return cast("wire.Schedule", await self._json("POST", f"/schedules/{self._part(schedule)}/resume", key=idempotency_key))

    async def list_secrets(self) -> wire.SecretPage:
        """List secrets and their grants, by name. Values are never returned. Requires the role
        viewer.
        """
        return cast("wire.SecretPage", await self._json("GET", "/secrets"))

    async def rotate_secrets(self, *, idempotency_key: Optional[str] = None) -> None:
        """Re-encrypt all secrets with a new key and destroy the old key. Requires the role admin."""
        await self._none("POST", "/secrets/rotate", key=idempotency_key)

    async def put_secret(self, name: str, body: wire.PutSecret) -> None:
        """Store a secret, encrypted, or a reference to an external secret. Requires the role
        admin.
        """
        await self._none("PUT", f"/secrets/{self._part(name)}", body=body)

    async def delete_secret(self, name: str) -> None:
        """Delete a secret and revoke its grants. Requires the role admin."""
        await self._none("DELETE", f"/secrets/{self._part(name)}")

    async def grant_secret(self, name: str, body: wire.GrantSecret, *, idempotency_key: Optional[str] = None) -> wire.Grant:
        """Grant a jail the use of a secret, as a file or injected into requests. Requires the role
        operator.
        """
        return cast("wire.Grant", await self._json("POST", f"/secrets/{self._part(name)}/grants", body=body, key=idempotency_key))

    async def list_skills(self) -> wire.SkillPage:
        """List skills, by name. Requires the role viewer."""
        return cast("wire.SkillPage", await self._json("GET", "/skills"))

    async def add_skill(self, body: wire.AddSkill, *, idempotency_key: Optional[str] = None) -> wire.Skill:
        """Add a skill, or replace the one with the same name. A skill that names an unapproved
        capability is rejected. Requires the role operator.
        """
        return cast("wire.Skill", await self._json("POST", "/skills", body=body, key=idempotency_key))

    async def get_skill(self, name: str) -> wire.Skill:
        """Show a skill as an agent reads it, with tool definitions of its capabilities. Requires
        the role viewer.
        """
        return cast("wire.Skill", await self._json("GET", f"/skills/{self._part(name)}"))

    async def delete_skill(self, name: str) -> None:
        """Delete a skill. Its capabilities are kept. Requires the role operator."""
        await self._none("DELETE", f"/skills/{self._part(name)}")

    async def list_snapshots(self, *, limit: Optional[int] = None, after: Optional[str] = None, usage: Optional[bool] = None) -> wire.SnapshotPage:
        """List snapshots, oldest first. Requires the role viewer."""
        return cast("wire.SnapshotPage", await self._json("GET", "/snapshots", query={"limit": limit, "after": after, "usage": usage}))

    async def import_snapshot(self, content: Content, *, files_only: Optional[bool] = None, force: Optional[bool] = None, content_type: str = "application/octet-stream") -> wire.Snapshot:
        """Import an exported snapshot. The archive must be trusted like a program that runs as
        root. Requires the role admin.
        """
        return cast("wire.Snapshot", await self._json("POST", "/snapshots/import", content=content, content_type=content_type, query={"files_only": files_only, "force": force}))

    async def get_snapshot(self, sid: str) -> wire.Snapshot:
        """Show a snapshot and its disk usage. Requires the role viewer."""
        return cast("wire.Snapshot", await self._json("GET", f"/snapshots/{self._part(sid)}"))

    async def delete_snapshot(self, sid: str) -> None:
        """Delete a snapshot. Data that jails and other snapshots use is kept. Requires the role
        operator.
        """
        await self._none("DELETE", f"/snapshots/{self._part(sid)}")

    async def branch_snapshot(self, sid: str, body: Optional[wire.Branch] = None, *, idempotency_key: Optional[str] = None) -> wire.Branches:
        """Branch (fork) jails from a snapshot. If some cannot be created, the response lists the
        errors. Requires the role operator.
        """
        return cast("wire.Branches", await self._json("POST", f"/snapshots/{self._part(sid)}/branch", body=body, key=idempotency_key))

    async def compare_snapshot(self, sid: str, *, against: Optional[str] = None, only: Optional[str] = None, content: Optional[Literal["unified"]] = None, format: Optional[Literal["json", "text", "html"]] = None) -> wire.Comparison:
        """Compare a snapshot with its jail, another jail or another snapshot. Requires the role
        viewer.
        """
        return cast("wire.Comparison", await self._json("GET", f"/snapshots/{self._part(sid)}/diff", query={"against": against, "only": only, "content": content, "format": format}))

    async def compare_snapshot_text(self, sid: str, *, against: Optional[str] = None, only: Optional[str] = None, content: Optional[Literal["unified"]] = None, format: Optional[Literal["json", "text", "html"]] = None) -> str:
        """Compare a snapshot with its jail, another jail or another snapshot. Requires the role
        viewer.
        """
        return await self._text("GET", f"/snapshots/{self._part(sid)}/diff", query={"against": against, "only": only, "content": content, "format": format}, accept="text/plain")

    async def compare_snapshot_html(self, sid: str, *, against: Optional[str] = None, only: Optional[str] = None, content: Optional[Literal["unified"]] = None, format: Optional[Literal["json", "text", "html"]] = None) -> str:
        """Compare a snapshot with its jail, another jail or another snapshot. Requires the role
        viewer.
        """
        return await self._text("GET", f"/snapshots/{self._part(sid)}/diff", query={"against": against, "only": only, "content": content, "format": format}, accept="text/html")

    async def export_snapshot(self, sid: str) -> AsyncAnswer:
        """Download a snapshot, with memory and files, as an archive that another host can import.
        Requires the role operator.
        """
        return await self._open("GET", f"/snapshots/{self._part(sid)}/export", accept="application/zstd")

    async def restore_snapshot(self, sid: str, body: Optional[wire.Overrides] = None, *, idempotency_key: Optional[str] = None) -> wire.Jail:
        """Restore a snapshot as a new jail. Requires the role operator."""
        return cast("wire.Jail", await self._json("POST", f"/snapshots/{self._part(sid)}/restore", body=body, key=idempotency_key))

    async def warm_snapshot(self, sid: str, body: wire.Warm, *, idempotency_key: Optional[str] = None) -> wire.Warmed:
        """Create frozen copies of a snapshot in advance, for fast branches. Requires the role
        operator.
        """
        return cast("wire.Warmed", await self._json("POST", f"/snapshots/{self._part(sid)}/warm", body=body, key=idempotency_key))

    async def get_storage(self) -> wire.Storage:
        """Show the daemon's disk usage by category, and the warm pool. Requires the role viewer."""
        return cast("wire.Storage", await self._json("GET", "/storage"))

    async def list_tokens(self, *, limit: Optional[int] = None, after: Optional[str] = None) -> wire.TokenPage:
        """List tokens, oldest first. Requires the role admin."""
        return cast("wire.TokenPage", await self._json("GET", "/tokens", query={"limit": limit, "after": after}))

    async def create_token(self, body: wire.CreateToken) -> wire.Token:
        """Create a bearer token. The secret is returned only in this response. Requires the role
        admin.
        """
        return cast("wire.Token", await self._json("POST", "/tokens", body=body))

    async def update_token(self, id: str, body: wire.EditToken) -> wire.Token:
        """Change the quota of a token or an E2B key. Nothing ends if it is lowered below the use.
        Requires the role admin.
        """
        return cast("wire.Token", await self._json("PATCH", f"/tokens/{self._part(id)}", body=body))

    async def revoke_token(self, id: str) -> None:
        """Revoke a token. Requires the role admin."""
        await self._none("DELETE", f"/tokens/{self._part(id)}")

    async def get_version(self) -> wire.Version:
        """Show the daemon's version. Requires the role viewer."""
        return cast("wire.Version", await self._json("GET", "/version"))
