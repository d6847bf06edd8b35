// Made by `make sdk` from the OpenAPI document. Do not edit.

import { type Answer, type Content, part, Transport } from "./transport.js";
import type { ServerEvent } from "./sse.js";
import type * as wire from "./wire.js";

/** What any operation can be told beside what it is about. */
export interface Call {
  /** Ends the call when it is aborted. */
  signal?: AbortSignal;
}

/** For operations that are to be done once, however often they are asked for. */
export interface Keyed extends Call {
  /** The same key within a day gets the first answer. With one, a call that breaks is made again. */
  idempotencyKey?: string;
}

/** For streams that are come back to. */
export interface Resumed extends Call {
  /** The id of the last event that was seen. */
  lastEventId?: string;
}

/**
 * The API, route by route, with nothing done beyond what is asked.
 *
 * A route that answers in more than one form has a method for each: the plain name
 * gives the first of JSON, events, lines of JSON, text and bytes.
 */
export class Operations extends Transport {
  /** Show what a link would decide. */
  getAnswersByToken(token: string, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/answers/${part(token)}`, accept: "text/html", ...how });
  }

  /** Decide what a link decides, once. */
  postAnswersByToken(token: string, how: Call = {}): Promise<string> {
    return this.text({ method: "POST", path: `/answers/${part(token)}`, accept: "text/html", ...how });
  }

  /** List what waits for a person, oldest first, or what no longer does, newest first. Needs the role
   * viewer. */
  getApprovals(query: { state?: "pending" | "answered" | "expired" | "withdrawn" | "all" | undefined; jail?: string | undefined; limit?: number | undefined } = {}, how: Call = {}): Promise<wire.ApprovalPage> {
    return this.json<wire.ApprovalPage>({ method: "GET", path: "/approvals", query, ...how });
  }

  /** Stream what happens to requests, what waits already first. Needs the role viewer. */
  getApprovalsEvents(how: Resumed = {}): Promise<AsyncIterable<ServerEvent>> {
    return this.events({ method: "GET", path: "/approvals/events", accept: "text/event-stream", ...how });
  }

  /** Show a request, at once or as soon as it is settled. Needs the role viewer. */
  getApprovalsByApproval(approval: string, query: { wait_ms?: number | undefined; last?: number | undefined } = {}, how: Call = {}): Promise<wire.Approval> {
    return this.json<wire.Approval>({ method: "GET", path: `/approvals/${part(approval)}`, query, ...how });
  }

  /** Answer a request. The first answer counts; the same again is no error. Needs the role operator. */
  postApprovalsByApproval(approval: string, body: wire.AnswerApproval, how: Keyed = {}): Promise<wire.Approval> {
    return this.json<wire.Approval>({ method: "POST", path: `/approvals/${part(approval)}`, body, ...how });
  }

  /** End a request that nobody needs the answer of. Needs the role operator. */
  deleteApprovalsByApproval(approval: string, how: Call = {}): Promise<wire.Approval> {
    return this.json<wire.Approval>({ method: "DELETE", path: `/approvals/${part(approval)}`, ...how });
  }

  /** List what can isolate on this host. Needs the role viewer. */
  getBackends(how: Call = {}): Promise<wire.BackendPage> {
    return this.json<wire.BackendPage>({ method: "GET", path: "/backends", ...how });
  }

  /** List bundles that are installed, or that a person is asked about, by name. Needs the role
   * viewer. */
  getBundles(how: Call = {}): Promise<wire.BundlePage> {
    return this.json<wire.BundlePage>({ method: "GET", path: "/bundles", ...how });
  }

  /** Install a bundle. What is wrong with it is said at once; then a person is asked. Needs the role
   * admin. */
  postBundles(content: Content, query: { name: string }, how: Call = {}): Promise<wire.Bundle> {
    return this.json<wire.Bundle>({ method: "POST", path: "/bundles", content, contentType: "application/octet-stream", query, ...how });
  }

  /** Remove a bundle with its capabilities and its skill. Needs the role admin. */
  deleteBundlesByName(name: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/bundles/${part(name)}`, ...how });
  }

  /** Show what became of a call, of those that were last. Needs the role viewer. */
  getCallsByCall(call: string, how: Call = {}): Promise<wire.Called> {
    return this.json<wire.Called>({ method: "GET", path: `/calls/${part(call)}`, ...how });
  }

  /** List the versions of all capabilities, by id, the newest first. Needs the role viewer. */
  getCapabilities(how: Call = {}): Promise<wire.CapabilityPage> {
    return this.json<wire.CapabilityPage>({ method: "GET", path: "/capabilities", ...how });
  }

  /** Register the capabilities of a manifest. About what they may do that is new a person is asked.
   * Needs the role admin. */
  postCapabilities(body: wire.Register, how: Keyed = {}): Promise<wire.CapabilityPage> {
    return this.json<wire.CapabilityPage>({ method: "POST", path: "/capabilities", body, ...how });
  }

  /** Start somebody's server of the Model Context Protocol in a jail, and show manifests of its
   * tools, to be registered. Needs the role admin. */
  postCapabilitiesImport(body: wire.ImportServer, how: Keyed = {}): Promise<wire.ImportedServer> {
    return this.json<wire.ImportedServer>({ method: "POST", path: "/capabilities/import", body, ...how });
  }

  /** Show a version of a capability, with its manifest and its schemas. Needs the role viewer. */
  getCapabilitiesByCapability(capability: string, query: { version?: string | undefined } = {}, how: Call = {}): Promise<wire.Capability> {
    return this.json<wire.Capability>({ method: "GET", path: `/capabilities/${part(capability)}`, query, ...how });
  }

  /** Remove a version of a capability, and what was kept for it. Needs the role admin. */
  deleteCapabilitiesByCapability(capability: string, query: { version?: string | undefined } = {}, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/capabilities/${part(capability)}`, query, ...how });
  }

  /** Call a capability. That it failed is an answer; that it was refused is an error. Needs the role
   * operator. */
  postCapabilitiesByCapabilityCall(capability: string, body: wire.Call, how: Keyed = {}): Promise<wire.Called> {
    return this.json<wire.Called>({ method: "POST", path: `/capabilities/${part(capability)}/call`, body, ...how });
  }

  /** Have a version no longer be called, from now on. Needs the role operator. */
  postCapabilitiesByCapabilityRevoke(capability: string, body: wire.RevokeCapability, query: { version?: string | undefined } = {}, how: Keyed = {}): Promise<wire.Capability> {
    return this.json<wire.Capability>({ method: "POST", path: `/capabilities/${part(capability)}/revoke`, body, query, ...how });
  }

  /** Say whether a version, by its digest, may run on the host itself. Needs the role admin. */
  postCapabilitiesByCapabilityTrust(capability: string, body: wire.TrustCapability, query: { version?: string | undefined } = {}, how: Keyed = {}): Promise<wire.Capability> {
    return this.json<wire.Capability>({ method: "POST", path: `/capabilities/${part(capability)}/trust`, body, query, ...how });
  }

  /** List entries of the causal chain, oldest first or newest first. Needs the role viewer. */
  getChain(query: { limit?: number | undefined; after?: number | undefined; session?: string | undefined; run?: string | undefined; jail?: string | undefined; capability?: string | undefined; kind?: string | undefined; parent?: number | undefined; under?: number | undefined; from?: string | undefined; until?: string | undefined; newest?: boolean | undefined } = {}, how: Call = {}): Promise<wire.ChainEntryPage> {
    return this.json<wire.ChainEntryPage>({ method: "GET", path: "/chain", query, ...how });
  }

  /** Prove that the chain contains one that an earlier checkpoint was signed over. Needs the role
   * viewer. */
  postChainConsistency(body: wire.ChainFrom, how: Keyed = {}): Promise<wire.ChainConsistency> {
    return this.json<wire.ChainConsistency>({ method: "POST", path: "/chain/consistency", body, ...how });
  }

  /** Download the chain with its checkpoints and its key, so that others can verify it. Needs the
   * role viewer. */
  getChainExport(how: Call = {}): Promise<AsyncIterable<wire.ChainEntry>> {
    return this.lines<wire.ChainEntry>({ method: "GET", path: "/chain/export", accept: "application/x-ndjson", ...how });
  }

  /** Show how long the chain is, its key, and its newest checkpoint. Needs the role viewer. */
  getChainHead(how: Call = {}): Promise<wire.ChainHead> {
    return this.json<wire.ChainHead>({ method: "GET", path: "/chain/head", ...how });
  }

  /** Verify the chain: entries, links, tree and signatures. Needs the role viewer. */
  getChainVerify(query: { all?: boolean | undefined } = {}, how: Call = {}): Promise<wire.ChainReport> {
    return this.json<wire.ChainReport>({ method: "GET", path: "/chain/verify", query, ...how });
  }

  /** Show an entry of the chain. Needs the role viewer. */
  getChainBySeq(seq: string, how: Call = {}): Promise<wire.ChainEntry> {
    return this.json<wire.ChainEntry>({ method: "GET", path: `/chain/${part(seq)}`, ...how });
  }

  /** List what caused an entry, the first cause first. Needs the role viewer. */
  getChainBySeqCauses(seq: string, how: Call = {}): Promise<wire.ChainEntryPage> {
    return this.json<wire.ChainEntryPage>({ method: "GET", path: `/chain/${part(seq)}/causes`, ...how });
  }

  /** Prove that an entry is in the chain, to who has the public key. Needs the role viewer. */
  getChainBySeqProof(seq: string, how: Call = {}): Promise<wire.ChainProof> {
    return this.json<wire.ChainProof>({ method: "GET", path: `/chain/${part(seq)}/proof`, ...how });
  }

  /** Make a recorded call of a pure capability again, and compare what comes out. Needs the role
   * operator. */
  postChainBySeqReplay(seq: string, how: Keyed = {}): Promise<wire.Replayed> {
    return this.json<wire.Replayed>({ method: "POST", path: `/chain/${part(seq)}/replay`, ...how });
  }

  /** Stream what happens in a session, from its first event on or from after a number or
   * Last-Event-ID. Over a WebSocket each text frame is an event. Needs the role viewer. */
  getChatEventsBySession(session: string, query: { after?: number | undefined } = {}, how: Resumed = {}): Promise<AsyncIterable<ServerEvent>> {
    return this.events({ method: "GET", path: `/chat/events/${part(session)}`, query, accept: "text/event-stream", ...how });
  }

  /** List the messages of a session that went one way, oldest first. Needs the role viewer. */
  getChatInbox(query: { session_id?: string | undefined; direction?: "in" | "out" | undefined; limit?: number | undefined; after?: number | undefined } = {}, how: Call = {}): Promise<wire.MessagePage> {
    return this.json<wire.MessagePage>({ method: "GET", path: "/chat/inbox", query, ...how });
  }

  /** List runs, newest first. Needs the role viewer. */
  getChatRun(query: { session_id?: string | undefined; state?: "scheduled" | "active" | "paused" | "done" | "failed" | "cancelled" | undefined; parent?: string | undefined; limit?: number | undefined; after?: string | undefined } = {}, how: Call = {}): Promise<wire.RunPage> {
    return this.json<wire.RunPage>({ method: "GET", path: "/chat/run", query, ...how });
  }

  /** Have an agent pursue a goal: now, at a time, or by a schedule. Needs the role operator. */
  postChatRun(body: wire.StartRun, how: Keyed = {}): Promise<wire.Run> {
    return this.json<wire.Run>({ method: "POST", path: "/chat/run", body, ...how });
  }

  /** Show a run. Needs the role viewer. */
  getChatRunByRun(run: string, how: Call = {}): Promise<wire.Run> {
    return this.json<wire.Run>({ method: "GET", path: `/chat/run/${part(run)}`, ...how });
  }

  /** List what a run has done, in its order. Needs the role viewer. */
  getChatRunByRunActions(run: string, query: { limit?: number | undefined; after?: number | undefined } = {}, how: Call = {}): Promise<wire.RunActionPage> {
    return this.json<wire.RunActionPage>({ method: "GET", path: `/chat/run/${part(run)}/actions`, query, ...how });
  }

  /** End a run and those that are a part of it; of one that waits for its schedule, the schedule.
   * Needs the role operator. */
  postChatRunByRunCancel(run: string, how: Keyed = {}): Promise<wire.Run> {
    return this.json<wire.Run>({ method: "POST", path: `/chat/run/${part(run)}/cancel`, ...how });
  }

  /** Keep a run as it is, with its jail. Needs the role operator. */
  postChatRunByRunCheckpoint(run: string, body: wire.TakeCheckpoint | undefined, how: Keyed = {}): Promise<wire.Checkpoint> {
    return this.json<wire.Checkpoint>({ method: "POST", path: `/chat/run/${part(run)}/checkpoint`, body, ...how });
  }

  /** List the checkpoints of a run, oldest first. Needs the role viewer. */
  getChatRunByRunCheckpoints(run: string, query: { limit?: number | undefined; after?: number | undefined } = {}, how: Call = {}): Promise<wire.CheckpointPage> {
    return this.json<wire.CheckpointPage>({ method: "GET", path: `/chat/run/${part(run)}/checkpoints`, query, ...how });
  }

  /** Show a checkpoint, with what the agent keeps of itself. Needs the role viewer. */
  getChatRunByRunCheckpointsByCheckpoint(run: string, checkpoint: string, how: Call = {}): Promise<wire.Checkpoint> {
    return this.json<wire.Checkpoint>({ method: "GET", path: `/chat/run/${part(run)}/checkpoints/${part(checkpoint)}`, ...how });
  }

  /** Have a run wait. Its jail stands still. Needs the role operator. */
  postChatRunByRunPause(run: string, how: Keyed = {}): Promise<wire.Run> {
    return this.json<wire.Run>({ method: "POST", path: `/chat/run/${part(run)}/pause`, ...how });
  }

  /** Have a run go on where it was, go back to a checkpoint, or go on as others from one. Needs the
   * role operator. */
  postChatRunByRunResume(run: string, body: wire.ResumeRun | undefined, how: Keyed = {}): Promise<wire.Resumed> {
    return this.json<wire.Resumed>({ method: "POST", path: `/chat/run/${part(run)}/resume`, body, ...how });
  }

  /** Change a run's state by hand. Needs the role operator. */
  postChatRunByRunTransition(run: string, body: wire.MoveRun, how: Keyed = {}): Promise<wire.Run> {
    return this.json<wire.Run>({ method: "POST", path: `/chat/run/${part(run)}/transition`, body, ...how });
  }

  /** Tell a session's agent something. Needs the role operator. */
  postChatSend(body: wire.SendMessage, how: Keyed = {}): Promise<wire.Message> {
    return this.json<wire.Message>({ method: "POST", path: "/chat/send", body, ...how });
  }

  /** List sessions, newest first. Needs the role viewer. */
  getChatSession(query: { limit?: number | undefined; after?: string | undefined; state?: "open" | "closed" | undefined; group?: string | undefined } = {}, how: Call = {}): Promise<wire.SessionPage> {
    return this.json<wire.SessionPage>({ method: "GET", path: "/chat/session", query, ...how });
  }

  /** Open a session, or find the one of that name. Needs the role operator. */
  postChatSession(body: wire.OpenSession, how: Keyed = {}): Promise<wire.Session> {
    return this.json<wire.Session>({ method: "POST", path: "/chat/session", body, ...how });
  }

  /** Show a session. Needs the role viewer. */
  getChatSessionBySession(session: string, how: Call = {}): Promise<wire.Session> {
    return this.json<wire.Session>({ method: "GET", path: `/chat/session/${part(session)}`, ...how });
  }

  /** Close a session. What was said in it stays. Needs the role operator. */
  deleteChatSessionBySession(session: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/chat/session/${part(session)}`, ...how });
  }

  /** List what joins sessions to others, and what of its deliveries waits. Needs the role viewer. */
  getConnectors(how: Call = {}): Promise<wire.ConnectorPage> {
    return this.json<wire.ConnectorPage>({ method: "GET", path: "/connectors", ...how });
  }

  /** List what is or was to be delivered to a connector, by when it is due. Needs the role viewer. */
  getConnectorsByConnectorDeliveries(connector: string, query: { state?: "pending" | "delivered" | "dead" | undefined; limit?: number | undefined; after?: string | undefined } = {}, how: Call = {}): Promise<wire.DeliveryPage> {
    return this.json<wire.DeliveryPage>({ method: "GET", path: `/connectors/${part(connector)}/deliveries`, query, ...how });
  }

  /** Try a delivery anew that failed too often. Needs the role operator. */
  postDeliveriesByDeliveryRedeliver(delivery: string, how: Keyed = {}): Promise<wire.Delivery> {
    return this.json<wire.Delivery>({ method: "POST", path: `/deliveries/${part(delivery)}/redeliver`, ...how });
  }

  /** Probe what this host can do, and what to do about what it cannot. Needs the role viewer. */
  getDoctor(how: Call = {}): Promise<wire.ProbePage> {
    return this.json<wire.ProbePage>({ method: "GET", path: "/doctor", ...how });
  }

  /** Make a key for clients of the E2B protocol. The answer alone has it. Needs the role admin. */
  postE2bKeys(body: wire.CreateE2BKey, how: Call = {}): Promise<wire.E2BKey> {
    return this.json<wire.E2BKey>({ method: "POST", path: "/e2b/keys", body, ...how });
  }

  /** Stream what happens, and how jails fare. The topics jail, approval, run, notice, step, decision
   * and egress are entries of the chain, and after a Last-Event-ID go on behind it; jails and
   * schedules are as of now. Needs the role viewer. */
  getFeed(query: { topics?: string | undefined } = {}, how: Resumed = {}): Promise<AsyncIterable<ServerEvent>> {
    return this.events({ method: "GET", path: "/feed", query, accept: "text/event-stream", ...how });
  }

  /** Take a grant away, at once. Needs the role operator. */
  deleteGrantsByGrant(grant: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/grants/${part(grant)}`, ...how });
  }

  /** Say that the daemon lives. */
  getHealth(how: Call = {}): Promise<wire.Health> {
    return this.json<wire.Health>({ method: "GET", path: "/health", ...how });
  }

  /** Say that the daemon can serve. */
  getHealthReady(how: Call = {}): Promise<wire.Health> {
    return this.json<wire.Health>({ method: "GET", path: "/health/ready", ...how });
  }

  /** Tell a session something from outside, signed as the connector wants it: by the Standard
   * Webhooks or as GitHub signs. */
  postHooksByConnector(connector: string, how: Call = {}): Promise<wire.Received> {
    return this.json<wire.Received>({ method: "POST", path: `/hooks/${part(connector)}`, ...how });
  }

  /** List the root filesystems that are ready, the newest first. Needs the role viewer. */
  getImages(query: { limit?: number | undefined; after?: string | undefined } = {}, how: Call = {}): Promise<wire.ImagePage> {
    return this.json<wire.ImagePage>({ method: "GET", path: "/images", query, ...how });
  }

  /** Make a root filesystem ready, so that the first jail on it need not wait. Needs the role
   * operator. */
  postImages(body: wire.Rootfs, how: Keyed = {}): Promise<wire.Prepared> {
    return this.json<wire.Prepared>({ method: "POST", path: "/images", body, ...how });
  }

  /** Remove the root filesystems that no jail uses, and list them. Needs the role admin. */
  postImagesPrune(how: Keyed = {}): Promise<wire.ImagePage> {
    return this.json<wire.ImagePage>({ method: "POST", path: "/images/prune", ...how });
  }

  /** List jails, oldest first. Needs the role viewer. */
  getJails(query: { limit?: number | undefined; after?: string | undefined; state?: "created" | "starting" | "running" | "paused" | "stopped" | "failed" | undefined; name?: string | undefined; label?: string[] | undefined } = {}, how: Call = {}): Promise<wire.JailPage> {
    return this.json<wire.JailPage>({ method: "GET", path: "/jails", query, ...how });
  }

  /** Make a jail. Needs the role operator. */
  postJails(body: wire.CreateJail | undefined, how: Keyed = {}): Promise<wire.Jail> {
    return this.json<wire.Jail>({ method: "POST", path: "/jails", body, ...how });
  }

  /** Show a jail and what it uses. Needs the role viewer. */
  getJailsById(id: string, how: Call = {}): Promise<wire.Jail> {
    return this.json<wire.Jail>({ method: "GET", path: `/jails/${part(id)}`, ...how });
  }

  /** Remove a jail, whatever its state, and its files. Needs the role operator. */
  deleteJailsById(id: string, query: { snapshots?: boolean | undefined } = {}, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/jails/${part(id)}`, query, ...how });
  }

  /** Show how a jail was at an instant: its processes, the files it had changed, and the nearest
   * snapshot. Needs the role viewer. */
  getJailsByIdAt(id: string, query: { ts?: string | undefined; all?: boolean | undefined; limit?: number | undefined } = {}, how: Call = {}): Promise<wire.Past> {
    return this.json<wire.Past>({ method: "GET", path: `/jails/${part(id)}/at`, query, ...how });
  }

  /** Take a snapshot of a jail and make jails from it. Needs the role operator. */
  postJailsByIdBranch(id: string, body: wire.Branch | undefined, how: Keyed = {}): Promise<wire.Branches> {
    return this.json<wire.Branches>({ method: "POST", path: `/jails/${part(id)}/branch`, body, ...how });
  }

  /** Show whom a jail talked to, by host, and what was decided about it on its way out. Needs the
   * role viewer. */
  getJailsByIdConnections(id: string, query: { from?: string | undefined; to?: string | undefined; limit?: number | undefined } = {}, how: Call = {}): Promise<wire.Connections> {
    return this.json<wire.Connections>({ method: "GET", path: `/jails/${part(id)}/connections`, query, ...how });
  }

  /** Ask whether something may be done, and wait for a person if one is to be asked. Needs the role
   * operator. */
  postJailsByIdDecide(id: string, body: wire.Decide, how: Keyed = {}): Promise<wire.Verdict> {
    return this.json<wire.Verdict>({ method: "POST", path: `/jails/${part(id)}/decide`, body, ...how });
  }

  /** Show what differs between a jail and another, or a snapshot. Needs the role viewer. */
  getJailsByIdDiff(id: string, query: { against?: string | undefined; only?: string | undefined; content?: "unified" | undefined; format?: "json" | "text" | "html" | undefined } = {}, how: Call = {}): Promise<wire.Comparison> {
    return this.json<wire.Comparison>({ method: "GET", path: `/jails/${part(id)}/diff`, query, ...how });
  }

  /** Show what differs between a jail and another, or a snapshot. Needs the role viewer. */
  getJailsByIdDiffText(id: string, query: { against?: string | undefined; only?: string | undefined; content?: "unified" | undefined; format?: "json" | "text" | "html" | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/jails/${part(id)}/diff`, query, accept: "text/plain", ...how });
  }

  /** Show what differs between a jail and another, or a snapshot. Needs the role viewer. */
  getJailsByIdDiffHtml(id: string, query: { against?: string | undefined; only?: string | undefined; content?: "unified" | undefined; format?: "json" | "text" | "html" | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/jails/${part(id)}/diff`, query, accept: "text/html", ...how });
  }

  /** Show what may leave a jail, and what did, in numbers. Needs the role viewer. */
  getJailsByIdEgress(id: string, how: Call = {}): Promise<wire.EgressState> {
    return this.json<wire.EgressState>({ method: "GET", path: `/jails/${part(id)}/egress`, ...how });
  }

  /** Change what may leave a jail, at once. What is carried and not allowed any more is cut. Needs
   * the role operator. */
  putJailsByIdEgress(id: string, body: wire.Egress, how: Call = {}): Promise<wire.EgressState> {
    return this.json<wire.EgressState>({ method: "PUT", path: `/jails/${part(id)}/egress`, body, ...how });
  }

  /** Stream what a jail does, from its first record on or from where a filter, a time or
   * Last-Event-ID says. Each event's id is its record's seq; 'end' comes last. With offset or at,
   * answer with a window of it. Needs the role viewer. */
  getJailsByIdEvents(id: string, query: { q?: string | undefined; type?: string | undefined; pid?: string | undefined; path?: string | undefined; host?: string | undefined; name?: string | undefined; ret?: string | undefined; comm?: string | undefined; op?: string | undefined; since?: string | undefined; until?: string | undefined; after?: number | undefined; tail?: number | undefined; limit?: number | undefined; follow?: boolean | undefined; offset?: number | undefined; at?: string | undefined; format?: "sse" | "ndjson" | undefined } = {}, how: Call = {}): Promise<wire.EventWindow> {
    return this.json<wire.EventWindow>({ method: "GET", path: `/jails/${part(id)}/events`, query, ...how });
  }

  /** Stream what a jail does, from its first record on or from where a filter, a time or
   * Last-Event-ID says. Each event's id is its record's seq; 'end' comes last. With offset or at,
   * answer with a window of it. Needs the role viewer. */
  getJailsByIdEventsStream(id: string, query: { q?: string | undefined; type?: string | undefined; pid?: string | undefined; path?: string | undefined; host?: string | undefined; name?: string | undefined; ret?: string | undefined; comm?: string | undefined; op?: string | undefined; since?: string | undefined; until?: string | undefined; after?: number | undefined; tail?: number | undefined; limit?: number | undefined; follow?: boolean | undefined; offset?: number | undefined; at?: string | undefined; format?: "sse" | "ndjson" | undefined } = {}, how: Resumed = {}): Promise<AsyncIterable<ServerEvent>> {
    return this.events({ method: "GET", path: `/jails/${part(id)}/events`, query, accept: "text/event-stream", ...how });
  }

  /** Stream what a jail does, from its first record on or from where a filter, a time or
   * Last-Event-ID says. Each event's id is its record's seq; 'end' comes last. With offset or at,
   * answer with a window of it. Needs the role viewer. */
  getJailsByIdEventsLines(id: string, query: { q?: string | undefined; type?: string | undefined; pid?: string | undefined; path?: string | undefined; host?: string | undefined; name?: string | undefined; ret?: string | undefined; comm?: string | undefined; op?: string | undefined; since?: string | undefined; until?: string | undefined; after?: number | undefined; tail?: number | undefined; limit?: number | undefined; follow?: boolean | undefined; offset?: number | undefined; at?: string | undefined; format?: "sse" | "ndjson" | undefined } = {}, how: Call = {}): Promise<AsyncIterable<wire.Event>> {
    return this.lines<wire.Event>({ method: "GET", path: `/jails/${part(id)}/events`, query, accept: "application/x-ndjson", ...how });
  }

  /** Run a command and wait for it, stream its output, or detach from it. Needs the role operator. */
  postJailsByIdExec(id: string, body: wire.ExecRequest, how: Keyed = {}): Promise<wire.Exec> {
    return this.json<wire.Exec>({ method: "POST", path: `/jails/${part(id)}/exec`, body, ...how });
  }

  /** Run a command and wait for it, stream its output, or detach from it. Needs the role operator. */
  postJailsByIdExecStream(id: string, body: wire.ExecRequest, how: Keyed = {}): Promise<AsyncIterable<ServerEvent>> {
    return this.events({ method: "POST", path: `/jails/${part(id)}/exec`, body, accept: "text/event-stream", ...how });
  }

  /** List the commands of a jail that are still known, oldest first. Needs the role viewer. */
  getJailsByIdExecs(id: string, query: { limit?: number | undefined; after?: string | undefined } = {}, how: Call = {}): Promise<wire.ExecPage> {
    return this.json<wire.ExecPage>({ method: "GET", path: `/jails/${part(id)}/execs`, query, ...how });
  }

  /** Show a command and its output, or follow it as events. Needs the role viewer. */
  getJailsByIdExecsByExec(id: string, exec: string, query: { from?: number | undefined; lossless?: boolean | undefined } = {}, how: Call = {}): Promise<wire.Exec> {
    return this.json<wire.Exec>({ method: "GET", path: `/jails/${part(id)}/execs/${part(exec)}`, query, ...how });
  }

  /** Show a command and its output, or follow it as events. Needs the role viewer. */
  getJailsByIdExecsByExecStream(id: string, exec: string, query: { from?: number | undefined; lossless?: boolean | undefined } = {}, how: Resumed = {}): Promise<AsyncIterable<ServerEvent>> {
    return this.events({ method: "GET", path: `/jails/${part(id)}/execs/${part(exec)}`, query, accept: "text/event-stream", ...how });
  }

  /** Change the size of a command's terminal. Needs the role operator. */
  postJailsByIdExecsByExecResize(id: string, exec: string, body: wire.Size, how: Keyed = {}): Promise<void> {
    return this.none({ method: "POST", path: `/jails/${part(id)}/execs/${part(exec)}/resize`, body, ...how });
  }

  /** Send a signal to a command's process group. Needs the role operator. */
  postJailsByIdExecsByExecSignal(id: string, exec: string, body: wire.Signal, how: Keyed = {}): Promise<void> {
    return this.none({ method: "POST", path: `/jails/${part(id)}/execs/${part(exec)}/signal`, body, ...how });
  }

  /** Write to a command's standard input. Needs the role operator. */
  postJailsByIdExecsByExecStdin(id: string, exec: string, content: Content, query: { close?: boolean | undefined } = {}, how: Call = {}): Promise<void> {
    return this.none({ method: "POST", path: `/jails/${part(id)}/execs/${part(exec)}/stdin`, content, contentType: "application/octet-stream", query, ...how });
  }

  /** Read a file, list a directory, describe either, or take a tar archive of it. Needs the role
   * viewer. */
  getJailsByIdFiles(id: string, query: { path: string; list?: boolean | undefined; stat?: boolean | undefined; tar?: boolean | undefined; offset?: number | undefined; bytes?: number | undefined; limit?: number | undefined; after?: string | undefined }, how: Call = {}): Promise<wire.File | wire.FilePage> {
    return this.json<wire.File | wire.FilePage>({ method: "GET", path: `/jails/${part(id)}/files`, query, ...how });
  }

  /** Read a file, list a directory, describe either, or take a tar archive of it. Needs the role
   * viewer. */
  getJailsByIdFilesBytes(id: string, query: { path: string; list?: boolean | undefined; stat?: boolean | undefined; tar?: boolean | undefined; offset?: number | undefined; bytes?: number | undefined; limit?: number | undefined; after?: string | undefined }, how: Call = {}): Promise<Answer> {
    return this.open({ method: "GET", path: `/jails/${part(id)}/files`, query, accept: "application/octet-stream", ...how });
  }

  /** Write a file, make a directory, or extract a tar archive. Needs the role operator. */
  putJailsByIdFiles(id: string, content: Content, query: { path: string; tar?: boolean | undefined; mkdir?: boolean | undefined; mode?: string | undefined; append?: boolean | undefined; parents?: boolean | undefined; uid?: number | undefined; gid?: number | undefined }, how: Call = {}): Promise<wire.File> {
    return this.json<wire.File>({ method: "PUT", path: `/jails/${part(id)}/files`, content, contentType: "application/octet-stream", query, ...how });
  }

  /** Remove a file or directory. Needs the role operator. */
  deleteJailsByIdFiles(id: string, query: { path: string; recursive?: boolean | undefined }, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/jails/${part(id)}/files`, query, ...how });
  }

  /** Rename a file or directory. Needs the role operator. */
  postJailsByIdFilesMove(id: string, body: wire.MoveFile, how: Keyed = {}): Promise<void> {
    return this.none({ method: "POST", path: `/jails/${part(id)}/files/move`, body, ...how });
  }

  /** Stream changes below a path as they happen. Needs the role viewer. */
  getJailsByIdFilesWatch(id: string, query: { path: string; recursive?: boolean | undefined }, how: Resumed = {}): Promise<AsyncIterable<ServerEvent>> {
    return this.events({ method: "GET", path: `/jails/${part(id)}/files/watch`, query, accept: "text/event-stream", ...how });
  }

  /** List what a jail changed in its root filesystem or its workspace, or how it differs from a
   * snapshot or another jail, by path. Needs the role viewer. */
  getJailsByIdFsDiff(id: string, query: { limit?: number | undefined; after?: string | undefined; against?: string | undefined; workspace?: boolean | undefined; path?: string | undefined; content?: "unified" | undefined } = {}, how: Call = {}): Promise<wire.ChangePage> {
    return this.json<wire.ChangePage>({ method: "GET", path: `/jails/${part(id)}/fs/diff`, query, ...how });
  }

  /** List what a jail changed in its root filesystem or its workspace, or how it differs from a
   * snapshot or another jail, by path. Needs the role viewer. */
  getJailsByIdFsDiffText(id: string, query: { limit?: number | undefined; after?: string | undefined; against?: string | undefined; workspace?: boolean | undefined; path?: string | undefined; content?: "unified" | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/jails/${part(id)}/fs/diff`, query, accept: "text/plain", ...how });
  }

  /** List what a jail changed in its root filesystem or its workspace, or how it differs from a
   * snapshot or another jail, by path. Needs the role viewer. */
  getJailsByIdFsDiffHtml(id: string, query: { limit?: number | undefined; after?: string | undefined; against?: string | undefined; workspace?: boolean | undefined; path?: string | undefined; content?: "unified" | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/jails/${part(id)}/fs/diff`, query, accept: "text/html", ...how });
  }

  /** Show what a jail may use, and what became of requests for more. Needs the role viewer. */
  getJailsByIdLimits(id: string, query: { after?: number | undefined } = {}, how: Call = {}): Promise<wire.JailLimits> {
    return this.json<wire.JailLimits>({ method: "GET", path: `/jails/${part(id)}/limits`, query, ...how });
  }

  /** Change what a jail may use, while it runs. What is not named stays as it is. Needs the role
   * operator. */
  patchJailsByIdLimits(id: string, body: wire.Limits, how: Call = {}): Promise<wire.Jail> {
    return this.json<wire.Jail>({ method: "PATCH", path: `/jails/${part(id)}/limits`, body, ...how });
  }

  /** List whom a jail talked to, in the order it began. Needs the role viewer. */
  getJailsByIdNetworkLog(id: string, query: { limit?: number | undefined; after?: string | undefined; since?: string | undefined; until?: string | undefined; packets?: boolean | undefined } = {}, how: Call = {}): Promise<wire.Flows> {
    return this.json<wire.Flows>({ method: "GET", path: `/jails/${part(id)}/network/log`, query, ...how });
  }

  /** List whom a jail talked to, in the order it began. Needs the role viewer. */
  getJailsByIdNetworkLogLines(id: string, query: { limit?: number | undefined; after?: string | undefined; since?: string | undefined; until?: string | undefined; packets?: boolean | undefined } = {}, how: Call = {}): Promise<AsyncIterable<wire.Event>> {
    return this.lines<wire.Event>({ method: "GET", path: `/jails/${part(id)}/network/log`, query, accept: "application/x-ndjson", ...how });
  }

  /** List whom a jail talked to, in the order it began. Needs the role viewer. */
  getJailsByIdNetworkLogText(id: string, query: { limit?: number | undefined; after?: string | undefined; since?: string | undefined; until?: string | undefined; packets?: boolean | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/jails/${part(id)}/network/log`, query, accept: "text/plain", ...how });
  }

  /** Download what is kept of a jail's packets. Needs the role viewer. */
  getJailsByIdNetworkPcap(id: string, how: Call = {}): Promise<Answer> {
    return this.open({ method: "GET", path: `/jails/${part(id)}/network/pcap`, accept: "application/x-pcapng", ...how });
  }

  /** Freeze a jail. Needs the role operator. */
  postJailsByIdPause(id: string, how: Keyed = {}): Promise<wire.Jail> {
    return this.json<wire.Jail>({ method: "POST", path: `/jails/${part(id)}/pause`, ...how });
  }

  /** Show a jail's policy, how it is read, and what in it does not do what it seems to. Needs the
   * role viewer. */
  getJailsByIdPolicy(id: string, how: Call = {}): Promise<wire.PolicyState> {
    return this.json<wire.PolicyState>({ method: "GET", path: `/jails/${part(id)}/policy`, ...how });
  }

  /** Give a jail another policy, at once. Needs the role operator. */
  putJailsByIdPolicy(id: string, body: wire.Policy, how: Call = {}): Promise<wire.PolicyState> {
    return this.json<wire.PolicyState>({ method: "PUT", path: `/jails/${part(id)}/policy`, body, ...how });
  }

  /** Take a jail's policy away. Nothing is allowed any more that is asked about. Needs the role
   * operator. */
  deleteJailsByIdPolicy(id: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/jails/${part(id)}/policy`, ...how });
  }

  /** Change a jail's level of autonomy, at once: down, or up to its ceiling. Needs the role operator. */
  postJailsByIdPolicyLevel(id: string, body: wire.PolicyLevel, how: Keyed = {}): Promise<wire.PolicyState> {
    return this.json<wire.PolicyState>({ method: "POST", path: `/jails/${part(id)}/policy/level`, body, ...how });
  }

  /** Show the tree of a jail's processes, as it is or as it was. Needs the role viewer. */
  getJailsByIdProcesses(id: string, query: { at?: string | undefined; all?: boolean | undefined } = {}, how: Call = {}): Promise<wire.Processes> {
    return this.json<wire.Processes>({ method: "GET", path: `/jails/${part(id)}/processes`, query, ...how });
  }

  /** Show the tree of a jail's processes, as it is or as it was. Needs the role viewer. */
  getJailsByIdProcessesText(id: string, query: { at?: string | undefined; all?: boolean | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/jails/${part(id)}/processes`, query, accept: "text/plain", ...how });
  }

  /** Report on all that a jail did, on one page. Needs the role viewer. */
  getJailsByIdReport(id: string, query: { since?: string | undefined; until?: string | undefined; format?: "json" | "html" | "md" | undefined } = {}, how: Call = {}): Promise<Record<string, unknown>> {
    return this.json<Record<string, unknown>>({ method: "GET", path: `/jails/${part(id)}/report`, query, ...how });
  }

  /** Report on all that a jail did, on one page. Needs the role viewer. */
  getJailsByIdReportText(id: string, query: { since?: string | undefined; until?: string | undefined; format?: "json" | "html" | "md" | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/jails/${part(id)}/report`, query, accept: "text/markdown", ...how });
  }

  /** Report on all that a jail did, on one page. Needs the role viewer. */
  getJailsByIdReportHtml(id: string, query: { since?: string | undefined; until?: string | undefined; format?: "json" | "html" | "md" | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/jails/${part(id)}/report`, query, accept: "text/html", ...how });
  }

  /** Let a frozen jail go on. Needs the role operator. */
  postJailsByIdResume(id: string, how: Keyed = {}): Promise<wire.Jail> {
    return this.json<wire.Jail>({ method: "POST", path: `/jails/${part(id)}/resume`, ...how });
  }

  /** Take a jail back to a snapshot. What it did since stays in its log. Needs the role operator. */
  postJailsByIdRewind(id: string, body: wire.Rewind, how: Keyed = {}): Promise<wire.Jail> {
    return this.json<wire.Jail>({ method: "POST", path: `/jails/${part(id)}/rewind`, body, ...how });
  }

  /** Take a snapshot of a jail, which goes on. Needs the role operator. */
  postJailsByIdSnapshot(id: string, body: wire.TakeSnapshot | undefined, how: Keyed = {}): Promise<wire.Snapshot> {
    return this.json<wire.Snapshot>({ method: "POST", path: `/jails/${part(id)}/snapshot`, body, ...how });
  }

  /** List the snapshots of a jail, oldest first, also of one that is gone. Needs the role viewer. */
  getJailsByIdSnapshots(id: string, query: { limit?: number | undefined; after?: string | undefined; usage?: boolean | undefined } = {}, how: Call = {}): Promise<wire.SnapshotPage> {
    return this.json<wire.SnapshotPage>({ method: "GET", path: `/jails/${part(id)}/snapshots`, query, ...how });
  }

  /** Start a jail. Needs the role operator. */
  postJailsByIdStart(id: string, how: Keyed = {}): Promise<wire.Jail> {
    return this.json<wire.Jail>({ method: "POST", path: `/jails/${part(id)}/start`, ...how });
  }

  /** End every process of a jail. Its files stay. Needs the role operator. */
  postJailsByIdStop(id: string, body: wire.StopJail | undefined, how: Keyed = {}): Promise<wire.Jail> {
    return this.json<wire.Jail>({ method: "POST", path: `/jails/${part(id)}/stop`, body, ...how });
  }

  /** Show which system calls a jail made, how long they took and how they failed. Needs the role
   * viewer. */
  getJailsByIdSyscalls(id: string, query: { q?: string | undefined; type?: string | undefined; pid?: string | undefined; path?: string | undefined; host?: string | undefined; name?: string | undefined; ret?: string | undefined; comm?: string | undefined; op?: string | undefined; from?: string | undefined; to?: string | undefined; processes?: number | undefined; limit?: number | undefined } = {}, how: Call = {}): Promise<wire.Profile> {
    return this.json<wire.Profile>({ method: "GET", path: `/jails/${part(id)}/syscalls`, query, ...how });
  }

  /** Count what a jail did by time and kind, and by process. Needs the role viewer. */
  getJailsByIdTimeline(id: string, query: { q?: string | undefined; type?: string | undefined; pid?: string | undefined; path?: string | undefined; host?: string | undefined; name?: string | undefined; ret?: string | undefined; comm?: string | undefined; op?: string | undefined; from?: string | undefined; to?: string | undefined; buckets?: number | undefined; lanes?: number | undefined } = {}, how: Call = {}): Promise<wire.Timeline> {
    return this.json<wire.Timeline>({ method: "GET", path: `/jails/${part(id)}/timeline`, query, ...how });
  }

  /** Show which jails and snapshots come from which, as trees. Needs the role viewer. */
  getLineage(query: { jail?: string | undefined } = {}, how: Call = {}): Promise<wire.LineageJailPage> {
    return this.json<wire.LineageJailPage>({ method: "GET", path: "/lineage", query, ...how });
  }

  /** Log a browser in by the code of a link. */
  postLogin(body: wire.LogIn, how: Call = {}): Promise<wire.Me> {
    return this.json<wire.Me>({ method: "POST", path: "/login", body, ...how });
  }

  /** Make a link by which a browser logs in, once, within ten minutes. Needs the role admin. */
  postLoginLinks(body: wire.CreateLoginLink, how: Call = {}): Promise<wire.LoginLink> {
    return this.json<wire.LoginLink>({ method: "POST", path: "/login-links", body, ...how });
  }

  /** List the browsers that are logged in, oldest first. Needs the role admin. */
  getLogins(query: { limit?: number | undefined; after?: string | undefined } = {}, how: Call = {}): Promise<wire.LoginPage> {
    return this.json<wire.LoginPage>({ method: "GET", path: "/logins", query, ...how });
  }

  /** End a login, and the streams it reads. Needs the role admin. */
  deleteLoginsByLogin(login: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/logins/${part(login)}`, ...how });
  }

  /** End the login that the request's cookie is of. Needs the role viewer. */
  postLogout(how: Call = {}): Promise<void> {
    return this.none({ method: "POST", path: "/logout", ...how });
  }

  /** List what markets offer. Needs the role viewer. */
  getMarket(query: { q?: string | undefined } = {}, how: Call = {}): Promise<wire.OfferPage> {
    return this.json<wire.OfferPage>({ method: "GET", path: "/market", query, ...how });
  }

  /** Install what a market offers. Needs the role admin. */
  postMarketInstall(body: wire.MarketInstall, how: Keyed = {}): Promise<wire.Bundle> {
    return this.json<wire.Bundle>({ method: "POST", path: "/market/install", body, ...how });
  }

  /** List what is installed and offered in a newer version by its publisher. Needs the role viewer. */
  getMarketOutdated(how: Call = {}): Promise<wire.OfferPage> {
    return this.json<wire.OfferPage>({ method: "GET", path: "/market/outdated", ...how });
  }

  /** Show who the caller is. Needs the role viewer. */
  getMe(how: Call = {}): Promise<wire.Me> {
    return this.json<wire.Me>({ method: "GET", path: "/me", ...how });
  }

  /** Metrics for Prometheus. Needs the role viewer. */
  getMetrics(how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: "/metrics", accept: "text/plain", ...how });
  }

  /** List the notices that could not be delivered. Needs the role viewer. */
  getNoticesDead(how: Call = {}): Promise<wire.DeadNoticePage> {
    return this.json<wire.DeadNoticePage>({ method: "GET", path: "/notices/dead", ...how });
  }

  /** Try a notice anew. Needs the role operator. */
  postNoticesByNoticeRedeliver(notice: string, how: Keyed = {}): Promise<void> {
    return this.none({ method: "POST", path: `/notices/${part(notice)}/redeliver`, ...how });
  }

  /** This document. */
  getOpenapiJson(how: Call = {}): Promise<unknown> {
    return this.json<unknown>({ method: "GET", path: "/openapi.json", ...how });
  }

  /** Say what a policy would answer, and which rules were looked at. Nothing is asked or recorded.
   * Needs the role viewer. */
  postPolicyExplain(body: wire.Explain, how: Keyed = {}): Promise<wire.Explained> {
    return this.json<wire.Explained>({ method: "POST", path: "/policy/explain", body, ...how });
  }

  /** Say what in permission files does not do what it seems to. Needs the role viewer. */
  postPolicyLint(body: wire.Policy, how: Keyed = {}): Promise<wire.PolicyState> {
    return this.json<wire.PolicyState>({ method: "POST", path: "/policy/lint", body, ...how });
  }

  /** Explain a type of problem. */
  getProblemsByProblem(problem: string, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/problems/${part(problem)}`, accept: "text/html", ...how });
  }

  /** List whose bundles are taken, and up to what tier. Needs the role viewer. */
  getPublishers(how: Call = {}): Promise<wire.PublisherPage> {
    return this.json<wire.PublisherPage>({ method: "GET", path: "/publishers", ...how });
  }

  /** Have nothing taken any more, nor called, that a key has signed, or that has a digest. Needs the
   * role admin. */
  postPublishersRevoke(body: wire.RevokeTrust, how: Keyed = {}): Promise<void> {
    return this.none({ method: "POST", path: "/publishers/revoke", body, ...how });
  }

  /** Give a publisher a new key. What the old one signed until now stays good. Needs the role admin. */
  postPublishersRotate(body: wire.RotateKey, how: Keyed = {}): Promise<void> {
    return this.none({ method: "POST", path: "/publishers/rotate", body, ...how });
  }

  /** Have bundles taken that are signed by a key. Needs the role admin. */
  putPublishersByName(name: string, body: wire.AddPublisher, how: Call = {}): Promise<void> {
    return this.none({ method: "PUT", path: `/publishers/${part(name)}`, body, ...how });
  }

  /** Have none of a publisher's bundles taken any more, nor called. Needs the role admin. */
  deletePublishersByName(name: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/publishers/${part(name)}`, ...how });
  }

  /** List the browsers that are told, oldest first. Needs the role operator. */
  getPushBrowsers(how: Call = {}): Promise<wire.PushBrowserPage> {
    return this.json<wire.PushBrowserPage>({ method: "GET", path: "/push/browsers", ...how });
  }

  /** Have a browser told when a person is asked, as long as its login is good. In place of what it
   * had subscribed before. Needs the role operator. */
  postPushBrowsers(body: wire.SubscribeBrowser, how: Call = {}): Promise<wire.PushBrowser> {
    return this.json<wire.PushBrowser>({ method: "POST", path: "/push/browsers", body, ...how });
  }

  /** Have a browser told no more. Needs the role operator. */
  deletePushBrowsersByBrowser(browser: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/push/browsers/${part(browser)}`, ...how });
  }

  /** Show the key that a browser subscribes to pushes with. Needs the role viewer. */
  getPushKey(how: Call = {}): Promise<wire.PushKey> {
    return this.json<wire.PushKey>({ method: "GET", path: "/push/key", ...how });
  }

  /** List what was decided about a jail, oldest first: its audit trail. Needs the role viewer. */
  getSandboxByIdDecisions(id: string, query: { limit?: number | undefined; after?: number | undefined; observed?: "true" | "false" | undefined; tool?: string | undefined; tag?: "AUTONOMOUS" | "WHITELISTED" | "APPROVED" | "DENIED" | undefined; from?: string | undefined; until?: string | undefined } = {}, how: Call = {}): Promise<wire.TrailEntryPage> {
    return this.json<wire.TrailEntryPage>({ method: "GET", path: `/sandbox/${part(id)}/decisions`, query, ...how });
  }

  /** Say what an agent is about to do, and hear whether it may. Needs the role operator. */
  postSandboxByIdDecisions(id: string, body: wire.ClaimedDecision, how: Keyed = {}): Promise<wire.Verdict> {
    return this.json<wire.Verdict>({ method: "POST", path: `/sandbox/${part(id)}/decisions`, body, ...how });
  }

  /** List schedules, oldest first. Needs the role viewer. */
  getSchedules(query: { session_id?: string | undefined; limit?: number | undefined; after?: string | undefined } = {}, how: Call = {}): Promise<wire.SchedulePage> {
    return this.json<wire.SchedulePage>({ method: "GET", path: "/schedules", query, ...how });
  }

  /** Say when a schedule would be due that is made now. None is made. Needs the role viewer. */
  getSchedulesTimes(query: { schedule?: string | undefined; time_zone?: string | undefined } = {}, how: Call = {}): Promise<wire.Times> {
    return this.json<wire.Times>({ method: "GET", path: "/schedules/times", query, ...how });
  }

  /** Show a schedule, and its next ten times. Needs the role viewer. */
  getSchedulesBySchedule(schedule: string, how: Call = {}): Promise<wire.Schedule> {
    return this.json<wire.Schedule>({ method: "GET", path: `/schedules/${part(schedule)}`, ...how });
  }

  /** Change when a schedule makes runs. What is not named stays as it is. Needs the role operator. */
  patchSchedulesBySchedule(schedule: string, body: wire.EditSchedule, how: Call = {}): Promise<wire.Schedule> {
    return this.json<wire.Schedule>({ method: "PATCH", path: `/schedules/${part(schedule)}`, body, ...how });
  }

  /** Remove a schedule. Runs that it has made stay. Needs the role operator. */
  deleteSchedulesBySchedule(schedule: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/schedules/${part(schedule)}`, ...how });
  }

  /** Have a schedule make no runs. Needs the role operator. */
  postSchedulesBySchedulePause(schedule: string, how: Keyed = {}): Promise<wire.Schedule> {
    return this.json<wire.Schedule>({ method: "POST", path: `/schedules/${part(schedule)}/pause`, ...how });
  }

  /** Have it make runs again. Needs the role operator. */
  postSchedulesByScheduleResume(schedule: string, how: Keyed = {}): Promise<wire.Schedule> {
    return this.json<wire.Schedule>({ method: "POST", path: `/schedules/${part(schedule)}/resume`, ...how });
  }

  /** List secrets by name, with who may have them. Nobody is shown their values. Needs the role
   * viewer. */
  getSecrets(how: Call = {}): Promise<wire.SecretPage> {
    return this.json<wire.SecretPage>({ method: "GET", path: "/secrets", ...how });
  }

  /** Seal all secrets with a new key, and destroy the old one. Needs the role admin. */
  postSecretsRotate(how: Keyed = {}): Promise<void> {
    return this.none({ method: "POST", path: "/secrets/rotate", ...how });
  }

  /** Keep a secret, sealed, or refer to one that others keep. Needs the role admin. */
  putSecretsByName(name: string, body: wire.PutSecret, how: Call = {}): Promise<void> {
    return this.none({ method: "PUT", path: `/secrets/${part(name)}`, body, ...how });
  }

  /** Remove a secret, from all who have it too. Needs the role admin. */
  deleteSecretsByName(name: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/secrets/${part(name)}`, ...how });
  }

  /** Let a jail have a secret, as a file or in requests on their way out. Needs the role operator. */
  postSecretsByNameGrants(name: string, body: wire.GrantSecret, how: Keyed = {}): Promise<wire.Grant> {
    return this.json<wire.Grant>({ method: "POST", path: `/secrets/${part(name)}/grants`, body, ...how });
  }

  /** List skills, by name. Needs the role viewer. */
  getSkills(how: Call = {}): Promise<wire.SkillPage> {
    return this.json<wire.SkillPage>({ method: "GET", path: "/skills", ...how });
  }

  /** Take up a skill, in place of one of the same name. One that names a capability that nobody has
   * allowed is refused. Needs the role operator. */
  postSkills(body: wire.AddSkill, how: Keyed = {}): Promise<wire.Skill> {
    return this.json<wire.Skill>({ method: "POST", path: "/skills", body, ...how });
  }

  /** Show a skill as an agent reads it, with its capabilities as tools. Needs the role viewer. */
  getSkillsByName(name: string, how: Call = {}): Promise<wire.Skill> {
    return this.json<wire.Skill>({ method: "GET", path: `/skills/${part(name)}`, ...how });
  }

  /** Forget a skill. Its capabilities stay. Needs the role operator. */
  deleteSkillsByName(name: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/skills/${part(name)}`, ...how });
  }

  /** List snapshots, oldest first. Needs the role viewer. */
  getSnapshots(query: { limit?: number | undefined; after?: string | undefined; usage?: boolean | undefined } = {}, how: Call = {}): Promise<wire.SnapshotPage> {
    return this.json<wire.SnapshotPage>({ method: "GET", path: "/snapshots", query, ...how });
  }

  /** Keep a snapshot that was exported. Its archive is trusted like a program that runs as root.
   * Needs the role admin. */
  postSnapshotsImport(content: Content, query: { files_only?: boolean | undefined; force?: boolean | undefined } = {}, how: Call = {}): Promise<wire.Snapshot> {
    return this.json<wire.Snapshot>({ method: "POST", path: "/snapshots/import", content, contentType: "application/octet-stream", query, ...how });
  }

  /** Show a snapshot and what it takes on the disk. Needs the role viewer. */
  getSnapshotsBySid(sid: string, how: Call = {}): Promise<wire.Snapshot> {
    return this.json<wire.Snapshot>({ method: "GET", path: `/snapshots/${part(sid)}`, ...how });
  }

  /** Remove a snapshot. What jails and other snapshots stand on stays. Needs the role operator. */
  deleteSnapshotsBySid(sid: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/snapshots/${part(sid)}`, ...how });
  }

  /** Make jails from a snapshot. Some may fail; the answer says which. Needs the role operator. */
  postSnapshotsBySidBranch(sid: string, body: wire.Branch | undefined, how: Keyed = {}): Promise<wire.Branches> {
    return this.json<wire.Branches>({ method: "POST", path: `/snapshots/${part(sid)}/branch`, body, ...how });
  }

  /** Show what differs between a snapshot and the jail it was taken of, another jail or another
   * snapshot. Needs the role viewer. */
  getSnapshotsBySidDiff(sid: string, query: { against?: string | undefined; only?: string | undefined; content?: "unified" | undefined; format?: "json" | "text" | "html" | undefined } = {}, how: Call = {}): Promise<wire.Comparison> {
    return this.json<wire.Comparison>({ method: "GET", path: `/snapshots/${part(sid)}/diff`, query, ...how });
  }

  /** Show what differs between a snapshot and the jail it was taken of, another jail or another
   * snapshot. Needs the role viewer. */
  getSnapshotsBySidDiffText(sid: string, query: { against?: string | undefined; only?: string | undefined; content?: "unified" | undefined; format?: "json" | "text" | "html" | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/snapshots/${part(sid)}/diff`, query, accept: "text/plain", ...how });
  }

  /** Show what differs between a snapshot and the jail it was taken of, another jail or another
   * snapshot. Needs the role viewer. */
  getSnapshotsBySidDiffHtml(sid: string, query: { against?: string | undefined; only?: string | undefined; content?: "unified" | undefined; format?: "json" | "text" | "html" | undefined } = {}, how: Call = {}): Promise<string> {
    return this.text({ method: "GET", path: `/snapshots/${part(sid)}/diff`, query, accept: "text/html", ...how });
  }

  /** Download a snapshot, memory and files, as an archive that another host can import. Needs the
   * role operator. */
  getSnapshotsBySidExport(sid: string, how: Call = {}): Promise<Answer> {
    return this.open({ method: "GET", path: `/snapshots/${part(sid)}/export`, accept: "application/zstd", ...how });
  }

  /** Make a jail from a snapshot, as it was. Needs the role operator. */
  postSnapshotsBySidRestore(sid: string, body: wire.Overrides | undefined, how: Keyed = {}): Promise<wire.Jail> {
    return this.json<wire.Jail>({ method: "POST", path: `/snapshots/${part(sid)}/restore`, body, ...how });
  }

  /** Make frozen copies of a snapshot ahead of need. Needs the role operator. */
  postSnapshotsBySidWarm(sid: string, body: wire.Warm, how: Keyed = {}): Promise<wire.Warmed> {
    return this.json<wire.Warmed>({ method: "POST", path: `/snapshots/${part(sid)}/warm`, body, ...how });
  }

  /** Show what the daemon keeps on the disk, by what it is for, and the jails that it has made ahead
   * of need. Needs the role viewer. */
  getStorage(how: Call = {}): Promise<wire.Storage> {
    return this.json<wire.Storage>({ method: "GET", path: "/storage", ...how });
  }

  /** List tokens, oldest first. Needs the role admin. */
  getTokens(query: { limit?: number | undefined; after?: string | undefined } = {}, how: Call = {}): Promise<wire.TokenPage> {
    return this.json<wire.TokenPage>({ method: "GET", path: "/tokens", query, ...how });
  }

  /** Make a bearer token. The answer alone has its secret. Needs the role admin. */
  postTokens(body: wire.CreateToken, how: Call = {}): Promise<wire.Token> {
    return this.json<wire.Token>({ method: "POST", path: "/tokens", body, ...how });
  }

  /** Revoke a token. Needs the role admin. */
  deleteTokensById(id: string, how: Call = {}): Promise<void> {
    return this.none({ method: "DELETE", path: `/tokens/${part(id)}`, ...how });
  }

  /** Show what runs. Needs the role viewer. */
  getVersion(how: Call = {}): Promise<wire.Version> {
    return this.json<wire.Version>({ method: "GET", path: "/version", ...how });
  }
}
