// Made by `make sdk` from the OpenAPI document. Do not edit.

import { type Answer, type Content, part, Transport } from "./transport.js";
import type { ServerEvent } from "./sse.js";
import type * as wire from "./wire.js";

/** Options of any call. */
export interface Call {
  /** Ends the call when it is aborted. */
  signal?: AbortSignal;
}

/** Options of operations with an idempotency key. */
export interface Keyed extends Call {
  /** Requests with the same key within a day get the first response. With a key, a call is retried if the connection breaks. */
  idempotencyKey?: string;
}

/** Options of streams that can resume. */
export interface Resumed extends Call {
  /** The id of the last received event. */
  lastEventId?: string;
}

/**
 * The API with one method for each operation.
 *
 * An operation with several forms of response has a method for each form. The name without a
 * suffix is the first of JSON, events, lines of JSON, text and bytes.
 */
export class Operations extends Transport {
  /** Show the approval request of an approval link. */
  showApprovalLink(token: string, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/answers/${part(token)}`, accept: "text/html", ...how });
  }

  /** Answer the approval request of an approval link. */
  answerApprovalLink(token: string, how: Call = {}): Promise<string> {
    return this.text({ method: "POST", path: `/answers/${part(token)}`, accept: "text/html", ...how });
  }

  /** List approval requests: pending ones oldest first, or settled ones newest first. Requires the
   * role viewer. */
  listApprovals(query: { state?: "pending" | "answered" | "expired" | "withdrawn" | "all" | undefined; jail?: string | undefined; limit?: number | undefined; nodes?: "all" | "self" | undefined } = {}, how: Call = {}): Promise<wire.ApprovalPage> {
    return this.json<wire.ApprovalPage>({ method: "GET", path: "/approvals", query, ...how });
  }

  /** Stream the state changes of approval requests. The stream starts with the pending requests.
   * Requires the role viewer. */
  streamApprovals(how: Resumed = {}): Promise<AsyncIterable<ServerEvent>> {
    return this.events({ method: "GET", path: "/approvals/events", accept: "text/event-stream", ...how });
  }

  /** Show an approval request, immediately or when it is settled. Requires the role viewer. */
  getApproval(approval: string, query: { wait_ms?: number | undefined; last?: number | undefined } = {}, how: Call = {}): Promise<wire.Approval> {
    return this.json<wire.Approval>({ method: "GET", path: `/approvals/${part(approval)}`, query, ...how });
  }

  /** Answer an approval request. Only the first answer takes effect; repeating it is not an error.
   * Requires the role operator. */
  answerApproval(approval: string, body: wire.AnswerApproval, how: Keyed = {}): Promise<wire.Approval> {
    return this.json<wire.Approval>({ method: "POST", path: `/approvals/${part(approval)}`, body, ...how });
  }

  /** Withdraw an approval request. Requires the role operator. */
  withdrawApproval(approval: string, how: Call = {}): Promise<wire.Approval> {
    return this.json<wire.Approval>({ method: "DELETE", path: `/approvals/${part(approval)}`, ...how });
  }

  /** List the isolation backends of this host. Requires the role viewer. */
  listBackends(how: Call = {}): Promise<wire.BackendPage> {
    return this.json<wire.BackendPage>({ method: "GET", path: "/backends", ...how });
  }

  /** List installed bundles and pending installations, by name. Requires the role viewer. */
  listBundles(how: Call = {}): Promise<wire.BundlePage> {
    return this.json<wire.BundlePage>({ method: "GET", path: "/bundles", ...how });
  }

  /** Install a bundle. It is verified immediately; then approval is requested. Requires the role
   * admin. */
  installBundle(content: Content, query: { name: string }, how: Call = {}): Promise<wire.Bundle> {
    return this.json<wire.Bundle>({ method: "POST", path: "/bundles", content, contentType: "application/octet-stream", query, ...how });
  }

  /** Delete a bundle with its capabilities and its skill. Requires the role admin. */
  deleteBundle(name: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/bundles/${part(name)}`, ...how });
  }

  /** Show the result of a recent call. Requires the role viewer. */
  getCall(call: string, how: Call = {}): Promise<wire.Called> {
    return this.json<wire.Called>({ method: "GET", path: `/calls/${part(call)}`, ...how });
  }

  /** List the versions of all capabilities, by id, newest first. Requires the role viewer. */
  listCapabilities(how: Call = {}): Promise<wire.CapabilityPage> {
    return this.json<wire.CapabilityPage>({ method: "GET", path: "/capabilities", ...how });
  }

  /** Register the capabilities of a manifest. New permissions require approval. Requires the role
   * admin. */
  registerCapabilities(body: wire.Register, how: Keyed = {}): Promise<wire.CapabilityPage> {
    return this.json<wire.CapabilityPage>({ method: "POST", path: "/capabilities", body, ...how });
  }

  /** Start an MCP (Model Context Protocol) server in a jail and generate manifests for its tools.
   * Requires the role admin. */
  importCapabilities(body: wire.ImportServer, how: Keyed = {}): Promise<wire.ImportedServer> {
    return this.json<wire.ImportedServer>({ method: "POST", path: "/capabilities/import", body, ...how });
  }

  /** Show a version of a capability with its manifest and schemas. Requires the role viewer. */
  getCapability(capability: string, query: { version?: string | undefined } = {}, how: Call = {}): Promise<wire.Capability> {
    return this.json<wire.Capability>({ method: "GET", path: `/capabilities/${part(capability)}`, query, ...how });
  }

  /** Delete a version of a capability and its stored data. Requires the role admin. */
  deleteCapability(capability: string, query: { version?: string | undefined } = {}, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/capabilities/${part(capability)}`, query, ...how });
  }

  /** Call a capability. A failed call is a successful response with state failed; a denied call is an
   * error. Requires the role operator. */
  callCapability(capability: string, body: wire.Call, how: Keyed = {}): Promise<wire.Called> {
    return this.json<wire.Called>({ method: "POST", path: `/capabilities/${part(capability)}/call`, body, ...how });
  }

  /** Revoke a version of a capability, so that it cannot be called. Requires the role operator. */
  revokeCapability(capability: string, body: wire.RevokeCapability, query: { version?: string | undefined } = {}, how: Keyed = {}): Promise<wire.Capability> {
    return this.json<wire.Capability>({ method: "POST", path: `/capabilities/${part(capability)}/revoke`, body, query, ...how });
  }

  /** Set whether a version, identified by its digest, may run directly on the host. Requires the role
   * admin. */
  trustCapability(capability: string, body: wire.TrustCapability, query: { version?: string | undefined } = {}, how: Keyed = {}): Promise<wire.Capability> {
    return this.json<wire.Capability>({ method: "POST", path: `/capabilities/${part(capability)}/trust`, body, query, ...how });
  }

  /** List entries of the causal chain (the audit log), oldest first or newest first. Requires the
   * role viewer. */
  listChainEntries(query: { limit?: number | undefined; after?: number | undefined; session?: string | undefined; run?: string | undefined; jail?: string | undefined; capability?: string | undefined; kind?: string | undefined; parent?: number | undefined; under?: number | undefined; from?: string | undefined; until?: string | undefined; newest?: boolean | undefined } = {}, how: Call = {}): Promise<wire.ChainEntryPage> {
    return this.json<wire.ChainEntryPage>({ method: "GET", path: "/chain", query, ...how });
  }

  /** Prove that the audit log extends the log of an earlier checkpoint. Requires the role viewer. */
  getChainConsistency(body: wire.ChainFrom, how: Keyed = {}): Promise<wire.ChainConsistency> {
    return this.json<wire.ChainConsistency>({ method: "POST", path: "/chain/consistency", body, ...how });
  }

  /** Download the audit log with its checkpoints and public key, for verification elsewhere. Requires
   * the role viewer. */
  exportChain(query: { stored?: string | undefined } = {}, how: Call = {}): Promise<AsyncIterable<wire.ChainEntry>> {
    return this.lines<wire.ChainEntry>({ method: "GET", path: "/chain/export", query, accept: "application/x-ndjson", ...how });
  }

  /** Show the length of the audit log, its public key, and its newest checkpoint. Requires the role
   * viewer. */
  getChainHead(how: Call = {}): Promise<wire.ChainHead> {
    return this.json<wire.ChainHead>({ method: "GET", path: "/chain/head", ...how });
  }

  /** List the copies of the audit logs of all nodes of the fleet in the object store. Requires the
   * role viewer. */
  listStoredLogs(how: Call = {}): Promise<wire.StoredLogPage> {
    return this.json<wire.StoredLogPage>({ method: "GET", path: "/chain/stored", ...how });
  }

  /** Verify the audit log: entries, hash links, tree and signatures. Requires the role viewer. */
  verifyChain(query: { all?: boolean | undefined } = {}, how: Call = {}): Promise<wire.ChainReport> {
    return this.json<wire.ChainReport>({ method: "GET", path: "/chain/verify", query, ...how });
  }

  /** List what this daemon has seen of the audit logs of other nodes of the fleet. Requires the role
   * viewer. */
  listWitnessedLogs(how: Call = {}): Promise<wire.WitnessedLogPage> {
    return this.json<wire.WitnessedLogPage>({ method: "GET", path: "/chain/witnessed", ...how });
  }

  /** Show an entry of the audit log. Requires the role viewer. */
  getChainEntry(seq: string, how: Call = {}): Promise<wire.ChainEntry> {
    return this.json<wire.ChainEntry>({ method: "GET", path: `/chain/${part(seq)}`, ...how });
  }

  /** List the causes of an audit log entry, first cause first. Requires the role viewer. */
  listChainCauses(seq: string, how: Call = {}): Promise<wire.ChainEntryPage> {
    return this.json<wire.ChainEntryPage>({ method: "GET", path: `/chain/${part(seq)}/causes`, ...how });
  }

  /** Prove that an entry is in the audit log. The proof is verified with the public key. Requires the
   * role viewer. */
  getChainProof(seq: string, how: Call = {}): Promise<wire.ChainProof> {
    return this.json<wire.ChainProof>({ method: "GET", path: `/chain/${part(seq)}/proof`, ...how });
  }

  /** Repeat a recorded call of a pure capability and compare the outputs. Requires the role operator. */
  replayCall(seq: string, how: Keyed = {}): Promise<wire.Replayed> {
    return this.json<wire.Replayed>({ method: "POST", path: `/chain/${part(seq)}/replay`, ...how });
  }

  /** Stream the events of a session, from the first one, or after a number or Last-Event-ID. Over a
   * WebSocket, each text frame is one event. Requires the role viewer. */
  streamSession(session: string, query: { after?: number | undefined } = {}, how: Resumed = {}): Promise<AsyncIterable<ServerEvent>> {
    return this.events({ method: "GET", path: `/chat/events/${part(session)}`, query, accept: "text/event-stream", ...how });
  }

  /** List the messages of a session in one direction, oldest first. Requires the role viewer. */
  listMessages(query: { session_id?: string | undefined; direction?: "in" | "out" | undefined; limit?: number | undefined; after?: number | undefined } = {}, how: Call = {}): Promise<wire.MessagePage> {
    return this.json<wire.MessagePage>({ method: "GET", path: "/chat/inbox", query, ...how });
  }

  /** List runs, newest first. Requires the role viewer. */
  listRuns(query: { session_id?: string | undefined; state?: "scheduled" | "active" | "paused" | "done" | "failed" | "cancelled" | undefined; parent?: string | undefined; limit?: number | undefined; after?: string | undefined } = {}, how: Call = {}): Promise<wire.RunPage> {
    return this.json<wire.RunPage>({ method: "GET", path: "/chat/run", query, ...how });
  }

  /** Start a run: an agent pursues a goal, now, at a given time, or on a schedule. Requires the role
   * operator. */
  startRun(body: wire.StartRun, how: Keyed = {}): Promise<wire.Run> {
    return this.json<wire.Run>({ method: "POST", path: "/chat/run", body, ...how });
  }

  /** Show a run. Requires the role viewer. */
  getRun(run: string, how: Call = {}): Promise<wire.Run> {
    return this.json<wire.Run>({ method: "GET", path: `/chat/run/${part(run)}`, ...how });
  }

  /** List the steps of a run in order. Requires the role viewer. */
  listActions(run: string, query: { limit?: number | undefined; after?: number | undefined } = {}, how: Call = {}): Promise<wire.RunActionPage> {
    return this.json<wire.RunActionPage>({ method: "GET", path: `/chat/run/${part(run)}/actions`, query, ...how });
  }

  /** Cancel a run and its child runs. For a run that waits for its schedule, the schedule is
   * cancelled. Requires the role operator. */
  cancelRun(run: string, how: Keyed = {}): Promise<wire.Run> {
    return this.json<wire.Run>({ method: "POST", path: `/chat/run/${part(run)}/cancel`, ...how });
  }

  /** Take a checkpoint of a run and its jail. Requires the role operator. */
  checkpointRun(run: string, body: wire.TakeCheckpoint | undefined, how: Keyed = {}): Promise<wire.Checkpoint> {
    return this.json<wire.Checkpoint>({ method: "POST", path: `/chat/run/${part(run)}/checkpoint`, body, ...how });
  }

  /** List the checkpoints of a run, oldest first. Requires the role viewer. */
  listCheckpoints(run: string, query: { limit?: number | undefined; after?: number | undefined } = {}, how: Call = {}): Promise<wire.CheckpointPage> {
    return this.json<wire.CheckpointPage>({ method: "GET", path: `/chat/run/${part(run)}/checkpoints`, query, ...how });
  }

  /** Show a checkpoint with the state that the agent saved. Requires the role viewer. */
  getCheckpoint(run: string, checkpoint: string, how: Call = {}): Promise<wire.Checkpoint> {
    return this.json<wire.Checkpoint>({ method: "GET", path: `/chat/run/${part(run)}/checkpoints/${part(checkpoint)}`, ...how });
  }

  /** Pause a run. Its jail is frozen. Requires the role operator. */
  pauseRun(run: string, how: Keyed = {}): Promise<wire.Run> {
    return this.json<wire.Run>({ method: "POST", path: `/chat/run/${part(run)}/pause`, ...how });
  }

  /** Resume a run where it was paused, rewind it to a checkpoint, or branch new runs from a
   * checkpoint. Requires the role operator. */
  resumeRun(run: string, body: wire.ResumeRun | undefined, how: Keyed = {}): Promise<wire.Resumed> {
    return this.json<wire.Resumed>({ method: "POST", path: `/chat/run/${part(run)}/resume`, body, ...how });
  }

  /** Change a run's state manually. Requires the role operator. */
  transitionRun(run: string, body: wire.MoveRun, how: Keyed = {}): Promise<wire.Run> {
    return this.json<wire.Run>({ method: "POST", path: `/chat/run/${part(run)}/transition`, body, ...how });
  }

  /** Send a message to a session's agent. Requires the role operator. */
  sendMessage(body: wire.SendMessage, how: Keyed = {}): Promise<wire.Message> {
    return this.json<wire.Message>({ method: "POST", path: "/chat/send", body, ...how });
  }

  /** List sessions, newest first. Requires the role viewer. */
  listSessions(query: { limit?: number | undefined; after?: string | undefined; state?: "open" | "closed" | undefined; group?: string | undefined } = {}, how: Call = {}): Promise<wire.SessionPage> {
    return this.json<wire.SessionPage>({ method: "GET", path: "/chat/session", query, ...how });
  }

  /** Open a session. An existing session with the same id is returned. Requires the role operator. */
  createSession(body: wire.OpenSession, how: Keyed = {}): Promise<wire.Session> {
    return this.json<wire.Session>({ method: "POST", path: "/chat/session", body, ...how });
  }

  /** Show a session. Requires the role viewer. */
  getSession(session: string, how: Call = {}): Promise<wire.Session> {
    return this.json<wire.Session>({ method: "GET", path: `/chat/session/${part(session)}`, ...how });
  }

  /** Close a session. Its messages are kept. Requires the role operator. */
  closeSession(session: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/chat/session/${part(session)}`, ...how });
  }

  /** List connectors (inbound webhooks, outbound webhooks and relays) and their pending deliveries.
   * Requires the role viewer. */
  listConnectors(how: Call = {}): Promise<wire.ConnectorPage> {
    return this.json<wire.ConnectorPage>({ method: "GET", path: "/connectors", ...how });
  }

  /** List the deliveries of a connector, by due time. Requires the role viewer. */
  listDeliveries(connector: string, query: { state?: "pending" | "delivered" | "dead" | undefined; limit?: number | undefined; after?: string | undefined } = {}, how: Call = {}): Promise<wire.DeliveryPage> {
    return this.json<wire.DeliveryPage>({ method: "GET", path: `/connectors/${part(connector)}/deliveries`, query, ...how });
  }

  /** Retry a failed delivery. Requires the role operator. */
  redeliverMessage(delivery: string, how: Keyed = {}): Promise<wire.Delivery> {
    return this.json<wire.Delivery>({ method: "POST", path: `/deliveries/${part(delivery)}/redeliver`, ...how });
  }

  /** Check which features this host supports, with remedies for missing ones. Requires the role
   * viewer. */
  diagnoseHost(how: Call = {}): Promise<wire.ProbePage> {
    return this.json<wire.ProbePage>({ method: "GET", path: "/doctor", ...how });
  }

  /** Create a key for clients of the E2B protocol. The key is returned only in this response.
   * Requires the role admin. */
  createE2bKey(body: wire.CreateE2BKey, how: Call = {}): Promise<wire.E2BKey> {
    return this.json<wire.E2BKey>({ method: "POST", path: "/e2b/keys", body, ...how });
  }

  /** Stream events and the state of jails. The topics jail, approval, run, notice, step, decision and
   * egress are audit log entries and resume after Last-Event-ID. The topics jails and schedules
   * report the current state. Requires the role viewer. */
  streamFeed(query: { topics?: string | undefined } = {}, how: Resumed = {}): Promise<AsyncIterable<ServerEvent>> {
    return this.events({ method: "GET", path: "/feed", query, accept: "text/event-stream", ...how });
  }

  /** Revoke a grant. The revocation takes effect immediately. Requires the role operator. */
  revokeGrant(grant: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/grants/${part(grant)}`, ...how });
  }

  /** Check that the daemon is alive. */
  checkHealth(how: Call = {}): Promise<wire.Health> {
    return this.json<wire.Health>({ method: "GET", path: "/health", ...how });
  }

  /** Check that the daemon is ready to serve requests. */
  checkReadiness(how: Call = {}): Promise<wire.Health> {
    return this.json<wire.Health>({ method: "GET", path: "/health/ready", ...how });
  }

  /** Receive an inbound webhook for a session. */
  receiveHook(connector: string, how: Call = {}): Promise<wire.Received> {
    return this.json<wire.Received>({ method: "POST", path: `/hooks/${part(connector)}`, ...how });
  }

  /** List the prepared root filesystems, newest first. Requires the role viewer. */
  listImages(query: { limit?: number | undefined; after?: string | undefined } = {}, how: Call = {}): Promise<wire.ImagePage> {
    return this.json<wire.ImagePage>({ method: "GET", path: "/images", query, ...how });
  }

  /** Prepare a root filesystem, so that the first jail that uses it starts faster. Requires the role
   * operator. */
  prepareImage(body: wire.Rootfs, how: Keyed = {}): Promise<wire.Prepared> {
    return this.json<wire.Prepared>({ method: "POST", path: "/images", body, ...how });
  }

  /** Delete the root filesystems that no jail uses, and list them. Requires the role admin. */
  pruneImages(how: Keyed = {}): Promise<wire.ImagePage> {
    return this.json<wire.ImagePage>({ method: "POST", path: "/images/prune", ...how });
  }

  /** List jails, oldest first. Requires the role viewer. */
  listJails(query: { limit?: number | undefined; after?: string | undefined; state?: "created" | "starting" | "running" | "paused" | "stopped" | "failed" | undefined; name?: string | undefined; label?: string[] | undefined; nodes?: "all" | "self" | undefined } = {}, how: Call = {}): Promise<wire.JailPage> {
    return this.json<wire.JailPage>({ method: "GET", path: "/jails", query, ...how });
  }

  /** Create a jail. Requires the role operator. */
  createJail(body: wire.CreateJail | undefined, how: Keyed = {}): Promise<wire.Jail> {
    return this.json<wire.Jail>({ method: "POST", path: "/jails", body, ...how });
  }

  /** Show a jail and its resource usage. Requires the role viewer. */
  getJail(id: string, how: Call = {}): Promise<wire.Jail> {
    return this.json<wire.Jail>({ method: "GET", path: `/jails/${part(id)}`, ...how });
  }

  /** Delete a jail and its files, in any state. Requires the role operator. */
  deleteJail(id: string, query: { snapshots?: boolean | undefined } = {}, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/jails/${part(id)}`, query, ...how });
  }

  /** Show the state of a jail at an earlier time: its processes, changed files, and the nearest
   * snapshot. Requires the role viewer. */
  getPastState(id: string, query: { ts?: string | undefined; all?: boolean | undefined; limit?: number | undefined } = {}, how: Call = {}): Promise<wire.Past> {
    return this.json<wire.Past>({ method: "GET", path: `/jails/${part(id)}/at`, query, ...how });
  }

  /** Branch (fork) a jail. A snapshot is taken, and new jails are created from it. Requires the role
   * operator. */
  branchJail(id: string, body: wire.Branch | undefined, how: Keyed = {}): Promise<wire.Branches> {
    return this.json<wire.Branches>({ method: "POST", path: `/jails/${part(id)}/branch`, body, ...how });
  }

  /** Summarize the network connections of a jail by host, with the egress decisions. Requires the
   * role viewer. */
  listConnections(id: string, query: { from?: string | undefined; to?: string | undefined; limit?: number | undefined } = {}, how: Call = {}): Promise<wire.Connections> {
    return this.json<wire.Connections>({ method: "GET", path: `/jails/${part(id)}/connections`, query, ...how });
  }

  /** Evaluate a policy decision, and wait for approval if it is required. Requires the role operator. */
  requestDecision(id: string, body: wire.Decide, how: Keyed = {}): Promise<wire.Verdict> {
    return this.json<wire.Verdict>({ method: "POST", path: `/jails/${part(id)}/decide`, body, ...how });
  }

  /** Compare a jail with another jail or a snapshot. Requires the role viewer. */
  compareJail(id: string, query: { against?: string | undefined; only?: string | undefined; content?: "unified" | undefined; format?: "json" | "text" | "html" | undefined } = {}, how: Call = {}): Promise<wire.Comparison> {
    return this.json<wire.Comparison>({ method: "GET", path: `/jails/${part(id)}/diff`, query, ...how });
  }

  /** Compare a jail with another jail or a snapshot. Requires the role viewer. */
  compareJailText(id: string, query: { against?: string | undefined; only?: string | undefined; content?: "unified" | undefined; format?: "json" | "text" | "html" | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/jails/${part(id)}/diff`, query, accept: "text/plain", ...how });
  }

  /** Compare a jail with another jail or a snapshot. Requires the role viewer. */
  compareJailHtml(id: string, query: { against?: string | undefined; only?: string | undefined; content?: "unified" | undefined; format?: "json" | "text" | "html" | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/jails/${part(id)}/diff`, query, accept: "text/html", ...how });
  }

  /** Show a jail's egress rules and traffic statistics. Requires the role viewer. */
  getEgress(id: string, how: Call = {}): Promise<wire.EgressState> {
    return this.json<wire.EgressState>({ method: "GET", path: `/jails/${part(id)}/egress`, ...how });
  }

  /** Replace a jail's egress rules. They take effect immediately; open connections that they do not
   * allow are closed. Requires the role operator. */
  putEgress(id: string, body: wire.Egress, query: { version?: string | undefined } = {}, how: Call = {}): Promise<wire.EgressState> {
    return this.json<wire.EgressState>({ method: "PUT", path: `/jails/${part(id)}/egress`, body, query, ...how });
  }

  /** Stream the events of a jail, from the first one, or from the position that a filter, a time or
   * Last-Event-ID selects. The id of each server-sent event is its seq; the last one is 'end'. With
   * offset or at, return a JSON window of the events instead. Requires the role viewer. */
  streamEvents(id: string, query: { q?: string | undefined; type?: string | undefined; pid?: string | undefined; path?: string | undefined; host?: string | undefined; name?: string | undefined; ret?: string | undefined; comm?: string | undefined; op?: string | undefined; since?: string | undefined; until?: string | undefined; after?: number | undefined; tail?: number | undefined; limit?: number | undefined; follow?: boolean | undefined; offset?: number | undefined; at?: string | undefined; format?: "sse" | "ndjson" | undefined } = {}, how: Call = {}): Promise<wire.EventWindow> {
    return this.json<wire.EventWindow>({ method: "GET", path: `/jails/${part(id)}/events`, query, ...how });
  }

  /** Stream the events of a jail, from the first one, or from the position that a filter, a time or
   * Last-Event-ID selects. The id of each server-sent event is its seq; the last one is 'end'. With
   * offset or at, return a JSON window of the events instead. Requires the role viewer. */
  streamEventsStream(id: string, query: { q?: string | undefined; type?: string | undefined; pid?: string | undefined; path?: string | undefined; host?: string | undefined; name?: string | undefined; ret?: string | undefined; comm?: string | undefined; op?: string | undefined; since?: string | undefined; until?: string | undefined; after?: number | undefined; tail?: number | undefined; limit?: number | undefined; follow?: boolean | undefined; offset?: number | undefined; at?: string | undefined; format?: "sse" | "ndjson" | undefined } = {}, how: Resumed = {}): Promise<AsyncIterable<ServerEvent>> {
    return this.events({ method: "GET", path: `/jails/${part(id)}/events`, query, accept: "text/event-stream", ...how });
  }

  /** Stream the events of a jail, from the first one, or from the position that a filter, a time or
   * Last-Event-ID selects. The id of each server-sent event is its seq; the last one is 'end'. With
   * offset or at, return a JSON window of the events instead. Requires the role viewer. */
  streamEventsLines(id: string, query: { q?: string | undefined; type?: string | undefined; pid?: string | undefined; path?: string | undefined; host?: string | undefined; name?: string | undefined; ret?: string | undefined; comm?: string | undefined; op?: string | undefined; since?: string | undefined; until?: string | undefined; after?: number | undefined; tail?: number | undefined; limit?: number | undefined; follow?: boolean | undefined; offset?: number | undefined; at?: string | undefined; format?: "sse" | "ndjson" | undefined } = {}, how: Call = {}): Promise<AsyncIterable<wire.Event>> {
    return this.lines<wire.Event>({ method: "GET", path: `/jails/${part(id)}/events`, query, accept: "application/x-ndjson", ...how });
  }

  /** Run a command and wait for it, stream its output, or detach from it. Requires the role operator. */
  execCommand(id: string, body: wire.ExecRequest, how: Keyed = {}): Promise<wire.Exec> {
    return this.json<wire.Exec>({ method: "POST", path: `/jails/${part(id)}/exec`, body, ...how });
  }

  /** Run a command and wait for it, stream its output, or detach from it. Requires the role operator. */
  execCommandStream(id: string, body: wire.ExecRequest, how: Keyed = {}): Promise<AsyncIterable<ServerEvent>> {
    return this.events({ method: "POST", path: `/jails/${part(id)}/exec`, body, accept: "text/event-stream", ...how });
  }

  /** List the recent and running commands of a jail, oldest first. Requires the role viewer. */
  listExecs(id: string, query: { limit?: number | undefined; after?: string | undefined } = {}, how: Call = {}): Promise<wire.ExecPage> {
    return this.json<wire.ExecPage>({ method: "GET", path: `/jails/${part(id)}/execs`, query, ...how });
  }

  /** Show a command and its output, or stream its output as events. Requires the role viewer. */
  getExec(id: string, exec: string, query: { from?: number | undefined; lossless?: boolean | undefined } = {}, how: Call = {}): Promise<wire.Exec> {
    return this.json<wire.Exec>({ method: "GET", path: `/jails/${part(id)}/execs/${part(exec)}`, query, ...how });
  }

  /** Show a command and its output, or stream its output as events. Requires the role viewer. */
  getExecStream(id: string, exec: string, query: { from?: number | undefined; lossless?: boolean | undefined } = {}, how: Resumed = {}): Promise<AsyncIterable<ServerEvent>> {
    return this.events({ method: "GET", path: `/jails/${part(id)}/execs/${part(exec)}`, query, accept: "text/event-stream", ...how });
  }

  /** Change the size of a command's terminal. Requires the role operator. */
  resizeExec(id: string, exec: string, body: wire.Size, how: Keyed = {}): Promise<void> {
    return this.none({ method: "POST", path: `/jails/${part(id)}/execs/${part(exec)}/resize`, body, ...how });
  }

  /** Send a signal to a command's process group. Requires the role operator. */
  signalExec(id: string, exec: string, body: wire.Signal, how: Keyed = {}): Promise<void> {
    return this.none({ method: "POST", path: `/jails/${part(id)}/execs/${part(exec)}/signal`, body, ...how });
  }

  /** Write to a command's standard input. Requires the role operator. */
  writeStdin(id: string, exec: string, content: Content, query: { close?: boolean | undefined } = {}, how: Call = {}): Promise<void> {
    return this.none({ method: "POST", path: `/jails/${part(id)}/execs/${part(exec)}/stdin`, content, contentType: "application/octet-stream", query, ...how });
  }

  /** Read a file, list a directory, show metadata, or download a tar archive. Requires the role
   * viewer. */
  getFile(id: string, query: { path: string; list?: boolean | undefined; stat?: boolean | undefined; tar?: boolean | undefined; offset?: number | undefined; bytes?: number | undefined; limit?: number | undefined; after?: string | undefined }, how: Call = {}): Promise<wire.File | wire.FilePage> {
    return this.json<wire.File | wire.FilePage>({ method: "GET", path: `/jails/${part(id)}/files`, query, ...how });
  }

  /** Read a file, list a directory, show metadata, or download a tar archive. Requires the role
   * viewer. */
  getFileBytes(id: string, query: { path: string; list?: boolean | undefined; stat?: boolean | undefined; tar?: boolean | undefined; offset?: number | undefined; bytes?: number | undefined; limit?: number | undefined; after?: string | undefined }, how: Call = {}): Promise<Answer> {
    return this.open({ method: "GET", path: `/jails/${part(id)}/files`, query, accept: "application/octet-stream", ...how });
  }

  /** Write a file, create a directory, or extract a tar archive. Requires the role operator. */
  putFile(id: string, content: Content, query: { path: string; tar?: boolean | undefined; mkdir?: boolean | undefined; mode?: string | undefined; append?: boolean | undefined; parents?: boolean | undefined; uid?: number | undefined; gid?: number | undefined }, how: Call = {}): Promise<wire.File> {
    return this.json<wire.File>({ method: "PUT", path: `/jails/${part(id)}/files`, content, contentType: "application/octet-stream", query, ...how });
  }

  /** Delete a file or directory. Requires the role operator. */
  deleteFile(id: string, query: { path: string; recursive?: boolean | undefined }, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/jails/${part(id)}/files`, query, ...how });
  }

  /** Rename a file or directory. Requires the role operator. */
  moveFile(id: string, body: wire.MoveFile, how: Keyed = {}): Promise<void> {
    return this.none({ method: "POST", path: `/jails/${part(id)}/files/move`, body, ...how });
  }

  /** Stream file changes below a path. Requires the role viewer. */
  watchFiles(id: string, query: { path: string; recursive?: boolean | undefined }, how: Resumed = {}): Promise<AsyncIterable<ServerEvent>> {
    return this.events({ method: "GET", path: `/jails/${part(id)}/files/watch`, query, accept: "text/event-stream", ...how });
  }

  /** List file changes by path: of a jail's root filesystem or workspace, or relative to a snapshot
   * or another jail. Requires the role viewer. */
  diffFiles(id: string, query: { limit?: number | undefined; after?: string | undefined; against?: string | undefined; workspace?: boolean | undefined; path?: string | undefined; content?: "unified" | undefined } = {}, how: Call = {}): Promise<wire.ChangePage> {
    return this.json<wire.ChangePage>({ method: "GET", path: `/jails/${part(id)}/fs/diff`, query, ...how });
  }

  /** List file changes by path: of a jail's root filesystem or workspace, or relative to a snapshot
   * or another jail. Requires the role viewer. */
  diffFilesText(id: string, query: { limit?: number | undefined; after?: string | undefined; against?: string | undefined; workspace?: boolean | undefined; path?: string | undefined; content?: "unified" | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/jails/${part(id)}/fs/diff`, query, accept: "text/plain", ...how });
  }

  /** List file changes by path: of a jail's root filesystem or workspace, or relative to a snapshot
   * or another jail. Requires the role viewer. */
  diffFilesHtml(id: string, query: { limit?: number | undefined; after?: string | undefined; against?: string | undefined; workspace?: boolean | undefined; path?: string | undefined; content?: "unified" | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/jails/${part(id)}/fs/diff`, query, accept: "text/html", ...how });
  }

  /** Show a jail's limits and the history of changes and requests. Requires the role viewer. */
  getJailLimits(id: string, query: { after?: number | undefined } = {}, how: Call = {}): Promise<wire.JailLimits> {
    return this.json<wire.JailLimits>({ method: "GET", path: `/jails/${part(id)}/limits`, query, ...how });
  }

  /** Change a jail's limits, also while it runs. Omitted limits are unchanged. Requires the role
   * operator. */
  updateJailLimits(id: string, body: wire.Limits, how: Call = {}): Promise<wire.Jail> {
    return this.json<wire.Jail>({ method: "PATCH", path: `/jails/${part(id)}/limits`, body, ...how });
  }

  /** Move a jail to another node of the fleet. Its processes, files, ID and event log are kept; its
   * connections are closed. Requires the role operator. */
  moveJail(id: string, body: wire.MoveJail | undefined, how: Keyed = {}): Promise<wire.MovedJail> {
    return this.json<wire.MovedJail>({ method: "POST", path: `/jails/${part(id)}/move`, body, ...how });
  }

  /** List the network flows of a jail, in order of their start. Requires the role viewer. */
  listNetworkFlows(id: string, query: { limit?: number | undefined; after?: string | undefined; since?: string | undefined; until?: string | undefined; packets?: boolean | undefined } = {}, how: Call = {}): Promise<wire.Flows> {
    return this.json<wire.Flows>({ method: "GET", path: `/jails/${part(id)}/network/log`, query, ...how });
  }

  /** List the network flows of a jail, in order of their start. Requires the role viewer. */
  listNetworkFlowsLines(id: string, query: { limit?: number | undefined; after?: string | undefined; since?: string | undefined; until?: string | undefined; packets?: boolean | undefined } = {}, how: Call = {}): Promise<AsyncIterable<wire.Event>> {
    return this.lines<wire.Event>({ method: "GET", path: `/jails/${part(id)}/network/log`, query, accept: "application/x-ndjson", ...how });
  }

  /** List the network flows of a jail, in order of their start. Requires the role viewer. */
  listNetworkFlowsText(id: string, query: { limit?: number | undefined; after?: string | undefined; since?: string | undefined; until?: string | undefined; packets?: boolean | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/jails/${part(id)}/network/log`, query, accept: "text/plain", ...how });
  }

  /** Download the captured packets of a jail. Requires the role viewer. */
  getNetworkPackets(id: string, how: Call = {}): Promise<Answer> {
    return this.open({ method: "GET", path: `/jails/${part(id)}/network/pcap`, accept: "application/x-pcapng", ...how });
  }

  /** Pause (freeze) a jail. Requires the role operator. */
  pauseJail(id: string, how: Keyed = {}): Promise<wire.Jail> {
    return this.json<wire.Jail>({ method: "POST", path: `/jails/${part(id)}/pause`, ...how });
  }

  /** Show a jail's policy, how it is interpreted, and lint findings. Requires the role viewer. */
  getPolicy(id: string, how: Call = {}): Promise<wire.PolicyState> {
    return this.json<wire.PolicyState>({ method: "GET", path: `/jails/${part(id)}/policy`, ...how });
  }

  /** Replace a jail's policy. The new policy takes effect immediately. Requires the role operator. */
  putPolicy(id: string, body: wire.Policy, how: Call = {}): Promise<wire.PolicyState> {
    return this.json<wire.PolicyState>({ method: "PUT", path: `/jails/${part(id)}/policy`, body, ...how });
  }

  /** Remove a jail's policy. Actions that need a policy decision are then denied. Requires the role
   * operator. */
  deletePolicy(id: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/jails/${part(id)}/policy`, ...how });
  }

  /** Change a jail's autonomy level. It can be lowered, or raised up to the ceiling, and takes effect
   * immediately. Requires the role operator. */
  setPolicyLevel(id: string, body: wire.PolicyLevel, how: Keyed = {}): Promise<wire.PolicyState> {
    return this.json<wire.PolicyState>({ method: "POST", path: `/jails/${part(id)}/policy/level`, body, ...how });
  }

  /** Show the process tree of a jail, now or at an earlier time. Requires the role viewer. */
  listProcesses(id: string, query: { at?: string | undefined; all?: boolean | undefined } = {}, how: Call = {}): Promise<wire.Processes> {
    return this.json<wire.Processes>({ method: "GET", path: `/jails/${part(id)}/processes`, query, ...how });
  }

  /** Show the process tree of a jail, now or at an earlier time. Requires the role viewer. */
  listProcessesText(id: string, query: { at?: string | undefined; all?: boolean | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/jails/${part(id)}/processes`, query, accept: "text/plain", ...how });
  }

  /** Generate a report of the activity of a jail. Requires the role viewer. */
  getReport(id: string, query: { since?: string | undefined; until?: string | undefined; format?: "json" | "html" | "md" | undefined } = {}, how: Call = {}): Promise<Record<string, unknown>> {
    return this.json<Record<string, unknown>>({ method: "GET", path: `/jails/${part(id)}/report`, query, ...how });
  }

  /** Generate a report of the activity of a jail. Requires the role viewer. */
  getReportText(id: string, query: { since?: string | undefined; until?: string | undefined; format?: "json" | "html" | "md" | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/jails/${part(id)}/report`, query, accept: "text/markdown", ...how });
  }

  /** Generate a report of the activity of a jail. Requires the role viewer. */
  getReportHtml(id: string, query: { since?: string | undefined; until?: string | undefined; format?: "json" | "html" | "md" | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/jails/${part(id)}/report`, query, accept: "text/html", ...how });
  }

  /** Resume a paused jail. Requires the role operator. */
  resumeJail(id: string, how: Keyed = {}): Promise<wire.Jail> {
    return this.json<wire.Jail>({ method: "POST", path: `/jails/${part(id)}/resume`, ...how });
  }

  /** Rewind a jail to a snapshot. Events since the snapshot are kept in the event log. Requires the
   * role operator. */
  rewindJail(id: string, body: wire.Rewind, how: Keyed = {}): Promise<wire.Jail> {
    return this.json<wire.Jail>({ method: "POST", path: `/jails/${part(id)}/rewind`, body, ...how });
  }

  /** Take a snapshot of a jail. The jail continues to run. Requires the role operator. */
  takeSnapshot(id: string, body: wire.TakeSnapshot | undefined, how: Keyed = {}): Promise<wire.Snapshot> {
    return this.json<wire.Snapshot>({ method: "POST", path: `/jails/${part(id)}/snapshot`, body, ...how });
  }

  /** List the snapshots of a jail, oldest first. The jail may have been deleted. Requires the role
   * viewer. */
  listJailSnapshots(id: string, query: { limit?: number | undefined; after?: string | undefined; usage?: boolean | undefined } = {}, how: Call = {}): Promise<wire.SnapshotPage> {
    return this.json<wire.SnapshotPage>({ method: "GET", path: `/jails/${part(id)}/snapshots`, query, ...how });
  }

  /** Start a jail. Requires the role operator. */
  startJail(id: string, how: Keyed = {}): Promise<wire.Jail> {
    return this.json<wire.Jail>({ method: "POST", path: `/jails/${part(id)}/start`, ...how });
  }

  /** Stop a jail. Its processes end; its files are kept. Requires the role operator. */
  stopJail(id: string, body: wire.StopJail | undefined, how: Keyed = {}): Promise<wire.Jail> {
    return this.json<wire.Jail>({ method: "POST", path: `/jails/${part(id)}/stop`, body, ...how });
  }

  /** Summarize the system calls of a jail: frequency, duration and errors. Requires the role viewer. */
  getSyscallProfile(id: string, query: { q?: string | undefined; type?: string | undefined; pid?: string | undefined; path?: string | undefined; host?: string | undefined; name?: string | undefined; ret?: string | undefined; comm?: string | undefined; op?: string | undefined; from?: string | undefined; to?: string | undefined; processes?: number | undefined; limit?: number | undefined } = {}, how: Call = {}): Promise<wire.Profile> {
    return this.json<wire.Profile>({ method: "GET", path: `/jails/${part(id)}/syscalls`, query, ...how });
  }

  /** Count the events of a jail by time and type, and by process. Requires the role viewer. */
  getTimeline(id: string, query: { q?: string | undefined; type?: string | undefined; pid?: string | undefined; path?: string | undefined; host?: string | undefined; name?: string | undefined; ret?: string | undefined; comm?: string | undefined; op?: string | undefined; from?: string | undefined; to?: string | undefined; buckets?: number | undefined; lanes?: number | undefined } = {}, how: Call = {}): Promise<wire.Timeline> {
    return this.json<wire.Timeline>({ method: "GET", path: `/jails/${part(id)}/timeline`, query, ...how });
  }

  /** Show the lineage of jails and snapshots as trees. Requires the role viewer. */
  getLineage(query: { jail?: string | undefined } = {}, how: Call = {}): Promise<wire.LineageJailPage> {
    return this.json<wire.LineageJailPage>({ method: "GET", path: "/lineage", query, ...how });
  }

  /** Log in a browser with the code of a login link. */
  logIn(body: wire.LogIn, how: Call = {}): Promise<wire.Me> {
    return this.json<wire.Me>({ method: "POST", path: "/login", body, ...how });
  }

  /** Create a login link for a browser. It is valid for ten minutes and can be used once. Requires
   * the role admin. */
  createLoginLink(body: wire.CreateLoginLink, how: Call = {}): Promise<wire.LoginLink> {
    return this.json<wire.LoginLink>({ method: "POST", path: "/login-links", body, ...how });
  }

  /** List logged-in browsers, oldest first. Requires the role admin. */
  listLogins(query: { limit?: number | undefined; after?: string | undefined } = {}, how: Call = {}): Promise<wire.LoginPage> {
    return this.json<wire.LoginPage>({ method: "GET", path: "/logins", query, ...how });
  }

  /** End a login and close its streams. Requires the role admin. */
  deleteLogin(login: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/logins/${part(login)}`, ...how });
  }

  /** End the login that the request's cookie identifies. Requires the role viewer. */
  logOut(how: Call = {}): Promise<void> {
    return this.none({ method: "POST", path: "/logout", ...how });
  }

  /** Search the bundles that markets offer. Requires the role viewer. */
  searchMarket(query: { q?: string | undefined } = {}, how: Call = {}): Promise<wire.OfferPage> {
    return this.json<wire.OfferPage>({ method: "GET", path: "/market", query, ...how });
  }

  /** Install a bundle from a market. Requires the role admin. */
  installFromMarket(body: wire.MarketInstall, how: Keyed = {}): Promise<wire.Bundle> {
    return this.json<wire.Bundle>({ method: "POST", path: "/market/install", body, ...how });
  }

  /** List installed bundles for which their publisher offers a newer version. Requires the role
   * viewer. */
  listOutdatedBundles(how: Call = {}): Promise<wire.OfferPage> {
    return this.json<wire.OfferPage>({ method: "GET", path: "/market/outdated", ...how });
  }

  /** Show the identity of the caller. Requires the role viewer. */
  getCaller(how: Call = {}): Promise<wire.Me> {
    return this.json<wire.Me>({ method: "GET", path: "/me", ...how });
  }

  /** Get Prometheus metrics. Requires the role viewer. */
  getMetrics(query: { node?: string | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: "/metrics", query, accept: "text/plain", ...how });
  }

  /** List the daemons that share the database of runs, by ID. The list is empty if this daemon shares
   * it with no other. Requires the role viewer. */
  listNodes(how: Call = {}): Promise<wire.NodePage> {
    return this.json<wire.NodePage>({ method: "GET", path: "/nodes", ...how });
  }

  /** Create a token with which one daemon can join the fleet within ten minutes. It is returned only
   * in this response. Requires the role admin. */
  createNodeToken(how: Call = {}): Promise<wire.NodeToken> {
    return this.json<wire.NodeToken>({ method: "POST", path: "/nodes/tokens", ...how });
  }

  /** Set whether a daemon of the fleet gets new jails and sessions. Requires the role admin. */
  updateNode(node: string, body: wire.UpdateNode, how: Call = {}): Promise<wire.Node> {
    return this.json<wire.Node>({ method: "PATCH", path: `/nodes/${part(node)}`, body, ...how });
  }

  /** Remove a daemon from the fleet. Its certificate is then refused. Requires the role admin. */
  removeNode(node: string, query: { lost?: boolean | undefined } = {}, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/nodes/${part(node)}`, query, ...how });
  }

  /** List the notifications that could not be delivered. Requires the role viewer. */
  listDeadNotices(how: Call = {}): Promise<wire.DeadNoticePage> {
    return this.json<wire.DeadNoticePage>({ method: "GET", path: "/notices/dead", ...how });
  }

  /** Retry a notification. Requires the role operator. */
  redeliverNotice(notice: string, how: Keyed = {}): Promise<void> {
    return this.none({ method: "POST", path: `/notices/${part(notice)}/redeliver`, ...how });
  }

  /** Get this OpenAPI document. */
  getOpenApi(how: Call = {}): Promise<unknown> {
    return this.json<unknown>({ method: "GET", path: "/openapi.json", ...how });
  }

  /** Evaluate a policy decision without effect, and show the rules considered. No approval is
   * requested and nothing is recorded. Requires the role viewer. */
  explainPolicy(body: wire.Explain, how: Keyed = {}): Promise<wire.Explained> {
    return this.json<wire.Explained>({ method: "POST", path: "/policy/explain", body, ...how });
  }

  /** Lint permission files. Requires the role viewer. */
  lintPolicy(body: wire.Policy, how: Keyed = {}): Promise<wire.PolicyState> {
    return this.json<wire.PolicyState>({ method: "POST", path: "/policy/lint", body, ...how });
  }

  /** Explain a problem type. */
  getProblem(problem: string, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/problems/${part(problem)}`, accept: "text/html", ...how });
  }

  /** List trusted publishers and the highest tier of each. Requires the role viewer. */
  listPublishers(how: Call = {}): Promise<wire.PublisherPage> {
    return this.json<wire.PublisherPage>({ method: "GET", path: "/publishers", ...how });
  }

  /** Revoke trust in a key or bundle digest. Affected bundles can no longer be installed or called.
   * Requires the role admin. */
  revokePublisherTrust(body: wire.RevokeTrust, how: Keyed = {}): Promise<void> {
    return this.none({ method: "POST", path: "/publishers/revoke", body, ...how });
  }

  /** Replace a publisher's key. Existing signatures of the old key remain valid. Requires the role
   * admin. */
  rotatePublisherKey(body: wire.RotateKey, how: Keyed = {}): Promise<void> {
    return this.none({ method: "POST", path: "/publishers/rotate", body, ...how });
  }

  /** Trust a publisher's key. Requires the role admin. */
  putPublisher(name: string, body: wire.AddPublisher, how: Call = {}): Promise<void> {
    return this.none({ method: "PUT", path: `/publishers/${part(name)}`, body, ...how });
  }

  /** Remove a publisher. Its bundles can no longer be installed or called. Requires the role admin. */
  deletePublisher(name: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/publishers/${part(name)}`, ...how });
  }

  /** List the browsers that receive push notifications, oldest first. Requires the role operator. */
  listBrowsers(how: Call = {}): Promise<wire.PushBrowserPage> {
    return this.json<wire.PushBrowserPage>({ method: "GET", path: "/push/browsers", ...how });
  }

  /** Subscribe a browser to push notifications for approval requests. The subscription replaces the
   * browser's previous one and ends with its login. Requires the role operator. */
  subscribeBrowser(body: wire.SubscribeBrowser, how: Call = {}): Promise<wire.PushBrowser> {
    return this.json<wire.PushBrowser>({ method: "POST", path: "/push/browsers", body, ...how });
  }

  /** Unsubscribe a browser from push notifications. Requires the role operator. */
  unsubscribeBrowser(browser: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/push/browsers/${part(browser)}`, ...how });
  }

  /** Show the public key with which a browser subscribes to push notifications. Requires the role
   * viewer. */
  getPushKey(how: Call = {}): Promise<wire.PushKey> {
    return this.json<wire.PushKey>({ method: "GET", path: "/push/key", ...how });
  }

  /** List the policy decisions about a jail, oldest first. Requires the role viewer. */
  listDecisions(id: string, query: { limit?: number | undefined; after?: number | undefined; observed?: "true" | "false" | undefined; tool?: string | undefined; tag?: "AUTONOMOUS" | "WHITELISTED" | "APPROVED" | "DENIED" | undefined; from?: string | undefined; until?: string | undefined } = {}, how: Call = {}): Promise<wire.TrailEntryPage> {
    return this.json<wire.TrailEntryPage>({ method: "GET", path: `/sandbox/${part(id)}/decisions`, query, ...how });
  }

  /** Report a tool call that an agent is about to make, and get the policy decision. Requires the
   * role operator. */
  reportToolCall(id: string, body: wire.ClaimedDecision, how: Keyed = {}): Promise<wire.Verdict> {
    return this.json<wire.Verdict>({ method: "POST", path: `/sandbox/${part(id)}/decisions`, body, ...how });
  }

  /** List schedules, oldest first. Requires the role viewer. */
  listSchedules(query: { session_id?: string | undefined; limit?: number | undefined; after?: string | undefined } = {}, how: Call = {}): Promise<wire.SchedulePage> {
    return this.json<wire.SchedulePage>({ method: "GET", path: "/schedules", query, ...how });
  }

  /** Preview the due times of a schedule. No schedule is created. Requires the role viewer. */
  previewSchedule(query: { schedule?: string | undefined; time_zone?: string | undefined } = {}, how: Call = {}): Promise<wire.Times> {
    return this.json<wire.Times>({ method: "GET", path: "/schedules/times", query, ...how });
  }

  /** Show a schedule and its next ten due times. Requires the role viewer. */
  getSchedule(schedule: string, how: Call = {}): Promise<wire.Schedule> {
    return this.json<wire.Schedule>({ method: "GET", path: `/schedules/${part(schedule)}`, ...how });
  }

  /** Change when a schedule starts runs. Omitted fields are unchanged. Requires the role operator. */
  updateSchedule(schedule: string, body: wire.EditSchedule, how: Call = {}): Promise<wire.Schedule> {
    return this.json<wire.Schedule>({ method: "PATCH", path: `/schedules/${part(schedule)}`, body, ...how });
  }

  /** Delete a schedule. Its runs are kept. Requires the role operator. */
  deleteSchedule(schedule: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/schedules/${part(schedule)}`, ...how });
  }

  /** Pause a schedule. Requires the role operator. */
  pauseSchedule(schedule: string, how: Keyed = {}): Promise<wire.Schedule> {
    return this.json<wire.Schedule>({ method: "POST", path: `/schedules/${part(schedule)}/pause`, ...how });
  }

  /** Resume a paused schedule. Requires the role operator. */
  resumeSchedule(schedule: string, how: Keyed = {}): Promise<wire.Schedule> {
    return this.json<wire.Schedule>({ method: "POST", path: `/schedules/${part(schedule)}/resume`, ...how });
  }

  /** List secrets and their grants, by name. Values are never returned. Requires the role viewer. */
  listSecrets(how: Call = {}): Promise<wire.SecretPage> {
    return this.json<wire.SecretPage>({ method: "GET", path: "/secrets", ...how });
  }

  /** Re-encrypt all secrets with a new key and destroy the old key. Requires the role admin. */
  rotateSecrets(how: Keyed = {}): Promise<void> {
    return this.none({ method: "POST", path: "/secrets/rotate", ...how });
  }

  /** Store a secret, encrypted, or a reference to an external secret. Requires the role admin. */
  putSecret(name: string, body: wire.PutSecret, how: Call = {}): Promise<void> {
    return this.none({ method: "PUT", path: `/secrets/${part(name)}`, body, ...how });
  }

  /** Delete a secret and revoke its grants. Requires the role admin. */
  deleteSecret(name: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/secrets/${part(name)}`, ...how });
  }

  /** Grant a jail the use of a secret, as a file or injected into requests. Requires the role
   * operator. */
  grantSecret(name: string, body: wire.GrantSecret, how: Keyed = {}): Promise<wire.Grant> {
    return this.json<wire.Grant>({ method: "POST", path: `/secrets/${part(name)}/grants`, body, ...how });
  }

  /** List skills, by name. Requires the role viewer. */
  listSkills(how: Call = {}): Promise<wire.SkillPage> {
    return this.json<wire.SkillPage>({ method: "GET", path: "/skills", ...how });
  }

  /** Add a skill, or replace the one with the same name. A skill that names an unapproved capability
   * is rejected. Requires the role operator. */
  addSkill(body: wire.AddSkill, how: Keyed = {}): Promise<wire.Skill> {
    return this.json<wire.Skill>({ method: "POST", path: "/skills", body, ...how });
  }

  /** Show a skill as an agent reads it, with tool definitions of its capabilities. Requires the role
   * viewer. */
  getSkill(name: string, how: Call = {}): Promise<wire.Skill> {
    return this.json<wire.Skill>({ method: "GET", path: `/skills/${part(name)}`, ...how });
  }

  /** Delete a skill. Its capabilities are kept. Requires the role operator. */
  deleteSkill(name: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/skills/${part(name)}`, ...how });
  }

  /** List snapshots, oldest first. Requires the role viewer. */
  listSnapshots(query: { limit?: number | undefined; after?: string | undefined; usage?: boolean | undefined } = {}, how: Call = {}): Promise<wire.SnapshotPage> {
    return this.json<wire.SnapshotPage>({ method: "GET", path: "/snapshots", query, ...how });
  }

  /** Import an exported snapshot. The archive must be trusted like a program that runs as root.
   * Requires the role admin. */
  importSnapshot(content: Content, query: { files_only?: boolean | undefined; force?: boolean | undefined } = {}, how: Call = {}): Promise<wire.Snapshot> {
    return this.json<wire.Snapshot>({ method: "POST", path: "/snapshots/import", content, contentType: "application/octet-stream", query, ...how });
  }

  /** Show a snapshot and its disk usage. Requires the role viewer. */
  getSnapshot(sid: string, how: Call = {}): Promise<wire.Snapshot> {
    return this.json<wire.Snapshot>({ method: "GET", path: `/snapshots/${part(sid)}`, ...how });
  }

  /** Delete a snapshot. Data that jails and other snapshots use is kept. Requires the role operator. */
  deleteSnapshot(sid: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/snapshots/${part(sid)}`, ...how });
  }

  /** Branch (fork) jails from a snapshot. If some cannot be created, the response lists the errors.
   * Requires the role operator. */
  branchSnapshot(sid: string, body: wire.Branch | undefined, how: Keyed = {}): Promise<wire.Branches> {
    return this.json<wire.Branches>({ method: "POST", path: `/snapshots/${part(sid)}/branch`, body, ...how });
  }

  /** Compare a snapshot with its jail, another jail or another snapshot. Requires the role viewer. */
  compareSnapshot(sid: string, query: { against?: string | undefined; only?: string | undefined; content?: "unified" | undefined; format?: "json" | "text" | "html" | undefined } = {}, how: Call = {}): Promise<wire.Comparison> {
    return this.json<wire.Comparison>({ method: "GET", path: `/snapshots/${part(sid)}/diff`, query, ...how });
  }

  /** Compare a snapshot with its jail, another jail or another snapshot. Requires the role viewer. */
  compareSnapshotText(sid: string, query: { against?: string | undefined; only?: string | undefined; content?: "unified" | undefined; format?: "json" | "text" | "html" | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/snapshots/${part(sid)}/diff`, query, accept: "text/plain", ...how });
  }

  /** Compare a snapshot with its jail, another jail or another snapshot. Requires the role viewer. */
  compareSnapshotHtml(sid: string, query: { against?: string | undefined; only?: string | undefined; content?: "unified" | undefined; format?: "json" | "text" | "html" | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/snapshots/${part(sid)}/diff`, query, accept: "text/html", ...how });
  }

  /** Download a snapshot, with memory and files, as an archive that another host can import. Requires
   * the role operator. */
  exportSnapshot(sid: string, how: Call = {}): Promise<Answer> {
    return this.open({ method: "GET", path: `/snapshots/${part(sid)}/export`, accept: "application/zstd", ...how });
  }

  /** Restore a snapshot as a new jail. Requires the role operator. */
  restoreSnapshot(sid: string, body: wire.Overrides | undefined, how: Keyed = {}): Promise<wire.Jail> {
    return this.json<wire.Jail>({ method: "POST", path: `/snapshots/${part(sid)}/restore`, body, ...how });
  }

  /** Create frozen copies of a snapshot in advance, for fast branches. Requires the role operator. */
  warmSnapshot(sid: string, body: wire.Warm, how: Keyed = {}): Promise<wire.Warmed> {
    return this.json<wire.Warmed>({ method: "POST", path: `/snapshots/${part(sid)}/warm`, body, ...how });
  }

  /** Show the daemon's disk usage by category, and the warm pool. Requires the role viewer. */
  getStorage(how: Call = {}): Promise<wire.Storage> {
    return this.json<wire.Storage>({ method: "GET", path: "/storage", ...how });
  }

  /** List tokens, oldest first. Requires the role admin. */
  listTokens(query: { limit?: number | undefined; after?: string | undefined } = {}, how: Call = {}): Promise<wire.TokenPage> {
    return this.json<wire.TokenPage>({ method: "GET", path: "/tokens", query, ...how });
  }

  /** Create a bearer token. The secret is returned only in this response. Requires the role admin. */
  createToken(body: wire.CreateToken, how: Call = {}): Promise<wire.Token> {
    return this.json<wire.Token>({ method: "POST", path: "/tokens", body, ...how });
  }

  /** Change the quota of a token or an E2B key. Nothing ends if it is lowered below the use. Requires
   * the role admin. */
  updateToken(id: string, body: wire.EditToken, how: Call = {}): Promise<wire.Token> {
    return this.json<wire.Token>({ method: "PATCH", path: `/tokens/${part(id)}`, body, ...how });
  }

  /** Revoke a token. Requires the role admin. */
  revokeToken(id: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/tokens/${part(id)}`, ...how });
  }

  /** Show the daemon's version. Requires the role viewer. */
  getVersion(how: Call = {}): Promise<wire.Version> {
    return this.json<wire.Version>({ method: "GET", path: "/version", ...how });
  }
}
