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

    async def get_answers_by_token(self, token: str) -> str:
        """Show what a link would decide."""
        return await self._text("GET", f"/answers/{self._part(token)}", accept="text/html")

    async def post_answers_by_token(self, token: str) -> str:
        """Decide what a link decides, once."""
        return await self._text("POST", f"/answers/{self._part(token)}", accept="text/html")

    async def get_approvals(self, *, state: Optional[Literal["pending", "answered", "expired", "withdrawn", "all"]] = None, jail: Optional[str] = None, limit: Optional[int] = None) -> wire.ApprovalPage:
        """List what waits for a person, oldest first, or what no longer does, newest first. Needs
        the role viewer.
        """
        return cast("wire.ApprovalPage", await self._json("GET", "/approvals", query={"state": state, "jail": jail, "limit": limit}))

    async def get_approvals_events(self, *, last_event_id: Optional[str] = None) -> AsyncEvents:
        """Stream what happens to requests, what waits already first. Needs the role viewer."""
        return await self._sse("GET", "/approvals/events", last=last_event_id, accept="text/event-stream")

    async def get_approvals_by_approval(self, approval: str, *, wait_ms: Optional[int] = None, last: Optional[int] = None) -> wire.Approval:
        """Show a request, at once or as soon as it is settled. Needs the role viewer."""
        return cast("wire.Approval", await self._json("GET", f"/approvals/{self._part(approval)}", query={"wait_ms": wait_ms, "last": last}))

    async def post_approvals_by_approval(self, approval: str, body: wire.AnswerApproval, *, idempotency_key: Optional[str] = None) -> wire.Approval:
        """Answer a request. The first answer counts; the same again is no error. Needs the role
        operator.
        """
        return cast("wire.Approval", await self._json("POST", f"/approvals/{self._part(approval)}", body=body, key=idempotency_key))

    async def delete_approvals_by_approval(self, approval: str) -> wire.Approval:
        """End a request that nobody needs the answer of. Needs the role operator."""
        return cast("wire.Approval", await self._json("DELETE", f"/approvals/{self._part(approval)}"))

    async def get_backends(self) -> wire.BackendPage:
        """List what can isolate on this host. Needs the role viewer."""
        return cast("wire.BackendPage", await self._json("GET", "/backends"))

    async def get_bundles(self) -> wire.BundlePage:
        """List bundles that are installed, or that a person is asked about, by name. Needs the
        role viewer.
        """
        return cast("wire.BundlePage", await self._json("GET", "/bundles"))

    async def post_bundles(self, content: Content, *, name: str, content_type: str = "application/octet-stream") -> wire.Bundle:
        """Install a bundle. What is wrong with it is said at once; then a person is asked. Needs
        the role admin.
        """
        return cast("wire.Bundle", await self._json("POST", "/bundles", content=content, content_type=content_type, query={"name": name}))

    async def delete_bundles_by_name(self, name: str) -> None:
        """Remove a bundle with its capabilities and its skill. Needs the role admin."""
        await self._none("DELETE", f"/bundles/{self._part(name)}")

    async def get_calls_by_call(self, call: str) -> wire.Called:
        """Show what became of a call, of those that were last. Needs the role viewer."""
        return cast("wire.Called", await self._json("GET", f"/calls/{self._part(call)}"))

    async def get_capabilities(self) -> wire.CapabilityPage:
        """List the versions of all capabilities, by id, the newest first. Needs the role viewer."""
        return cast("wire.CapabilityPage", await self._json("GET", "/capabilities"))

    async def post_capabilities(self, body: wire.Register, *, idempotency_key: Optional[str] = None) -> wire.CapabilityPage:
        """Register the capabilities of a manifest. About what they may do that is new a person is
        asked. Needs the role admin.
        """
        return cast("wire.CapabilityPage", await self._json("POST", "/capabilities", body=body, key=idempotency_key))

    async def post_capabilities_import(self, body: wire.ImportServer, *, idempotency_key: Optional[str] = None) -> wire.ImportedServer:
        """Start somebody's server of the Model Context Protocol in a jail, and show manifests of
        its tools, to be registered. Needs the role admin.
        """
        return cast("wire.ImportedServer", await self._json("POST", "/capabilities/import", body=body, key=idempotency_key))

    async def get_capabilities_by_capability(self, capability: str, *, version: Optional[str] = None) -> wire.Capability:
        """Show a version of a capability, with its manifest and its schemas. Needs the role
        viewer.
        """
        return cast("wire.Capability", await self._json("GET", f"/capabilities/{self._part(capability)}", query={"version": version}))

    async def delete_capabilities_by_capability(self, capability: str, *, version: Optional[str] = None) -> None:
        """Remove a version of a capability, and what was kept for it. Needs the role admin."""
        await self._none("DELETE", f"/capabilities/{self._part(capability)}", query={"version": version})

    async def post_capabilities_by_capability_call(self, capability: str, body: wire.Call, *, idempotency_key: Optional[str] = None) -> wire.Called:
        """Call a capability. That it failed is an answer; that it was refused is an error. Needs
        the role operator.
        """
        return cast("wire.Called", await self._json("POST", f"/capabilities/{self._part(capability)}/call", body=body, key=idempotency_key))

    async def post_capabilities_by_capability_revoke(self, capability: str, body: wire.RevokeCapability, *, version: Optional[str] = None, idempotency_key: Optional[str] = None) -> wire.Capability:
        """Have a version no longer be called, from now on. Needs the role operator."""
        return cast("wire.Capability", await self._json("POST", f"/capabilities/{self._part(capability)}/revoke", body=body, query={"version": version}, key=idempotency_key))

    async def post_capabilities_by_capability_trust(self, capability: str, body: wire.TrustCapability, *, version: Optional[str] = None, idempotency_key: Optional[str] = None) -> wire.Capability:
        """Say whether a version, by its digest, may run on the host itself. Needs the role admin."""
        return cast("wire.Capability", await self._json("POST", f"/capabilities/{self._part(capability)}/trust", body=body, query={"version": version}, key=idempotency_key))

    async def get_chain(self, *, limit: Optional[int] = None, after: Optional[int] = None, session: Optional[str] = None, run: Optional[str] = None, jail: Optional[str] = None, capability: Optional[str] = None, kind: Optional[str] = None, parent: Optional[int] = None, under: Optional[int] = None, from_: Optional[str] = None, until: Optional[str] = None, newest: Optional[bool] = None) -> wire.ChainEntryPage:
        """List entries of the causal chain, oldest first or newest first. Needs the role viewer."""
        return cast("wire.ChainEntryPage", await self._json("GET", "/chain", query={"limit": limit, "after": after, "session": session, "run": run, "jail": jail, "capability": capability, "kind": kind, "parent": parent, "under": under, "from": from_, "until": until, "newest": newest}))

    async def post_chain_consistency(self, body: wire.ChainFrom, *, idempotency_key: Optional[str] = None) -> wire.ChainConsistency:
        """Prove that the chain contains one that an earlier checkpoint was signed over. Needs the
        role viewer.
        """
        return cast("wire.ChainConsistency", await self._json("POST", "/chain/consistency", body=body, key=idempotency_key))

    async def get_chain_export(self, *, last_event_id: Optional[str] = None) -> AsyncLines:
        """Download the chain with its checkpoints and its key, so that others can verify it. Needs
        the role viewer.
        """
        return await self._lines("GET", "/chain/export", last=last_event_id, accept="application/x-ndjson")

    async def get_chain_head(self) -> wire.ChainHead:
        """Show how long the chain is, its key, and its newest checkpoint. Needs the role viewer."""
        return cast("wire.ChainHead", await self._json("GET", "/chain/head"))

    async def get_chain_verify(self, *, all: Optional[bool] = None) -> wire.ChainReport:
        """Verify the chain: entries, links, tree and signatures. Needs the role viewer."""
        return cast("wire.ChainReport", await self._json("GET", "/chain/verify", query={"all": all}))

    async def get_chain_by_seq(self, seq: str) -> wire.ChainEntry:
        """Show an entry of the chain. Needs the role viewer."""
        return cast("wire.ChainEntry", await self._json("GET", f"/chain/{self._part(seq)}"))

    async def get_chain_by_seq_causes(self, seq: str) -> wire.ChainEntryPage:
        """List what caused an entry, the first cause first. Needs the role viewer."""
        return cast("wire.ChainEntryPage", await self._json("GET", f"/chain/{self._part(seq)}/causes"))

    async def get_chain_by_seq_proof(self, seq: str) -> wire.ChainProof:
        """Prove that an entry is in the chain, to who has the public key. Needs the role viewer."""
        return cast("wire.ChainProof", await self._json("GET", f"/chain/{self._part(seq)}/proof"))

    async def post_chain_by_seq_replay(self, seq: str, *, idempotency_key: Optional[str] = None) -> wire.Replayed:
        """Make a recorded call of a pure capability again, and compare what comes out. Needs the
        role operator.
        """
        return cast("wire.Replayed", await self._json("POST", f"/chain/{self._part(seq)}/replay", key=idempotency_key))

    async def get_chat_events_by_session(self, session: str, *, after: Optional[int] = None, last_event_id: Optional[str] = None) -> AsyncEvents:
        """Stream what happens in a session, from its first event on or from after a number or
        Last-Event-ID. Over a WebSocket each text frame is an event. Needs the role viewer.
        """
        return await self._sse("GET", f"/chat/events/{self._part(session)}", query={"after": after}, last=last_event_id, accept="text/event-stream")

    async def get_chat_inbox(self, *, session_id: Optional[str] = None, direction: Optional[Literal["in", "out"]] = None, limit: Optional[int] = None, after: Optional[int] = None) -> wire.MessagePage:
        """List the messages of a session that went one way, oldest first. Needs the role viewer."""
        return cast("wire.MessagePage", await self._json("GET", "/chat/inbox", query={"session_id": session_id, "direction": direction, "limit": limit, "after": after}))

    async def get_chat_run(self, *, session_id: Optional[str] = None, state: Optional[Literal["scheduled", "active", "paused", "done", "failed", "cancelled"]] = None, parent: Optional[str] = None, limit: Optional[int] = None, after: Optional[str] = None) -> wire.RunPage:
        """List runs, newest first. Needs the role viewer."""
        return cast("wire.RunPage", await self._json("GET", "/chat/run", query={"session_id": session_id, "state": state, "parent": parent, "limit": limit, "after": after}))

    async def post_chat_run(self, body: wire.StartRun, *, idempotency_key: Optional[str] = None) -> wire.Run:
        """Have an agent pursue a goal: now, at a time, or by a schedule. Needs the role operator."""
        return cast("wire.Run", await self._json("POST", "/chat/run", body=body, key=idempotency_key))

    async def get_chat_run_by_run(self, run: str) -> wire.Run:
        """Show a run. Needs the role viewer."""
        return cast("wire.Run", await self._json("GET", f"/chat/run/{self._part(run)}"))

    async def get_chat_run_by_run_actions(self, run: str, *, limit: Optional[int] = None, after: Optional[int] = None) -> wire.RunActionPage:
        """List what a run has done, in its order. Needs the role viewer."""
        return cast("wire.RunActionPage", await self._json("GET", f"/chat/run/{self._part(run)}/actions", query={"limit": limit, "after": after}))

    async def post_chat_run_by_run_cancel(self, run: str, *, idempotency_key: Optional[str] = None) -> wire.Run:
        """End a run and those that are a part of it; of one that waits for its schedule, the
        schedule. Needs the role operator.
        """
        return cast("wire.Run", await self._json("POST", f"/chat/run/{self._part(run)}/cancel", key=idempotency_key))

    async def post_chat_run_by_run_checkpoint(self, run: str, body: Optional[wire.TakeCheckpoint] = None, *, idempotency_key: Optional[str] = None) -> wire.Checkpoint:
        """Keep a run as it is, with its jail. Needs the role operator."""
        return cast("wire.Checkpoint", await self._json("POST", f"/chat/run/{self._part(run)}/checkpoint", body=body, key=idempotency_key))

    async def get_chat_run_by_run_checkpoints(self, run: str, *, limit: Optional[int] = None, after: Optional[int] = None) -> wire.CheckpointPage:
        """List the checkpoints of a run, oldest first. Needs the role viewer."""
        return cast("wire.CheckpointPage", await self._json("GET", f"/chat/run/{self._part(run)}/checkpoints", query={"limit": limit, "after": after}))

    async def get_chat_run_by_run_checkpoints_by_checkpoint(self, run: str, checkpoint: str) -> wire.Checkpoint:
        """Show a checkpoint, with what the agent keeps of itself. Needs the role viewer."""
        return cast("wire.Checkpoint", await self._json("GET", f"/chat/run/{self._part(run)}/checkpoints/{self._part(checkpoint)}"))

    async def post_chat_run_by_run_pause(self, run: str, *, idempotency_key: Optional[str] = None) -> wire.Run:
        """Have a run wait. Its jail stands still. Needs the role operator."""
        return cast("wire.Run", await self._json("POST", f"/chat/run/{self._part(run)}/pause", key=idempotency_key))

    async def post_chat_run_by_run_resume(self, run: str, body: Optional[wire.ResumeRun] = None, *, idempotency_key: Optional[str] = None) -> wire.Resumed:
        """Have a run go on where it was, go back to a checkpoint, or go on as others from one.
        Needs the role operator.
        """
        return cast("wire.Resumed", await self._json("POST", f"/chat/run/{self._part(run)}/resume", body=body, key=idempotency_key))

    async def post_chat_run_by_run_transition(self, run: str, body: wire.MoveRun, *, idempotency_key: Optional[str] = None) -> wire.Run:
        """Change a run's state by hand. Needs the role operator."""
        return cast("wire.Run", await self._json("POST", f"/chat/run/{self._part(run)}/transition", body=body, key=idempotency_key))

    async def post_chat_send(self, body: wire.SendMessage, *, idempotency_key: Optional[str] = None) -> wire.Message:
        """Tell a session's agent something. Needs the role operator."""
        return cast("wire.Message", await self._json("POST", "/chat/send", body=body, key=idempotency_key))

    async def get_chat_session(self, *, limit: Optional[int] = None, after: Optional[str] = None, state: Optional[Literal["open", "closed"]] = None, group: Optional[str] = None) -> wire.SessionPage:
        """List sessions, newest first. Needs the role viewer."""
        return cast("wire.SessionPage", await self._json("GET", "/chat/session", query={"limit": limit, "after": after, "state": state, "group": group}))

    async def post_chat_session(self, body: wire.OpenSession, *, idempotency_key: Optional[str] = None) -> wire.Session:
        """Open a session, or find the one of that name. Needs the role operator."""
        return cast("wire.Session", await self._json("POST", "/chat/session", body=body, key=idempotency_key))

    async def get_chat_session_by_session(self, session: str) -> wire.Session:
        """Show a session. Needs the role viewer."""
        return cast("wire.Session", await self._json("GET", f"/chat/session/{self._part(session)}"))

    async def delete_chat_session_by_session(self, session: str) -> None:
        """Close a session. What was said in it stays. Needs the role operator."""
        await self._none("DELETE", f"/chat/session/{self._part(session)}")

    async def get_connectors(self) -> wire.ConnectorPage:
        """List what joins sessions to others, and what of its deliveries waits. Needs the role
        viewer.
        """
        return cast("wire.ConnectorPage", await self._json("GET", "/connectors"))

    async def get_connectors_by_connector_deliveries(self, connector: str, *, state: Optional[Literal["pending", "delivered", "dead"]] = None, limit: Optional[int] = None, after: Optional[str] = None) -> wire.DeliveryPage:
        """List what is or was to be delivered to a connector, by when it is due. Needs the role
        viewer.
        """
        return cast("wire.DeliveryPage", await self._json("GET", f"/connectors/{self._part(connector)}/deliveries", query={"state": state, "limit": limit, "after": after}))

    async def post_deliveries_by_delivery_redeliver(self, delivery: str, *, idempotency_key: Optional[str] = None) -> wire.Delivery:
        """Try a delivery anew that failed too often. Needs the role operator."""
        return cast("wire.Delivery", await self._json("POST", f"/deliveries/{self._part(delivery)}/redeliver", key=idempotency_key))

    async def get_doctor(self) -> wire.ProbePage:
        """Probe what this host can do, and what to do about what it cannot. Needs the role viewer."""
        return cast("wire.ProbePage", await self._json("GET", "/doctor"))

    async def post_e2b_keys(self, body: wire.CreateE2BKey) -> wire.E2BKey:
        """Make a key for clients of the E2B protocol. The answer alone has it. Needs the role
        admin.
        """
        return cast("wire.E2BKey", await self._json("POST", "/e2b/keys", body=body))

    async def get_feed(self, *, topics: Optional[str] = None, last_event_id: Optional[str] = None) -> AsyncEvents:
        """Stream what happens, and how jails fare. The topics jail, approval, run, notice, step,
        decision and egress are entries of the chain, and after a Last-Event-ID go on behind it;
        jails and schedules are as of now. Needs the role viewer.
        """
        return await self._sse("GET", "/feed", query={"topics": topics}, last=last_event_id, accept="text/event-stream")

    async def delete_grants_by_grant(self, grant: str) -> None:
        """Take a grant away, at once. Needs the role operator."""
        await self._none("DELETE", f"/grants/{self._part(grant)}")

    async def get_health(self) -> wire.Health:
        """Say that the daemon lives."""
        return cast("wire.Health", await self._json("GET", "/health"))

    async def get_health_ready(self) -> wire.Health:
        """Say that the daemon can serve."""
        return cast("wire.Health", await self._json("GET", "/health/ready"))

    async def post_hooks_by_connector(self, connector: str) -> wire.Received:
        """Tell a session something from outside, signed as the connector wants it: by the Standard
        Webhooks or as GitHub signs.
        """
        return cast("wire.Received", await self._json("POST", f"/hooks/{self._part(connector)}"))

    async def get_images(self, *, limit: Optional[int] = None, after: Optional[str] = None) -> wire.ImagePage:
        """List the root filesystems that are ready, the newest first. Needs the role viewer."""
        return cast("wire.ImagePage", await self._json("GET", "/images", query={"limit": limit, "after": after}))

    async def post_images(self, body: wire.Rootfs, *, idempotency_key: Optional[str] = None) -> wire.Prepared:
        """Make a root filesystem ready, so that the first jail on it need not wait. Needs the role
        operator.
        """
        return cast("wire.Prepared", await self._json("POST", "/images", body=body, key=idempotency_key))

    async def post_images_prune(self, *, idempotency_key: Optional[str] = None) -> wire.ImagePage:
        """Remove the root filesystems that no jail uses, and list them. Needs the role admin."""
        return cast("wire.ImagePage", await self._json("POST", "/images/prune", key=idempotency_key))

    async def get_jails(self, *, limit: Optional[int] = None, after: Optional[str] = None, state: Optional[Literal["created", "starting", "running", "paused", "stopped", "failed"]] = None, name: Optional[str] = None, label: Optional[list[str]] = None) -> wire.JailPage:
        """List jails, oldest first. Needs the role viewer."""
        return cast("wire.JailPage", await self._json("GET", "/jails", query={"limit": limit, "after": after, "state": state, "name": name, "label": label}))

    async def post_jails(self, body: Optional[wire.CreateJail] = None, *, idempotency_key: Optional[str] = None) -> wire.Jail:
        """Make a jail. Needs the role operator."""
        return cast("wire.Jail", await self._json("POST", "/jails", body=body, key=idempotency_key))

    async def get_jails_by_id(self, id: str) -> wire.Jail:
        """Show a jail and what it uses. Needs the role viewer."""
        return cast("wire.Jail", await self._json("GET", f"/jails/{self._part(id)}"))

    async def delete_jails_by_id(self, id: str, *, snapshots: Optional[bool] = None) -> None:
        """Remove a jail, whatever its state, and its files. Needs the role operator."""
        await self._none("DELETE", f"/jails/{self._part(id)}", query={"snapshots": snapshots})

    async def get_jails_by_id_at(self, id: str, *, ts: Optional[str] = None, all: Optional[bool] = None, limit: Optional[int] = None) -> wire.Past:
        """Show how a jail was at an instant: its processes, the files it had changed, and the
        nearest snapshot. Needs the role viewer.
        """
        return cast("wire.Past", await self._json("GET", f"/jails/{self._part(id)}/at", query={"ts": ts, "all": all, "limit": limit}))

    async def post_jails_by_id_branch(self, id: str, body: Optional[wire.Branch] = None, *, idempotency_key: Optional[str] = None) -> wire.Branches:
        """Take a snapshot of a jail and make jails from it. Needs the role operator."""
        return cast("wire.Branches", await self._json("POST", f"/jails/{self._part(id)}/branch", body=body, key=idempotency_key))

    async def get_jails_by_id_connections(self, id: str, *, from_: Optional[str] = None, to: Optional[str] = None, limit: Optional[int] = None) -> wire.Connections:
        """Show whom a jail talked to, by host, and what was decided about it on its way out. Needs
        the role viewer.
        """
        return cast("wire.Connections", await self._json("GET", f"/jails/{self._part(id)}/connections", query={"from": from_, "to": to, "limit": limit}))

    async def post_jails_by_id_decide(self, id: str, body: wire.Decide, *, idempotency_key: Optional[str] = None) -> wire.Verdict:
        """Ask whether something may be done, and wait for a person if one is to be asked. Needs
        the role operator.
        """
        return cast("wire.Verdict", await self._json("POST", f"/jails/{self._part(id)}/decide", body=body, key=idempotency_key))

    async def get_jails_by_id_diff(self, id: str, *, against: Optional[str] = None, only: Optional[str] = None, content: Optional[Literal["unified"]] = None, format: Optional[Literal["json", "text", "html"]] = None) -> wire.Comparison:
        """Show what differs between a jail and another, or a snapshot. Needs the role viewer."""
        return cast("wire.Comparison", await self._json("GET", f"/jails/{self._part(id)}/diff", query={"against": against, "only": only, "content": content, "format": format}))

    async def get_jails_by_id_diff_text(self, id: str, *, against: Optional[str] = None, only: Optional[str] = None, content: Optional[Literal["unified"]] = None, format: Optional[Literal["json", "text", "html"]] = None) -> str:
        """Show what differs between a jail and another, or a snapshot. Needs the role viewer."""
        return await self._text("GET", f"/jails/{self._part(id)}/diff", query={"against": against, "only": only, "content": content, "format": format}, accept="text/plain")

    async def get_jails_by_id_diff_html(self, id: str, *, against: Optional[str] = None, only: Optional[str] = None, content: Optional[Literal["unified"]] = None, format: Optional[Literal["json", "text", "html"]] = None) -> str:
        """Show what differs between a jail and another, or a snapshot. Needs the role viewer."""
        return await self._text("GET", f"/jails/{self._part(id)}/diff", query={"against": against, "only": only, "content": content, "format": format}, accept="text/html")

    async def get_jails_by_id_egress(self, id: str) -> wire.EgressState:
        """Show what may leave a jail, and what did, in numbers. Needs the role viewer."""
        return cast("wire.EgressState", await self._json("GET", f"/jails/{self._part(id)}/egress"))

    async def put_jails_by_id_egress(self, id: str, body: wire.Egress) -> wire.EgressState:
        """Change what may leave a jail, at once. What is carried and not allowed any more is cut.
        Needs the role operator.
        """
        return cast("wire.EgressState", await self._json("PUT", f"/jails/{self._part(id)}/egress", body=body))

    async def get_jails_by_id_events(self, id: str, *, q: Optional[str] = None, type: Optional[str] = None, pid: Optional[str] = None, path: Optional[str] = None, host: Optional[str] = None, name: Optional[str] = None, ret: Optional[str] = None, comm: Optional[str] = None, op: Optional[str] = None, since: Optional[str] = None, until: Optional[str] = None, after: Optional[int] = None, tail: Optional[int] = None, limit: Optional[int] = None, follow: Optional[bool] = None, offset: Optional[int] = None, at: Optional[str] = None, format: Optional[Literal["sse", "ndjson"]] = None) -> wire.EventWindow:
        """Stream what a jail does, from its first record on or from where a filter, a time or
        Last-Event-ID says. Each event's id is its record's seq; 'end' comes last. With offset
        or at, answer with a window of it. Needs the role viewer.
        """
        return cast("wire.EventWindow", await self._json("GET", f"/jails/{self._part(id)}/events", query={"q": q, "type": type, "pid": pid, "path": path, "host": host, "name": name, "ret": ret, "comm": comm, "op": op, "since": since, "until": until, "after": after, "tail": tail, "limit": limit, "follow": follow, "offset": offset, "at": at, "format": format}))

    async def get_jails_by_id_events_stream(self, id: str, *, q: Optional[str] = None, type: Optional[str] = None, pid: Optional[str] = None, path: Optional[str] = None, host: Optional[str] = None, name: Optional[str] = None, ret: Optional[str] = None, comm: Optional[str] = None, op: Optional[str] = None, since: Optional[str] = None, until: Optional[str] = None, after: Optional[int] = None, tail: Optional[int] = None, limit: Optional[int] = None, follow: Optional[bool] = None, offset: Optional[int] = None, at: Optional[str] = None, format: Optional[Literal["sse", "ndjson"]] = None, last_event_id: Optional[str] = None) -> AsyncEvents:
        """Stream what a jail does, from its first record on or from where a filter, a time or
        Last-Event-ID says. Each event's id is its record's seq; 'end' comes last. With offset
        or at, answer with a window of it. Needs the role viewer.
        """
        return await self._sse("GET", f"/jails/{self._part(id)}/events", query={"q": q, "type": type, "pid": pid, "path": path, "host": host, "name": name, "ret": ret, "comm": comm, "op": op, "since": since, "until": until, "after": after, "tail": tail, "limit": limit, "follow": follow, "offset": offset, "at": at, "format": format}, last=last_event_id, accept="text/event-stream")

    async def get_jails_by_id_events_lines(self, id: str, *, q: Optional[str] = None, type: Optional[str] = None, pid: Optional[str] = None, path: Optional[str] = None, host: Optional[str] = None, name: Optional[str] = None, ret: Optional[str] = None, comm: Optional[str] = None, op: Optional[str] = None, since: Optional[str] = None, until: Optional[str] = None, after: Optional[int] = None, tail: Optional[int] = None, limit: Optional[int] = None, follow: Optional[bool] = None, offset: Optional[int] = None, at: Optional[str] = None, format: Optional[Literal["sse", "ndjson"]] = None, last_event_id: Optional[str] = None) -> AsyncLines:
        """Stream what a jail does, from its first record on or from where a filter, a time or
        Last-Event-ID says. Each event's id is its record's seq; 'end' comes last. With offset
        or at, answer with a window of it. Needs the role viewer.
        """
        return await self._lines("GET", f"/jails/{self._part(id)}/events", query={"q": q, "type": type, "pid": pid, "path": path, "host": host, "name": name, "ret": ret, "comm": comm, "op": op, "since": since, "until": until, "after": after, "tail": tail, "limit": limit, "follow": follow, "offset": offset, "at": at, "format": format}, last=last_event_id, accept="application/x-ndjson")

    async def post_jails_by_id_exec(self, id: str, body: wire.ExecRequest, *, idempotency_key: Optional[str] = None) -> wire.Exec:
        """Run a command and wait for it, stream its output, or detach from it. Needs the role
        operator.
        """
        return cast("wire.Exec", await self._json("POST", f"/jails/{self._part(id)}/exec", body=body, key=idempotency_key))

    async def post_jails_by_id_exec_stream(self, id: str, body: wire.ExecRequest, *, idempotency_key: Optional[str] = None) -> AsyncEvents:
        """Run a command and wait for it, stream its output, or detach from it. Needs the role
        operator.
        """
        return await self._sse("POST", f"/jails/{self._part(id)}/exec", body=body, key=idempotency_key, accept="text/event-stream")

    async def get_jails_by_id_execs(self, id: str, *, limit: Optional[int] = None, after: Optional[str] = None) -> wire.ExecPage:
        """List the commands of a jail that are still known, oldest first. Needs the role viewer."""
        return cast("wire.ExecPage", await self._json("GET", f"/jails/{self._part(id)}/execs", query={"limit": limit, "after": after}))

    async def get_jails_by_id_execs_by_exec(self, id: str, exec: str, *, from_: Optional[int] = None, lossless: Optional[bool] = None) -> wire.Exec:
        """Show a command and its output, or follow it as events. Needs the role viewer."""
        return cast("wire.Exec", await self._json("GET", f"/jails/{self._part(id)}/execs/{self._part(exec)}", query={"from": from_, "lossless": lossless}))

    async def get_jails_by_id_execs_by_exec_stream(self, id: str, exec: str, *, from_: Optional[int] = None, lossless: Optional[bool] = None, last_event_id: Optional[str] = None) -> AsyncEvents:
        """Show a command and its output, or follow it as events. Needs the role viewer."""
        return await self._sse("GET", f"/jails/{self._part(id)}/execs/{self._part(exec)}", query={"from": from_, "lossless": lossless}, last=last_event_id, accept="text/event-stream")

    async def post_jails_by_id_execs_by_exec_resize(self, id: str, exec: str, body: wire.Size, *, idempotency_key: Optional[str] = None) -> None:
        """Change the size of a command's terminal. Needs the role operator."""
        await self._none("POST", f"/jails/{self._part(id)}/execs/{self._part(exec)}/resize", body=body, key=idempotency_key)

    async def post_jails_by_id_execs_by_exec_signal(self, id: str, exec: str, body: wire.Signal, *, idempotency_key: Optional[str] = None) -> None:
        """Send a signal to a command's process group. Needs the role operator."""
        await self._none("POST", f"/jails/{self._part(id)}/execs/{self._part(exec)}/signal", body=body, key=idempotency_key)

    async def post_jails_by_id_execs_by_exec_stdin(self, id: str, exec: str, content: Content, *, close: Optional[bool] = None, content_type: str = "application/octet-stream") -> None:
        """Write to a command's standard input. Needs the role operator."""
        await self._none("POST", f"/jails/{self._part(id)}/execs/{self._part(exec)}/stdin", content=content, content_type=content_type, query={"close": close})

    async def get_jails_by_id_files(self, id: str, *, path: str, list: Optional[bool] = None, stat: Optional[bool] = None, tar: Optional[bool] = None, offset: Optional[int] = None, bytes: Optional[int] = None, limit: Optional[int] = None, after: Optional[str] = None) -> Union[wire.File, wire.FilePage]:
        """Read a file, list a directory, describe either, or take a tar archive of it. Needs the
        role viewer.
        """
        return cast("Union[wire.File, wire.FilePage]", await self._json("GET", f"/jails/{self._part(id)}/files", query={"path": path, "list": list, "stat": stat, "tar": tar, "offset": offset, "bytes": bytes, "limit": limit, "after": after}))

    async def get_jails_by_id_files_bytes(self, id: str, *, path: str, list: Optional[bool] = None, stat: Optional[bool] = None, tar: Optional[bool] = None, offset: Optional[int] = None, bytes: Optional[int] = None, limit: Optional[int] = None, after: Optional[str] = None) -> AsyncAnswer:
        """Read a file, list a directory, describe either, or take a tar archive of it. Needs the
        role viewer.
        """
        return await self._open("GET", f"/jails/{self._part(id)}/files", query={"path": path, "list": list, "stat": stat, "tar": tar, "offset": offset, "bytes": bytes, "limit": limit, "after": after}, accept="application/octet-stream")

    async def put_jails_by_id_files(self, id: str, content: Content, *, path: str, tar: Optional[bool] = None, mkdir: Optional[bool] = None, mode: Optional[str] = None, append: Optional[bool] = None, parents: Optional[bool] = None, uid: Optional[int] = None, gid: Optional[int] = None, content_type: str = "application/octet-stream") -> wire.File:
        """Write a file, make a directory, or extract a tar archive. Needs the role operator."""
        return cast("wire.File", await self._json("PUT", f"/jails/{self._part(id)}/files", content=content, content_type=content_type, query={"path": path, "tar": tar, "mkdir": mkdir, "mode": mode, "append": append, "parents": parents, "uid": uid, "gid": gid}))

    async def delete_jails_by_id_files(self, id: str, *, path: str, recursive: Optional[bool] = None) -> None:
        """Remove a file or directory. Needs the role operator."""
        await self._none("DELETE", f"/jails/{self._part(id)}/files", query={"path": path, "recursive": recursive})

    async def post_jails_by_id_files_move(self, id: str, body: wire.MoveFile, *, idempotency_key: Optional[str] = None) -> None:
        """Rename a file or directory. Needs the role operator."""
        await self._none("POST", f"/jails/{self._part(id)}/files/move", body=body, key=idempotency_key)

    async def get_jails_by_id_files_watch(self, id: str, *, path: str, recursive: Optional[bool] = None, last_event_id: Optional[str] = None) -> AsyncEvents:
        """Stream changes below a path as they happen. Needs the role viewer."""
        return await self._sse("GET", f"/jails/{self._part(id)}/files/watch", query={"path": path, "recursive": recursive}, last=last_event_id, accept="text/event-stream")

    async def get_jails_by_id_fs_diff(self, id: str, *, limit: Optional[int] = None, after: Optional[str] = None, against: Optional[str] = None, workspace: Optional[bool] = None, path: Optional[str] = None, content: Optional[Literal["unified"]] = None) -> wire.ChangePage:
        """List what a jail changed in its root filesystem or its workspace, or how it differs from
        a snapshot or another jail, by path. Needs the role viewer.
        """
        return cast("wire.ChangePage", await self._json("GET", f"/jails/{self._part(id)}/fs/diff", query={"limit": limit, "after": after, "against": against, "workspace": workspace, "path": path, "content": content}))

    async def get_jails_by_id_fs_diff_text(self, id: str, *, limit: Optional[int] = None, after: Optional[str] = None, against: Optional[str] = None, workspace: Optional[bool] = None, path: Optional[str] = None, content: Optional[Literal["unified"]] = None) -> str:
        """List what a jail changed in its root filesystem or its workspace, or how it differs from
        a snapshot or another jail, by path. Needs the role viewer.
        """
        return await self._text("GET", f"/jails/{self._part(id)}/fs/diff", query={"limit": limit, "after": after, "against": against, "workspace": workspace, "path": path, "content": content}, accept="text/plain")

    async def get_jails_by_id_fs_diff_html(self, id: str, *, limit: Optional[int] = None, after: Optional[str] = None, against: Optional[str] = None, workspace: Optional[bool] = None, path: Optional[str] = None, content: Optional[Literal["unified"]] = None) -> str:
        """List what a jail changed in its root filesystem or its workspace, or how it differs from
        a snapshot or another jail, by path. Needs the role viewer.
        """
        return await self._text("GET", f"/jails/{self._part(id)}/fs/diff", query={"limit": limit, "after": after, "against": against, "workspace": workspace, "path": path, "content": content}, accept="text/html")

    async def get_jails_by_id_limits(self, id: str, *, after: Optional[int] = None) -> wire.JailLimits:
        """Show what a jail may use, and what became of requests for more. Needs the role viewer."""
        return cast("wire.JailLimits", await self._json("GET", f"/jails/{self._part(id)}/limits", query={"after": after}))

    async def patch_jails_by_id_limits(self, id: str, body: wire.Limits) -> wire.Jail:
        """Change what a jail may use, while it runs. What is not named stays as it is. Needs the
        role operator.
        """
        return cast("wire.Jail", await self._json("PATCH", f"/jails/{self._part(id)}/limits", body=body))

    async def get_jails_by_id_network_log(self, id: str, *, limit: Optional[int] = None, after: Optional[str] = None, since: Optional[str] = None, until: Optional[str] = None, packets: Optional[bool] = None) -> wire.Flows:
        """List whom a jail talked to, in the order it began. Needs the role viewer."""
        return cast("wire.Flows", await self._json("GET", f"/jails/{self._part(id)}/network/log", query={"limit": limit, "after": after, "since": since, "until": until, "packets": packets}))

    async def get_jails_by_id_network_log_lines(self, id: str, *, limit: Optional[int] = None, after: Optional[str] = None, since: Optional[str] = None, until: Optional[str] = None, packets: Optional[bool] = None, last_event_id: Optional[str] = None) -> AsyncLines:
        """List whom a jail talked to, in the order it began. Needs the role viewer."""
        return await self._lines("GET", f"/jails/{self._part(id)}/network/log", query={"limit": limit, "after": after, "since": since, "until": until, "packets": packets}, last=last_event_id, accept="application/x-ndjson")

    async def get_jails_by_id_network_log_text(self, id: str, *, limit: Optional[int] = None, after: Optional[str] = None, since: Optional[str] = None, until: Optional[str] = None, packets: Optional[bool] = None) -> str:
        """List whom a jail talked to, in the order it began. Needs the role viewer."""
        return await self._text("GET", f"/jails/{self._part(id)}/network/log", query={"limit": limit, "after": after, "since": since, "until": until, "packets": packets}, accept="text/plain")

    async def get_jails_by_id_network_pcap(self, id: str) -> AsyncAnswer:
        """Download what is kept of a jail's packets. Needs the role viewer."""
        return await self._open("GET", f"/jails/{self._part(id)}/network/pcap", accept="application/x-pcapng")

    async def post_jails_by_id_pause(self, id: str, *, idempotency_key: Optional[str] = None) -> wire.Jail:
        """Freeze a jail. Needs the role operator."""
        return cast("wire.Jail", await self._json("POST", f"/jails/{self._part(id)}/pause", key=idempotency_key))

    async def get_jails_by_id_policy(self, id: str) -> wire.PolicyState:
        """Show a jail's policy, how it is read, and what in it does not do what it seems to. Needs
        the role viewer.
        """
        return cast("wire.PolicyState", await self._json("GET", f"/jails/{self._part(id)}/policy"))

    async def put_jails_by_id_policy(self, id: str, body: wire.Policy) -> wire.PolicyState:
        """Give a jail another policy, at once. Needs the role operator."""
        return cast("wire.PolicyState", await self._json("PUT", f"/jails/{self._part(id)}/policy", body=body))

    async def delete_jails_by_id_policy(self, id: str) -> None:
        """Take a jail's policy away. Nothing is allowed any more that is asked about. Needs the
        role operator.
        """
        await self._none("DELETE", f"/jails/{self._part(id)}/policy")

    async def post_jails_by_id_policy_level(self, id: str, body: wire.PolicyLevel, *, idempotency_key: Optional[str] = None) -> wire.PolicyState:
        """Change a jail's level of autonomy, at once: down, or up to its ceiling. Needs the role
        operator.
        """
        return cast("wire.PolicyState", await self._json("POST", f"/jails/{self._part(id)}/policy/level", body=body, key=idempotency_key))

    async def get_jails_by_id_processes(self, id: str, *, at: Optional[str] = None, all: Optional[bool] = None) -> wire.Processes:
        """Show the tree of a jail's processes, as it is or as it was. Needs the role viewer."""
        return cast("wire.Processes", await self._json("GET", f"/jails/{self._part(id)}/processes", query={"at": at, "all": all}))

    async def get_jails_by_id_processes_text(self, id: str, *, at: Optional[str] = None, all: Optional[bool] = None) -> str:
        """Show the tree of a jail's processes, as it is or as it was. Needs the role viewer."""
        return await self._text("GET", f"/jails/{self._part(id)}/processes", query={"at": at, "all": all}, accept="text/plain")

    async def get_jails_by_id_report(self, id: str, *, since: Optional[str] = None, until: Optional[str] = None, format: Optional[Literal["json", "html", "md"]] = None) -> dict[str, Any]:
        """Report on all that a jail did, on one page. Needs the role viewer."""
        return cast("dict[str, Any]", await self._json("GET", f"/jails/{self._part(id)}/report", query={"since": since, "until": until, "format": format}))

    async def get_jails_by_id_report_text(self, id: str, *, since: Optional[str] = None, until: Optional[str] = None, format: Optional[Literal["json", "html", "md"]] = None) -> str:
        """Report on all that a jail did, on one page. Needs the role viewer."""
        return await self._text("GET", f"/jails/{self._part(id)}/report", query={"since": since, "until": until, "format": format}, accept="text/markdown")

    async def get_jails_by_id_report_html(self, id: str, *, since: Optional[str] = None, until: Optional[str] = None, format: Optional[Literal["json", "html", "md"]] = None) -> str:
        """Report on all that a jail did, on one page. Needs the role viewer."""
        return await self._text("GET", f"/jails/{self._part(id)}/report", query={"since": since, "until": until, "format": format}, accept="text/html")

    async def post_jails_by_id_resume(self, id: str, *, idempotency_key: Optional[str] = None) -> wire.Jail:
        """Let a frozen jail go on. Needs the role operator."""
        return cast("wire.Jail", await self._json("POST", f"/jails/{self._part(id)}/resume", key=idempotency_key))

    async def post_jails_by_id_rewind(self, id: str, body: wire.Rewind, *, idempotency_key: Optional[str] = None) -> wire.Jail:
        """Take a jail back to a snapshot. What it did since stays in its log. Needs the role
        operator.
        """
        return cast("wire.Jail", await self._json("POST", f"/jails/{self._part(id)}/rewind", body=body, key=idempotency_key))

    async def post_jails_by_id_snapshot(self, id: str, body: Optional[wire.TakeSnapshot] = None, *, idempotency_key: Optional[str] = None) -> wire.Snapshot:
        """Take a snapshot of a jail, which goes on. Needs the role operator."""
        return cast("wire.Snapshot", await self._json("POST", f"/jails/{self._part(id)}/snapshot", body=body, key=idempotency_key))

    async def get_jails_by_id_snapshots(self, id: str, *, limit: Optional[int] = None, after: Optional[str] = None, usage: Optional[bool] = None) -> wire.SnapshotPage:
        """List the snapshots of a jail, oldest first, also of one that is gone. Needs the role
        viewer.
        """
        return cast("wire.SnapshotPage", await self._json("GET", f"/jails/{self._part(id)}/snapshots", query={"limit": limit, "after": after, "usage": usage}))

    async def post_jails_by_id_start(self, id: str, *, idempotency_key: Optional[str] = None) -> wire.Jail:
        """Start a jail. Needs the role operator."""
        return cast("wire.Jail", await self._json("POST", f"/jails/{self._part(id)}/start", key=idempotency_key))

    async def post_jails_by_id_stop(self, id: str, body: Optional[wire.StopJail] = None, *, idempotency_key: Optional[str] = None) -> wire.Jail:
        """End every process of a jail. Its files stay. Needs the role operator."""
        return cast("wire.Jail", await self._json("POST", f"/jails/{self._part(id)}/stop", body=body, key=idempotency_key))

    async def get_jails_by_id_syscalls(self, id: str, *, q: Optional[str] = None, type: Optional[str] = None, pid: Optional[str] = None, path: Optional[str] = None, host: Optional[str] = None, name: Optional[str] = None, ret: Optional[str] = None, comm: Optional[str] = None, op: Optional[str] = None, from_: Optional[str] = None, to: Optional[str] = None, processes: Optional[int] = None, limit: Optional[int] = None) -> wire.Profile:
        """Show which system calls a jail made, how long they took and how they failed. Needs the
        role viewer.
        """
        return cast("wire.Profile", await self._json("GET", f"/jails/{self._part(id)}/syscalls", query={"q": q, "type": type, "pid": pid, "path": path, "host": host, "name": name, "ret": ret, "comm": comm, "op": op, "from": from_, "to": to, "processes": processes, "limit": limit}))

    async def get_jails_by_id_timeline(self, id: str, *, q: Optional[str] = None, type: Optional[str] = None, pid: Optional[str] = None, path: Optional[str] = None, host: Optional[str] = None, name: Optional[str] = None, ret: Optional[str] = None, comm: Optional[str] = None, op: Optional[str] = None, from_: Optional[str] = None, to: Optional[str] = None, buckets: Optional[int] = None, lanes: Optional[int] = None) -> wire.Timeline:
        """Count what a jail did by time and kind, and by process. Needs the role viewer."""
        return cast("wire.Timeline", await self._json("GET", f"/jails/{self._part(id)}/timeline", query={"q": q, "type": type, "pid": pid, "path": path, "host": host, "name": name, "ret": ret, "comm": comm, "op": op, "from": from_, "to": to, "buckets": buckets, "lanes": lanes}))

    async def get_lineage(self, *, jail: Optional[str] = None) -> wire.LineageJailPage:
        """Show which jails and snapshots come from which, as trees. Needs the role viewer."""
        return cast("wire.LineageJailPage", await self._json("GET", "/lineage", query={"jail": jail}))

    async def post_login(self, body: wire.LogIn) -> wire.Me:
        """Log a browser in by the code of a link."""
        return cast("wire.Me", await self._json("POST", "/login", body=body))

    async def post_login_links(self, body: wire.CreateLoginLink) -> wire.LoginLink:
        """Make a link by which a browser logs in, once, within ten minutes. Needs the role admin."""
        return cast("wire.LoginLink", await self._json("POST", "/login-links", body=body))

    async def get_logins(self, *, limit: Optional[int] = None, after: Optional[str] = None) -> wire.LoginPage:
        """List the browsers that are logged in, oldest first. Needs the role admin."""
        return cast("wire.LoginPage", await self._json("GET", "/logins", query={"limit": limit, "after": after}))

    async def delete_logins_by_login(self, login: str) -> None:
        """End a login, and the streams it reads. Needs the role admin."""
        await self._none("DELETE", f"/logins/{self._part(login)}")

    async def post_logout(self) -> None:
        """End the login that the request's cookie is of. Needs the role viewer."""
        await self._none("POST", "/logout")

    async def get_market(self, *, q: Optional[str] = None) -> wire.OfferPage:
        """List what markets offer. Needs the role viewer."""
        return cast("wire.OfferPage", await self._json("GET", "/market", query={"q": q}))

    async def post_market_install(self, body: wire.MarketInstall, *, idempotency_key: Optional[str] = None) -> wire.Bundle:
        """Install what a market offers. Needs the role admin."""
        return cast("wire.Bundle", await self._json("POST", "/market/install", body=body, key=idempotency_key))

    async def get_market_outdated(self) -> wire.OfferPage:
        """List what is installed and offered in a newer version by its publisher. Needs the role
        viewer.
        """
        return cast("wire.OfferPage", await self._json("GET", "/market/outdated"))

    async def get_me(self) -> wire.Me:
        """Show who the caller is. Needs the role viewer."""
        return cast("wire.Me", await self._json("GET", "/me"))

    async def get_metrics(self) -> str:
        """Metrics for Prometheus. Needs the role viewer."""
        return await self._text("GET", "/metrics", accept="text/plain")

    async def get_notices_dead(self) -> wire.DeadNoticePage:
        """List the notices that could not be delivered. Needs the role viewer."""
        return cast("wire.DeadNoticePage", await self._json("GET", "/notices/dead"))

    async def post_notices_by_notice_redeliver(self, notice: str, *, idempotency_key: Optional[str] = None) -> None:
        """Try a notice anew. Needs the role operator."""
        await self._none("POST", f"/notices/{self._part(notice)}/redeliver", key=idempotency_key)

    async def get_openapi_json(self) -> Any:
        """This document."""
        return await self._json("GET", "/openapi.json")

    async def post_policy_explain(self, body: wire.Explain, *, idempotency_key: Optional[str] = None) -> wire.Explained:
        """Say what a policy would answer, and which rules were looked at. Nothing is asked or
        recorded. Needs the role viewer.
        """
        return cast("wire.Explained", await self._json("POST", "/policy/explain", body=body, key=idempotency_key))

    async def post_policy_lint(self, body: wire.Policy, *, idempotency_key: Optional[str] = None) -> wire.PolicyState:
        """Say what in permission files does not do what it seems to. Needs the role viewer."""
        return cast("wire.PolicyState", await self._json("POST", "/policy/lint", body=body, key=idempotency_key))

    async def get_problems_by_problem(self, problem: str) -> str:
        """Explain a type of problem."""
        return await self._text("GET", f"/problems/{self._part(problem)}", accept="text/html")

    async def get_publishers(self) -> wire.PublisherPage:
        """List whose bundles are taken, and up to what tier. Needs the role viewer."""
        return cast("wire.PublisherPage", await self._json("GET", "/publishers"))

    async def post_publishers_revoke(self, body: wire.RevokeTrust, *, idempotency_key: Optional[str] = None) -> None:
        """Have nothing taken any more, nor called, that a key has signed, or that has a digest.
        Needs the role admin.
        """
        await self._none("POST", "/publishers/revoke", body=body, key=idempotency_key)

    async def post_publishers_rotate(self, body: wire.RotateKey, *, idempotency_key: Optional[str] = None) -> None:
        """Give a publisher a new key. What the old one signed until now stays good. Needs the role
        admin.
        """
        await self._none("POST", "/publishers/rotate", body=body, key=idempotency_key)

    async def put_publishers_by_name(self, name: str, body: wire.AddPublisher) -> None:
        """Have bundles taken that are signed by a key. Needs the role admin."""
        await self._none("PUT", f"/publishers/{self._part(name)}", body=body)

    async def delete_publishers_by_name(self, name: str) -> None:
        """Have none of a publisher's bundles taken any more, nor called. Needs the role admin."""
        await self._none("DELETE", f"/publishers/{self._part(name)}")

    async def get_push_browsers(self) -> wire.PushBrowserPage:
        """List the browsers that are told, oldest first. Needs the role operator."""
        return cast("wire.PushBrowserPage", await self._json("GET", "/push/browsers"))

    async def post_push_browsers(self, body: wire.SubscribeBrowser) -> wire.PushBrowser:
        """Have a browser told when a person is asked, as long as its login is good. In place of
        what it had subscribed before. Needs the role operator.
        """
        return cast("wire.PushBrowser", await self._json("POST", "/push/browsers", body=body))

    async def delete_push_browsers_by_browser(self, browser: str) -> None:
        """Have a browser told no more. Needs the role operator."""
        await self._none("DELETE", f"/push/browsers/{self._part(browser)}")

    async def get_push_key(self) -> wire.PushKey:
        """Show the key that a browser subscribes to pushes with. Needs the role viewer."""
        return cast("wire.PushKey", await self._json("GET", "/push/key"))

    async def get_sandbox_by_id_decisions(self, id: str, *, limit: Optional[int] = None, after: Optional[int] = None, observed: Optional[Literal["true", "false"]] = None, tool: Optional[str] = None, tag: Optional[Literal["AUTONOMOUS", "WHITELISTED", "APPROVED", "DENIED"]] = None, from_: Optional[str] = None, until: Optional[str] = None) -> wire.TrailEntryPage:
        """List what was decided about a jail, oldest first: its audit trail. Needs the role
        viewer.
        """
        return cast("wire.TrailEntryPage", await self._json("GET", f"/sandbox/{self._part(id)}/decisions", query={"limit": limit, "after": after, "observed": observed, "tool": tool, "tag": tag, "from": from_, "until": until}))

    async def post_sandbox_by_id_decisions(self, id: str, body: wire.ClaimedDecision, *, idempotency_key: Optional[str] = None) -> wire.Verdict:
        """Say what an agent is about to do, and hear whether it may. Needs the role operator."""
        return cast("wire.Verdict", await self._json("POST", f"/sandbox/{self._part(id)}/decisions", body=body, key=idempotency_key))

    async def get_schedules(self, *, session_id: Optional[str] = None, limit: Optional[int] = None, after: Optional[str] = None) -> wire.SchedulePage:
        """List schedules, oldest first. Needs the role viewer."""
        return cast("wire.SchedulePage", await self._json("GET", "/schedules", query={"session_id": session_id, "limit": limit, "after": after}))

    async def get_schedules_times(self, *, schedule: Optional[str] = None, time_zone: Optional[str] = None) -> wire.Times:
        """Say when a schedule would be due that is made now. None is made. Needs the role viewer."""
        return cast("wire.Times", await self._json("GET", "/schedules/times", query={"schedule": schedule, "time_zone": time_zone}))

    async def get_schedules_by_schedule(self, schedule: str) -> wire.Schedule:
        """Show a schedule, and its next ten times. Needs the role viewer."""
        return cast("wire.Schedule", await self._json("GET", f"/schedules/{self._part(schedule)}"))

    async def patch_schedules_by_schedule(self, schedule: str, body: wire.EditSchedule) -> wire.Schedule:
        """Change when a schedule makes runs. What is not named stays as it is. Needs the role
        operator.
        """
        return cast("wire.Schedule", await self._json("PATCH", f"/schedules/{self._part(schedule)}", body=body))

    async def delete_schedules_by_schedule(self, schedule: str) -> None:
        """Remove a schedule. Runs that it has made stay. Needs the role operator."""
        await self._none("DELETE", f"/schedules/{self._part(schedule)}")

    async def post_schedules_by_schedule_pause(self, schedule: str, *, idempotency_key: Optional[str] = None) -> wire.Schedule:
        """Have a schedule make no runs. Needs the role operator."""
        return cast("wire.Schedule", await self._json("POST", f"/schedules/{self._part(schedule)}/pause", key=idempotency_key))

    async def post_schedules_by_schedule_resume(self, schedule: str, *, idempotency_key: Optional[str] = None) -> wire.Schedule:
        """Have it make runs again. Needs the role operator."""
        return cast("wire.Schedule", await self._json("POST", f"/schedules/{self._part(schedule)}/resume", key=idempotency_key))

    async def get_secrets(self) -> wire.SecretPage:
        """List secrets by name, with who may have them. Nobody is shown their values. Needs the
        role viewer.
        """
        return cast("wire.SecretPage", await self._json("GET", "/secrets"))

    async def post_secrets_rotate(self, *, idempotency_key: Optional[str] = None) -> None:
        """Seal all secrets with a new key, and destroy the old one. Needs the role admin."""
        await self._none("POST", "/secrets/rotate", key=idempotency_key)

    async def put_secrets_by_name(self, name: str, body: wire.PutSecret) -> None:
        """Keep a secret, sealed, or refer to one that others keep. Needs the role admin."""
        await self._none("PUT", f"/secrets/{self._part(name)}", body=body)

    async def delete_secrets_by_name(self, name: str) -> None:
        """Remove a secret, from all who have it too. Needs the role admin."""
        await self._none("DELETE", f"/secrets/{self._part(name)}")

    async def post_secrets_by_name_grants(self, name: str, body: wire.GrantSecret, *, idempotency_key: Optional[str] = None) -> wire.Grant:
        """Let a jail have a secret, as a file or in requests on their way out. Needs the role
        operator.
        """
        return cast("wire.Grant", await self._json("POST", f"/secrets/{self._part(name)}/grants", body=body, key=idempotency_key))

    async def get_skills(self) -> wire.SkillPage:
        """List skills, by name. Needs the role viewer."""
        return cast("wire.SkillPage", await self._json("GET", "/skills"))

    async def post_skills(self, body: wire.AddSkill, *, idempotency_key: Optional[str] = None) -> wire.Skill:
        """Take up a skill, in place of one of the same name. One that names a capability that
        nobody has allowed is refused. Needs the role operator.
        """
        return cast("wire.Skill", await self._json("POST", "/skills", body=body, key=idempotency_key))

    async def get_skills_by_name(self, name: str) -> wire.Skill:
        """Show a skill as an agent reads it, with its capabilities as tools. Needs the role
        viewer.
        """
        return cast("wire.Skill", await self._json("GET", f"/skills/{self._part(name)}"))

    async def delete_skills_by_name(self, name: str) -> None:
        """Forget a skill. Its capabilities stay. Needs the role operator."""
        await self._none("DELETE", f"/skills/{self._part(name)}")

    async def get_snapshots(self, *, limit: Optional[int] = None, after: Optional[str] = None, usage: Optional[bool] = None) -> wire.SnapshotPage:
        """List snapshots, oldest first. Needs the role viewer."""
        return cast("wire.SnapshotPage", await self._json("GET", "/snapshots", query={"limit": limit, "after": after, "usage": usage}))

    async def post_snapshots_import(self, content: Content, *, files_only: Optional[bool] = None, force: Optional[bool] = None, content_type: str = "application/octet-stream") -> wire.Snapshot:
        """Keep a snapshot that was exported. Its archive is trusted like a program that runs as
        root. Needs the role admin.
        """
        return cast("wire.Snapshot", await self._json("POST", "/snapshots/import", content=content, content_type=content_type, query={"files_only": files_only, "force": force}))

    async def get_snapshots_by_sid(self, sid: str) -> wire.Snapshot:
        """Show a snapshot and what it takes on the disk. Needs the role viewer."""
        return cast("wire.Snapshot", await self._json("GET", f"/snapshots/{self._part(sid)}"))

    async def delete_snapshots_by_sid(self, sid: str) -> None:
        """Remove a snapshot. What jails and other snapshots stand on stays. Needs the role
        operator.
        """
        await self._none("DELETE", f"/snapshots/{self._part(sid)}")

    async def post_snapshots_by_sid_branch(self, sid: str, body: Optional[wire.Branch] = None, *, idempotency_key: Optional[str] = None) -> wire.Branches:
        """Make jails from a snapshot. Some may fail; the answer says which. Needs the role
        operator.
        """
        return cast("wire.Branches", await self._json("POST", f"/snapshots/{self._part(sid)}/branch", body=body, key=idempotency_key))

    async def get_snapshots_by_sid_diff(self, sid: str, *, against: Optional[str] = None, only: Optional[str] = None, content: Optional[Literal["unified"]] = None, format: Optional[Literal["json", "text", "html"]] = None) -> wire.Comparison:
        """Show what differs between a snapshot and the jail it was taken of, another jail or
        another snapshot. Needs the role viewer.
        """
        return cast("wire.Comparison", await self._json("GET", f"/snapshots/{self._part(sid)}/diff", query={"against": against, "only": only, "content": content, "format": format}))

    async def get_snapshots_by_sid_diff_text(self, sid: str, *, against: Optional[str] = None, only: Optional[str] = None, content: Optional[Literal["unified"]] = None, format: Optional[Literal["json", "text", "html"]] = None) -> str:
        """Show what differs between a snapshot and the jail it was taken of, another jail or
        another snapshot. Needs the role viewer.
        """
        return await self._text("GET", f"/snapshots/{self._part(sid)}/diff", query={"against": against, "only": only, "content": content, "format": format}, accept="text/plain")

    async def get_snapshots_by_sid_diff_html(self, sid: str, *, against: Optional[str] = None, only: Optional[str] = None, content: Optional[Literal["unified"]] = None, format: Optional[Literal["json", "text", "html"]] = None) -> str:
        """Show what differs between a snapshot and the jail it was taken of, another jail or
        another snapshot. Needs the role viewer.
        """
        return await self._text("GET", f"/snapshots/{self._part(sid)}/diff", query={"against": against, "only": only, "content": content, "format": format}, accept="text/html")

    async def get_snapshots_by_sid_export(self, sid: str) -> AsyncAnswer:
        """Download a snapshot, memory and files, as an archive that another host can import. Needs
        the role operator.
        """
        return await self._open("GET", f"/snapshots/{self._part(sid)}/export", accept="application/zstd")

    async def post_snapshots_by_sid_restore(self, sid: str, body: Optional[wire.Overrides] = None, *, idempotency_key: Optional[str] = None) -> wire.Jail:
        """Make a jail from a snapshot, as it was. Needs the role operator."""
        return cast("wire.Jail", await self._json("POST", f"/snapshots/{self._part(sid)}/restore", body=body, key=idempotency_key))

    async def post_snapshots_by_sid_warm(self, sid: str, body: wire.Warm, *, idempotency_key: Optional[str] = None) -> wire.Warmed:
        """Make frozen copies of a snapshot ahead of need. Needs the role operator."""
        return cast("wire.Warmed", await self._json("POST", f"/snapshots/{self._part(sid)}/warm", body=body, key=idempotency_key))

    async def get_storage(self) -> wire.Storage:
        """Show what the daemon keeps on the disk, by what it is for, and the jails that it has
        made ahead of need. Needs the role viewer.
        """
        return cast("wire.Storage", await self._json("GET", "/storage"))

    async def get_tokens(self, *, limit: Optional[int] = None, after: Optional[str] = None) -> wire.TokenPage:
        """List tokens, oldest first. Needs the role admin."""
        return cast("wire.TokenPage", await self._json("GET", "/tokens", query={"limit": limit, "after": after}))

    async def post_tokens(self, body: wire.CreateToken) -> wire.Token:
        """Make a bearer token. The answer alone has its secret. Needs the role admin."""
        return cast("wire.Token", await self._json("POST", "/tokens", body=body))

    async def delete_tokens_by_id(self, id: str) -> None:
        """Revoke a token. Needs the role admin."""
        await self._none("DELETE", f"/tokens/{self._part(id)}")

    async def get_version(self) -> wire.Version:
        """Show what runs. Needs the role viewer."""
        return cast("wire.Version", await self._json("GET", "/version"))
