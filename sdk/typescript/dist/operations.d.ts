import { type Answer, type Content, Transport } from "./transport.js";
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
export declare class Operations extends Transport {
    /** Show what a link would decide. */
    getAnswersByToken(token: string, how?: Call): Promise<string>;
    /** Decide what a link decides, once. */
    postAnswersByToken(token: string, how?: Call): Promise<string>;
    /** List what waits for a person, oldest first, or what no longer does, newest first. Needs the role
     * viewer. */
    getApprovals(query?: {
        state?: "pending" | "answered" | "expired" | "withdrawn" | "all" | undefined;
        jail?: string | undefined;
        limit?: number | undefined;
    }, how?: Call): Promise<wire.ApprovalPage>;
    /** Stream what happens to requests, what waits already first. Needs the role viewer. */
    getApprovalsEvents(how?: Resumed): Promise<AsyncIterable<ServerEvent>>;
    /** Show a request, at once or as soon as it is settled. Needs the role viewer. */
    getApprovalsByApproval(approval: string, query?: {
        wait_ms?: number | undefined;
        last?: number | undefined;
    }, how?: Call): Promise<wire.Approval>;
    /** Answer a request. The first answer counts; the same again is no error. Needs the role operator. */
    postApprovalsByApproval(approval: string, body: wire.AnswerApproval, how?: Keyed): Promise<wire.Approval>;
    /** End a request that nobody needs the answer of. Needs the role operator. */
    deleteApprovalsByApproval(approval: string, how?: Call): Promise<wire.Approval>;
    /** List what can isolate on this host. Needs the role viewer. */
    getBackends(how?: Call): Promise<wire.BackendPage>;
    /** List bundles that are installed, or that a person is asked about, by name. Needs the role
     * viewer. */
    getBundles(how?: Call): Promise<wire.BundlePage>;
    /** Install a bundle. What is wrong with it is said at once; then a person is asked. Needs the role
     * admin. */
    postBundles(content: Content, query: {
        name: string;
    }, how?: Call): Promise<wire.Bundle>;
    /** Remove a bundle with its capabilities and its skill. Needs the role admin. */
    deleteBundlesByName(name: string, how?: Call): Promise<void>;
    /** Show what became of a call, of those that were last. Needs the role viewer. */
    getCallsByCall(call: string, how?: Call): Promise<wire.Called>;
    /** List the versions of all capabilities, by id, the newest first. Needs the role viewer. */
    getCapabilities(how?: Call): Promise<wire.CapabilityPage>;
    /** Register the capabilities of a manifest. About what they may do that is new a person is asked.
     * Needs the role admin. */
    postCapabilities(body: wire.Register, how?: Keyed): Promise<wire.CapabilityPage>;
    /** Start somebody's server of the Model Context Protocol in a jail, and show manifests of its
     * tools, to be registered. Needs the role admin. */
    postCapabilitiesImport(body: wire.ImportServer, how?: Keyed): Promise<wire.ImportedServer>;
    /** Show a version of a capability, with its manifest and its schemas. Needs the role viewer. */
    getCapabilitiesByCapability(capability: string, query?: {
        version?: string | undefined;
    }, how?: Call): Promise<wire.Capability>;
    /** Remove a version of a capability, and what was kept for it. Needs the role admin. */
    deleteCapabilitiesByCapability(capability: string, query?: {
        version?: string | undefined;
    }, how?: Call): Promise<void>;
    /** Call a capability. That it failed is an answer; that it was refused is an error. Needs the role
     * operator. */
    postCapabilitiesByCapabilityCall(capability: string, body: wire.Call, how?: Keyed): Promise<wire.Called>;
    /** Have a version no longer be called, from now on. Needs the role operator. */
    postCapabilitiesByCapabilityRevoke(capability: string, body: wire.RevokeCapability, query?: {
        version?: string | undefined;
    }, how?: Keyed): Promise<wire.Capability>;
    /** Say whether a version, by its digest, may run on the host itself. Needs the role admin. */
    postCapabilitiesByCapabilityTrust(capability: string, body: wire.TrustCapability, query?: {
        version?: string | undefined;
    }, how?: Keyed): Promise<wire.Capability>;
    /** List entries of the causal chain, oldest first or newest first. Needs the role viewer. */
    getChain(query?: {
        limit?: number | undefined;
        after?: number | undefined;
        session?: string | undefined;
        run?: string | undefined;
        jail?: string | undefined;
        capability?: string | undefined;
        kind?: string | undefined;
        parent?: number | undefined;
        under?: number | undefined;
        from?: string | undefined;
        until?: string | undefined;
        newest?: boolean | undefined;
    }, how?: Call): Promise<wire.ChainEntryPage>;
    /** Prove that the chain contains one that an earlier checkpoint was signed over. Needs the role
     * viewer. */
    postChainConsistency(body: wire.ChainFrom, how?: Keyed): Promise<wire.ChainConsistency>;
    /** Download the chain with its checkpoints and its key, so that others can verify it. Needs the
     * role viewer. */
    getChainExport(how?: Call): Promise<AsyncIterable<wire.ChainEntry>>;
    /** Show how long the chain is, its key, and its newest checkpoint. Needs the role viewer. */
    getChainHead(how?: Call): Promise<wire.ChainHead>;
    /** Verify the chain: entries, links, tree and signatures. Needs the role viewer. */
    getChainVerify(query?: {
        all?: boolean | undefined;
    }, how?: Call): Promise<wire.ChainReport>;
    /** Show an entry of the chain. Needs the role viewer. */
    getChainBySeq(seq: string, how?: Call): Promise<wire.ChainEntry>;
    /** List what caused an entry, the first cause first. Needs the role viewer. */
    getChainBySeqCauses(seq: string, how?: Call): Promise<wire.ChainEntryPage>;
    /** Prove that an entry is in the chain, to who has the public key. Needs the role viewer. */
    getChainBySeqProof(seq: string, how?: Call): Promise<wire.ChainProof>;
    /** Make a recorded call of a pure capability again, and compare what comes out. Needs the role
     * operator. */
    postChainBySeqReplay(seq: string, how?: Keyed): Promise<wire.Replayed>;
    /** Stream what happens in a session, from its first event on or from after a number or
     * Last-Event-ID. Over a WebSocket each text frame is an event. Needs the role viewer. */
    getChatEventsBySession(session: string, query?: {
        after?: number | undefined;
    }, how?: Resumed): Promise<AsyncIterable<ServerEvent>>;
    /** List the messages of a session that went one way, oldest first. Needs the role viewer. */
    getChatInbox(query?: {
        session_id?: string | undefined;
        direction?: "in" | "out" | undefined;
        limit?: number | undefined;
        after?: number | undefined;
    }, how?: Call): Promise<wire.MessagePage>;
    /** List runs, newest first. Needs the role viewer. */
    getChatRun(query?: {
        session_id?: string | undefined;
        state?: "scheduled" | "active" | "paused" | "done" | "failed" | "cancelled" | undefined;
        parent?: string | undefined;
        limit?: number | undefined;
        after?: string | undefined;
    }, how?: Call): Promise<wire.RunPage>;
    /** Have an agent pursue a goal: now, at a time, or by a schedule. Needs the role operator. */
    postChatRun(body: wire.StartRun, how?: Keyed): Promise<wire.Run>;
    /** Show a run. Needs the role viewer. */
    getChatRunByRun(run: string, how?: Call): Promise<wire.Run>;
    /** List what a run has done, in its order. Needs the role viewer. */
    getChatRunByRunActions(run: string, query?: {
        limit?: number | undefined;
        after?: number | undefined;
    }, how?: Call): Promise<wire.RunActionPage>;
    /** End a run and those that are a part of it; of one that waits for its schedule, the schedule.
     * Needs the role operator. */
    postChatRunByRunCancel(run: string, how?: Keyed): Promise<wire.Run>;
    /** Keep a run as it is, with its jail. Needs the role operator. */
    postChatRunByRunCheckpoint(run: string, body: wire.TakeCheckpoint | undefined, how?: Keyed): Promise<wire.Checkpoint>;
    /** List the checkpoints of a run, oldest first. Needs the role viewer. */
    getChatRunByRunCheckpoints(run: string, query?: {
        limit?: number | undefined;
        after?: number | undefined;
    }, how?: Call): Promise<wire.CheckpointPage>;
    /** Show a checkpoint, with what the agent keeps of itself. Needs the role viewer. */
    getChatRunByRunCheckpointsByCheckpoint(run: string, checkpoint: string, how?: Call): Promise<wire.Checkpoint>;
    /** Have a run wait. Its jail stands still. Needs the role operator. */
    postChatRunByRunPause(run: string, how?: Keyed): Promise<wire.Run>;
    /** Have a run go on where it was, go back to a checkpoint, or go on as others from one. Needs the
     * role operator. */
    postChatRunByRunResume(run: string, body: wire.ResumeRun | undefined, how?: Keyed): Promise<wire.Resumed>;
    /** Change a run's state by hand. Needs the role operator. */
    postChatRunByRunTransition(run: string, body: wire.MoveRun, how?: Keyed): Promise<wire.Run>;
    /** Tell a session's agent something. Needs the role operator. */
    postChatSend(body: wire.SendMessage, how?: Keyed): Promise<wire.Message>;
    /** List sessions, newest first. Needs the role viewer. */
    getChatSession(query?: {
        limit?: number | undefined;
        after?: string | undefined;
        state?: "open" | "closed" | undefined;
        group?: string | undefined;
    }, how?: Call): Promise<wire.SessionPage>;
    /** Open a session, or find the one of that name. Needs the role operator. */
    postChatSession(body: wire.OpenSession, how?: Keyed): Promise<wire.Session>;
    /** Show a session. Needs the role viewer. */
    getChatSessionBySession(session: string, how?: Call): Promise<wire.Session>;
    /** Close a session. What was said in it stays. Needs the role operator. */
    deleteChatSessionBySession(session: string, how?: Call): Promise<void>;
    /** List what joins sessions to others, and what of its deliveries waits. Needs the role viewer. */
    getConnectors(how?: Call): Promise<wire.ConnectorPage>;
    /** List what is or was to be delivered to a connector, by when it is due. Needs the role viewer. */
    getConnectorsByConnectorDeliveries(connector: string, query?: {
        state?: "pending" | "delivered" | "dead" | undefined;
        limit?: number | undefined;
        after?: string | undefined;
    }, how?: Call): Promise<wire.DeliveryPage>;
    /** Try a delivery anew that failed too often. Needs the role operator. */
    postDeliveriesByDeliveryRedeliver(delivery: string, how?: Keyed): Promise<wire.Delivery>;
    /** Probe what this host can do, and what to do about what it cannot. Needs the role viewer. */
    getDoctor(how?: Call): Promise<wire.ProbePage>;
    /** Make a key for clients of the E2B protocol. The answer alone has it. Needs the role admin. */
    postE2bKeys(body: wire.CreateE2BKey, how?: Call): Promise<wire.E2BKey>;
    /** Stream what happens, and how jails fare. The topics jail, approval, run, notice, step, decision
     * and egress are entries of the chain, and after a Last-Event-ID go on behind it; jails and
     * schedules are as of now. Needs the role viewer. */
    getFeed(query?: {
        topics?: string | undefined;
    }, how?: Resumed): Promise<AsyncIterable<ServerEvent>>;
    /** Take a grant away, at once. Needs the role operator. */
    deleteGrantsByGrant(grant: string, how?: Call): Promise<void>;
    /** Say that the daemon lives. */
    getHealth(how?: Call): Promise<wire.Health>;
    /** Say that the daemon can serve. */
    getHealthReady(how?: Call): Promise<wire.Health>;
    /** Tell a session something from outside, signed as the connector wants it: by the Standard
     * Webhooks or as GitHub signs. */
    postHooksByConnector(connector: string, how?: Call): Promise<wire.Received>;
    /** List the root filesystems that are ready, the newest first. Needs the role viewer. */
    getImages(query?: {
        limit?: number | undefined;
        after?: string | undefined;
    }, how?: Call): Promise<wire.ImagePage>;
    /** Make a root filesystem ready, so that the first jail on it need not wait. Needs the role
     * operator. */
    postImages(body: wire.Rootfs, how?: Keyed): Promise<wire.Prepared>;
    /** Remove the root filesystems that no jail uses, and list them. Needs the role admin. */
    postImagesPrune(how?: Keyed): Promise<wire.ImagePage>;
    /** List jails, oldest first. Needs the role viewer. */
    getJails(query?: {
        limit?: number | undefined;
        after?: string | undefined;
        state?: "created" | "starting" | "running" | "paused" | "stopped" | "failed" | undefined;
        name?: string | undefined;
        label?: string[] | undefined;
    }, how?: Call): Promise<wire.JailPage>;
    /** Make a jail. Needs the role operator. */
    postJails(body: wire.CreateJail | undefined, how?: Keyed): Promise<wire.Jail>;
    /** Show a jail and what it uses. Needs the role viewer. */
    getJailsById(id: string, how?: Call): Promise<wire.Jail>;
    /** Remove a jail, whatever its state, and its files. Needs the role operator. */
    deleteJailsById(id: string, query?: {
        snapshots?: boolean | undefined;
    }, how?: Call): Promise<void>;
    /** Show how a jail was at an instant: its processes, the files it had changed, and the nearest
     * snapshot. Needs the role viewer. */
    getJailsByIdAt(id: string, query?: {
        ts?: string | undefined;
        all?: boolean | undefined;
        limit?: number | undefined;
    }, how?: Call): Promise<wire.Past>;
    /** Take a snapshot of a jail and make jails from it. Needs the role operator. */
    postJailsByIdBranch(id: string, body: wire.Branch | undefined, how?: Keyed): Promise<wire.Branches>;
    /** Show whom a jail talked to, by host, and what was decided about it on its way out. Needs the
     * role viewer. */
    getJailsByIdConnections(id: string, query?: {
        from?: string | undefined;
        to?: string | undefined;
        limit?: number | undefined;
    }, how?: Call): Promise<wire.Connections>;
    /** Ask whether something may be done, and wait for a person if one is to be asked. Needs the role
     * operator. */
    postJailsByIdDecide(id: string, body: wire.Decide, how?: Keyed): Promise<wire.Verdict>;
    /** Show what differs between a jail and another, or a snapshot. Needs the role viewer. */
    getJailsByIdDiff(id: string, query?: {
        against?: string | undefined;
        only?: string | undefined;
        content?: "unified" | undefined;
        format?: "json" | "text" | "html" | undefined;
    }, how?: Call): Promise<wire.Comparison>;
    /** Show what differs between a jail and another, or a snapshot. Needs the role viewer. */
    getJailsByIdDiffText(id: string, query?: {
        against?: string | undefined;
        only?: string | undefined;
        content?: "unified" | undefined;
        format?: "json" | "text" | "html" | undefined;
    }, how?: Call): Promise<string>;
    /** Show what differs between a jail and another, or a snapshot. Needs the role viewer. */
    getJailsByIdDiffHtml(id: string, query?: {
        against?: string | undefined;
        only?: string | undefined;
        content?: "unified" | undefined;
        format?: "json" | "text" | "html" | undefined;
    }, how?: Call): Promise<string>;
    /** Show what may leave a jail, and what did, in numbers. Needs the role viewer. */
    getJailsByIdEgress(id: string, how?: Call): Promise<wire.EgressState>;
    /** Change what may leave a jail, at once. What is carried and not allowed any more is cut. Needs
     * the role operator. */
    putJailsByIdEgress(id: string, body: wire.Egress, how?: Call): Promise<wire.EgressState>;
    /** Stream what a jail does, from its first record on or from where a filter, a time or
     * Last-Event-ID says. Each event's id is its record's seq; 'end' comes last. With offset or at,
     * answer with a window of it. Needs the role viewer. */
    getJailsByIdEvents(id: string, query?: {
        q?: string | undefined;
        type?: string | undefined;
        pid?: string | undefined;
        path?: string | undefined;
        host?: string | undefined;
        name?: string | undefined;
        ret?: string | undefined;
        comm?: string | undefined;
        op?: string | undefined;
        since?: string | undefined;
        until?: string | undefined;
        after?: number | undefined;
        tail?: number | undefined;
        limit?: number | undefined;
        follow?: boolean | undefined;
        offset?: number | undefined;
        at?: string | undefined;
        format?: "sse" | "ndjson" | undefined;
    }, how?: Call): Promise<wire.EventWindow>;
    /** Stream what a jail does, from its first record on or from where a filter, a time or
     * Last-Event-ID says. Each event's id is its record's seq; 'end' comes last. With offset or at,
     * answer with a window of it. Needs the role viewer. */
    getJailsByIdEventsStream(id: string, query?: {
        q?: string | undefined;
        type?: string | undefined;
        pid?: string | undefined;
        path?: string | undefined;
        host?: string | undefined;
        name?: string | undefined;
        ret?: string | undefined;
        comm?: string | undefined;
        op?: string | undefined;
        since?: string | undefined;
        until?: string | undefined;
        after?: number | undefined;
        tail?: number | undefined;
        limit?: number | undefined;
        follow?: boolean | undefined;
        offset?: number | undefined;
        at?: string | undefined;
        format?: "sse" | "ndjson" | undefined;
    }, how?: Resumed): Promise<AsyncIterable<ServerEvent>>;
    /** Stream what a jail does, from its first record on or from where a filter, a time or
     * Last-Event-ID says. Each event's id is its record's seq; 'end' comes last. With offset or at,
     * answer with a window of it. Needs the role viewer. */
    getJailsByIdEventsLines(id: string, query?: {
        q?: string | undefined;
        type?: string | undefined;
        pid?: string | undefined;
        path?: string | undefined;
        host?: string | undefined;
        name?: string | undefined;
        ret?: string | undefined;
        comm?: string | undefined;
        op?: string | undefined;
        since?: string | undefined;
        until?: string | undefined;
        after?: number | undefined;
        tail?: number | undefined;
        limit?: number | undefined;
        follow?: boolean | undefined;
        offset?: number | undefined;
        at?: string | undefined;
        format?: "sse" | "ndjson" | undefined;
    }, how?: Call): Promise<AsyncIterable<wire.Event>>;
    /** Run a command and wait for it, stream its output, or detach from it. Needs the role operator. */
    postJailsByIdExec(id: string, body: wire.ExecRequest, how?: Keyed): Promise<wire.Exec>;
    /** Run a command and wait for it, stream its output, or detach from it. Needs the role operator. */
    postJailsByIdExecStream(id: string, body: wire.ExecRequest, how?: Keyed): Promise<AsyncIterable<ServerEvent>>;
    /** List the commands of a jail that are still known, oldest first. Needs the role viewer. */
    getJailsByIdExecs(id: string, query?: {
        limit?: number | undefined;
        after?: string | undefined;
    }, how?: Call): Promise<wire.ExecPage>;
    /** Show a command and its output, or follow it as events. Needs the role viewer. */
    getJailsByIdExecsByExec(id: string, exec: string, query?: {
        from?: number | undefined;
        lossless?: boolean | undefined;
    }, how?: Call): Promise<wire.Exec>;
    /** Show a command and its output, or follow it as events. Needs the role viewer. */
    getJailsByIdExecsByExecStream(id: string, exec: string, query?: {
        from?: number | undefined;
        lossless?: boolean | undefined;
    }, how?: Resumed): Promise<AsyncIterable<ServerEvent>>;
    /** Change the size of a command's terminal. Needs the role operator. */
    postJailsByIdExecsByExecResize(id: string, exec: string, body: wire.Size, how?: Keyed): Promise<void>;
    /** Send a signal to a command's process group. Needs the role operator. */
    postJailsByIdExecsByExecSignal(id: string, exec: string, body: wire.Signal, how?: Keyed): Promise<void>;
    /** Write to a command's standard input. Needs the role operator. */
    postJailsByIdExecsByExecStdin(id: string, exec: string, content: Content, query?: {
        close?: boolean | undefined;
    }, how?: Call): Promise<void>;
    /** Read a file, list a directory, describe either, or take a tar archive of it. Needs the role
     * viewer. */
    getJailsByIdFiles(id: string, query: {
        path: string;
        list?: boolean | undefined;
        stat?: boolean | undefined;
        tar?: boolean | undefined;
        offset?: number | undefined;
        bytes?: number | undefined;
        limit?: number | undefined;
        after?: string | undefined;
    }, how?: Call): Promise<wire.File | wire.FilePage>;
    /** Read a file, list a directory, describe either, or take a tar archive of it. Needs the role
     * viewer. */
    getJailsByIdFilesBytes(id: string, query: {
        path: string;
        list?: boolean | undefined;
        stat?: boolean | undefined;
        tar?: boolean | undefined;
        offset?: number | undefined;
        bytes?: number | undefined;
        limit?: number | undefined;
        after?: string | undefined;
    }, how?: Call): Promise<Answer>;
    /** Write a file, make a directory, or extract a tar archive. Needs the role operator. */
    putJailsByIdFiles(id: string, content: Content, query: {
        path: string;
        tar?: boolean | undefined;
        mkdir?: boolean | undefined;
        mode?: string | undefined;
        append?: boolean | undefined;
        parents?: boolean | undefined;
        uid?: number | undefined;
        gid?: number | undefined;
    }, how?: Call): Promise<wire.File>;
    /** Remove a file or directory. Needs the role operator. */
    deleteJailsByIdFiles(id: string, query: {
        path: string;
        recursive?: boolean | undefined;
    }, how?: Call): Promise<void>;
    /** Rename a file or directory. Needs the role operator. */
    postJailsByIdFilesMove(id: string, body: wire.MoveFile, how?: Keyed): Promise<void>;
    /** Stream changes below a path as they happen. Needs the role viewer. */
    getJailsByIdFilesWatch(id: string, query: {
        path: string;
        recursive?: boolean | undefined;
    }, how?: Resumed): Promise<AsyncIterable<ServerEvent>>;
    /** List what a jail changed in its root filesystem or its workspace, or how it differs from a
     * snapshot or another jail, by path. Needs the role viewer. */
    getJailsByIdFsDiff(id: string, query?: {
        limit?: number | undefined;
        after?: string | undefined;
        against?: string | undefined;
        workspace?: boolean | undefined;
        path?: string | undefined;
        content?: "unified" | undefined;
    }, how?: Call): Promise<wire.ChangePage>;
    /** List what a jail changed in its root filesystem or its workspace, or how it differs from a
     * snapshot or another jail, by path. Needs the role viewer. */
    getJailsByIdFsDiffText(id: string, query?: {
        limit?: number | undefined;
        after?: string | undefined;
        against?: string | undefined;
        workspace?: boolean | undefined;
        path?: string | undefined;
        content?: "unified" | undefined;
    }, how?: Call): Promise<string>;
    /** List what a jail changed in its root filesystem or its workspace, or how it differs from a
     * snapshot or another jail, by path. Needs the role viewer. */
    getJailsByIdFsDiffHtml(id: string, query?: {
        limit?: number | undefined;
        after?: string | undefined;
        against?: string | undefined;
        workspace?: boolean | undefined;
        path?: string | undefined;
        content?: "unified" | undefined;
    }, how?: Call): Promise<string>;
    /** Show what a jail may use, and what became of requests for more. Needs the role viewer. */
    getJailsByIdLimits(id: string, query?: {
        after?: number | undefined;
    }, how?: Call): Promise<wire.JailLimits>;
    /** Change what a jail may use, while it runs. What is not named stays as it is. Needs the role
     * operator. */
    patchJailsByIdLimits(id: string, body: wire.Limits, how?: Call): Promise<wire.Jail>;
    /** List whom a jail talked to, in the order it began. Needs the role viewer. */
    getJailsByIdNetworkLog(id: string, query?: {
        limit?: number | undefined;
        after?: string | undefined;
        since?: string | undefined;
        until?: string | undefined;
        packets?: boolean | undefined;
    }, how?: Call): Promise<wire.Flows>;
    /** List whom a jail talked to, in the order it began. Needs the role viewer. */
    getJailsByIdNetworkLogLines(id: string, query?: {
        limit?: number | undefined;
        after?: string | undefined;
        since?: string | undefined;
        until?: string | undefined;
        packets?: boolean | undefined;
    }, how?: Call): Promise<AsyncIterable<wire.Event>>;
    /** List whom a jail talked to, in the order it began. Needs the role viewer. */
    getJailsByIdNetworkLogText(id: string, query?: {
        limit?: number | undefined;
        after?: string | undefined;
        since?: string | undefined;
        until?: string | undefined;
        packets?: boolean | undefined;
    }, how?: Call): Promise<string>;
    /** Download what is kept of a jail's packets. Needs the role viewer. */
    getJailsByIdNetworkPcap(id: string, how?: Call): Promise<Answer>;
    /** Freeze a jail. Needs the role operator. */
    postJailsByIdPause(id: string, how?: Keyed): Promise<wire.Jail>;
    /** Show a jail's policy, how it is read, and what in it does not do what it seems to. Needs the
     * role viewer. */
    getJailsByIdPolicy(id: string, how?: Call): Promise<wire.PolicyState>;
    /** Give a jail another policy, at once. Needs the role operator. */
    putJailsByIdPolicy(id: string, body: wire.Policy, how?: Call): Promise<wire.PolicyState>;
    /** Take a jail's policy away. Nothing is allowed any more that is asked about. Needs the role
     * operator. */
    deleteJailsByIdPolicy(id: string, how?: Call): Promise<void>;
    /** Change a jail's level of autonomy, at once: down, or up to its ceiling. Needs the role operator. */
    postJailsByIdPolicyLevel(id: string, body: wire.PolicyLevel, how?: Keyed): Promise<wire.PolicyState>;
    /** Show the tree of a jail's processes, as it is or as it was. Needs the role viewer. */
    getJailsByIdProcesses(id: string, query?: {
        at?: string | undefined;
        all?: boolean | undefined;
    }, how?: Call): Promise<wire.Processes>;
    /** Show the tree of a jail's processes, as it is or as it was. Needs the role viewer. */
    getJailsByIdProcessesText(id: string, query?: {
        at?: string | undefined;
        all?: boolean | undefined;
    }, how?: Call): Promise<string>;
    /** Report on all that a jail did, on one page. Needs the role viewer. */
    getJailsByIdReport(id: string, query?: {
        since?: string | undefined;
        until?: string | undefined;
        format?: "json" | "html" | "md" | undefined;
    }, how?: Call): Promise<Record<string, unknown>>;
    /** Report on all that a jail did, on one page. Needs the role viewer. */
    getJailsByIdReportText(id: string, query?: {
        since?: string | undefined;
        until?: string | undefined;
        format?: "json" | "html" | "md" | undefined;
    }, how?: Call): Promise<string>;
    /** Report on all that a jail did, on one page. Needs the role viewer. */
    getJailsByIdReportHtml(id: string, query?: {
        since?: string | undefined;
        until?: string | undefined;
        format?: "json" | "html" | "md" | undefined;
    }, how?: Call): Promise<string>;
    /** Let a frozen jail go on. Needs the role operator. */
    postJailsByIdResume(id: string, how?: Keyed): Promise<wire.Jail>;
    /** Take a jail back to a snapshot. What it did since stays in its log. Needs the role operator. */
    postJailsByIdRewind(id: string, body: wire.Rewind, how?: Keyed): Promise<wire.Jail>;
    /** Take a snapshot of a jail, which goes on. Needs the role operator. */
    postJailsByIdSnapshot(id: string, body: wire.TakeSnapshot | undefined, how?: Keyed): Promise<wire.Snapshot>;
    /** List the snapshots of a jail, oldest first, also of one that is gone. Needs the role viewer. */
    getJailsByIdSnapshots(id: string, query?: {
        limit?: number | undefined;
        after?: string | undefined;
        usage?: boolean | undefined;
    }, how?: Call): Promise<wire.SnapshotPage>;
    /** Start a jail. Needs the role operator. */
    postJailsByIdStart(id: string, how?: Keyed): Promise<wire.Jail>;
    /** End every process of a jail. Its files stay. Needs the role operator. */
    postJailsByIdStop(id: string, body: wire.StopJail | undefined, how?: Keyed): Promise<wire.Jail>;
    /** Show which system calls a jail made, how long they took and how they failed. Needs the role
     * viewer. */
    getJailsByIdSyscalls(id: string, query?: {
        q?: string | undefined;
        type?: string | undefined;
        pid?: string | undefined;
        path?: string | undefined;
        host?: string | undefined;
        name?: string | undefined;
        ret?: string | undefined;
        comm?: string | undefined;
        op?: string | undefined;
        from?: string | undefined;
        to?: string | undefined;
        processes?: number | undefined;
        limit?: number | undefined;
    }, how?: Call): Promise<wire.Profile>;
    /** Count what a jail did by time and kind, and by process. Needs the role viewer. */
    getJailsByIdTimeline(id: string, query?: {
        q?: string | undefined;
        type?: string | undefined;
        pid?: string | undefined;
        path?: string | undefined;
        host?: string | undefined;
        name?: string | undefined;
        ret?: string | undefined;
        comm?: string | undefined;
        op?: string | undefined;
        from?: string | undefined;
        to?: string | undefined;
        buckets?: number | undefined;
        lanes?: number | undefined;
    }, how?: Call): Promise<wire.Timeline>;
    /** Show which jails and snapshots come from which, as trees. Needs the role viewer. */
    getLineage(query?: {
        jail?: string | undefined;
    }, how?: Call): Promise<wire.LineageJailPage>;
    /** Log a browser in by the code of a link. */
    postLogin(body: wire.LogIn, how?: Call): Promise<wire.Me>;
    /** Make a link by which a browser logs in, once, within ten minutes. Needs the role admin. */
    postLoginLinks(body: wire.CreateLoginLink, how?: Call): Promise<wire.LoginLink>;
    /** List the browsers that are logged in, oldest first. Needs the role admin. */
    getLogins(query?: {
        limit?: number | undefined;
        after?: string | undefined;
    }, how?: Call): Promise<wire.LoginPage>;
    /** End a login, and the streams it reads. Needs the role admin. */
    deleteLoginsByLogin(login: string, how?: Call): Promise<void>;
    /** End the login that the request's cookie is of. Needs the role viewer. */
    postLogout(how?: Call): Promise<void>;
    /** List what markets offer. Needs the role viewer. */
    getMarket(query?: {
        q?: string | undefined;
    }, how?: Call): Promise<wire.OfferPage>;
    /** Install what a market offers. Needs the role admin. */
    postMarketInstall(body: wire.MarketInstall, how?: Keyed): Promise<wire.Bundle>;
    /** List what is installed and offered in a newer version by its publisher. Needs the role viewer. */
    getMarketOutdated(how?: Call): Promise<wire.OfferPage>;
    /** Show who the caller is. Needs the role viewer. */
    getMe(how?: Call): Promise<wire.Me>;
    /** Metrics for Prometheus. Needs the role viewer. */
    getMetrics(how?: Call): Promise<string>;
    /** List the notices that could not be delivered. Needs the role viewer. */
    getNoticesDead(how?: Call): Promise<wire.DeadNoticePage>;
    /** Try a notice anew. Needs the role operator. */
    postNoticesByNoticeRedeliver(notice: string, how?: Keyed): Promise<void>;
    /** This document. */
    getOpenapiJson(how?: Call): Promise<unknown>;
    /** Say what a policy would answer, and which rules were looked at. Nothing is asked or recorded.
     * Needs the role viewer. */
    postPolicyExplain(body: wire.Explain, how?: Keyed): Promise<wire.Explained>;
    /** Say what in permission files does not do what it seems to. Needs the role viewer. */
    postPolicyLint(body: wire.Policy, how?: Keyed): Promise<wire.PolicyState>;
    /** Explain a type of problem. */
    getProblemsByProblem(problem: string, how?: Call): Promise<string>;
    /** List whose bundles are taken, and up to what tier. Needs the role viewer. */
    getPublishers(how?: Call): Promise<wire.PublisherPage>;
    /** Have nothing taken any more, nor called, that a key has signed, or that has a digest. Needs the
     * role admin. */
    postPublishersRevoke(body: wire.RevokeTrust, how?: Keyed): Promise<void>;
    /** Give a publisher a new key. What the old one signed until now stays good. Needs the role admin. */
    postPublishersRotate(body: wire.RotateKey, how?: Keyed): Promise<void>;
    /** Have bundles taken that are signed by a key. Needs the role admin. */
    putPublishersByName(name: string, body: wire.AddPublisher, how?: Call): Promise<void>;
    /** Have none of a publisher's bundles taken any more, nor called. Needs the role admin. */
    deletePublishersByName(name: string, how?: Call): Promise<void>;
    /** List the browsers that are told, oldest first. Needs the role operator. */
    getPushBrowsers(how?: Call): Promise<wire.PushBrowserPage>;
    /** Have a browser told when a person is asked, as long as its login is good. In place of what it
     * had subscribed before. Needs the role operator. */
    postPushBrowsers(body: wire.SubscribeBrowser, how?: Call): Promise<wire.PushBrowser>;
    /** Have a browser told no more. Needs the role operator. */
    deletePushBrowsersByBrowser(browser: string, how?: Call): Promise<void>;
    /** Show the key that a browser subscribes to pushes with. Needs the role viewer. */
    getPushKey(how?: Call): Promise<wire.PushKey>;
    /** List what was decided about a jail, oldest first: its audit trail. Needs the role viewer. */
    getSandboxByIdDecisions(id: string, query?: {
        limit?: number | undefined;
        after?: number | undefined;
        observed?: "true" | "false" | undefined;
        tool?: string | undefined;
        tag?: "AUTONOMOUS" | "WHITELISTED" | "APPROVED" | "DENIED" | undefined;
        from?: string | undefined;
        until?: string | undefined;
    }, how?: Call): Promise<wire.TrailEntryPage>;
    /** Say what an agent is about to do, and hear whether it may. Needs the role operator. */
    postSandboxByIdDecisions(id: string, body: wire.ClaimedDecision, how?: Keyed): Promise<wire.Verdict>;
    /** List schedules, oldest first. Needs the role viewer. */
    getSchedules(query?: {
        session_id?: string | undefined;
        limit?: number | undefined;
        after?: string | undefined;
    }, how?: Call): Promise<wire.SchedulePage>;
    /** Say when a schedule would be due that is made now. None is made. Needs the role viewer. */
    getSchedulesTimes(query?: {
        schedule?: string | undefined;
        time_zone?: string | undefined;
    }, how?: Call): Promise<wire.Times>;
    /** Show a schedule, and its next ten times. Needs the role viewer. */
    getSchedulesBySchedule(schedule: string, how?: Call): Promise<wire.Schedule>;
    /** Change when a schedule makes runs. What is not named stays as it is. Needs the role operator. */
    patchSchedulesBySchedule(schedule: string, body: wire.EditSchedule, how?: Call): Promise<wire.Schedule>;
    /** Remove a schedule. Runs that it has made stay. Needs the role operator. */
    deleteSchedulesBySchedule(schedule: string, how?: Call): Promise<void>;
    /** Have a schedule make no runs. Needs the role operator. */
    postSchedulesBySchedulePause(schedule: string, how?: Keyed): Promise<wire.Schedule>;
    /** Have it make runs again. Needs the role operator. */
    postSchedulesByScheduleResume(schedule: string, how?: Keyed): Promise<wire.Schedule>;
    /** List secrets by name, with who may have them. Nobody is shown their values. Needs the role
     * viewer. */
    getSecrets(how?: Call): Promise<wire.SecretPage>;
    /** Seal all secrets with a new key, and destroy the old one. Needs the role admin. */
    postSecretsRotate(how?: Keyed): Promise<void>;
    /** Keep a secret, sealed, or refer to one that others keep. Needs the role admin. */
    putSecretsByName(name: string, body: wire.PutSecret, how?: Call): Promise<void>;
    /** Remove a secret, from all who have it too. Needs the role admin. */
    deleteSecretsByName(name: string, how?: Call): Promise<void>;
    /** Let a jail have a secret, as a file or in requests on their way out. Needs the role operator. */
    postSecretsByNameGrants(name: string, body: wire.GrantSecret, how?: Keyed): Promise<wire.Grant>;
    /** List skills, by name. Needs the role viewer. */
    getSkills(how?: Call): Promise<wire.SkillPage>;
    /** Take up a skill, in place of one of the same name. One that names a capability that nobody has
     * allowed is refused. Needs the role operator. */
    postSkills(body: wire.AddSkill, how?: Keyed): Promise<wire.Skill>;
    /** Show a skill as an agent reads it, with its capabilities as tools. Needs the role viewer. */
    getSkillsByName(name: string, how?: Call): Promise<wire.Skill>;
    /** Forget a skill. Its capabilities stay. Needs the role operator. */
    deleteSkillsByName(name: string, how?: Call): Promise<void>;
    /** List snapshots, oldest first. Needs the role viewer. */
    getSnapshots(query?: {
        limit?: number | undefined;
        after?: string | undefined;
        usage?: boolean | undefined;
    }, how?: Call): Promise<wire.SnapshotPage>;
    /** Keep a snapshot that was exported. Its archive is trusted like a program that runs as root.
     * Needs the role admin. */
    postSnapshotsImport(content: Content, query?: {
        files_only?: boolean | undefined;
        force?: boolean | undefined;
    }, how?: Call): Promise<wire.Snapshot>;
    /** Show a snapshot and what it takes on the disk. Needs the role viewer. */
    getSnapshotsBySid(sid: string, how?: Call): Promise<wire.Snapshot>;
    /** Remove a snapshot. What jails and other snapshots stand on stays. Needs the role operator. */
    deleteSnapshotsBySid(sid: string, how?: Call): Promise<void>;
    /** Make jails from a snapshot. Some may fail; the answer says which. Needs the role operator. */
    postSnapshotsBySidBranch(sid: string, body: wire.Branch | undefined, how?: Keyed): Promise<wire.Branches>;
    /** Show what differs between a snapshot and the jail it was taken of, another jail or another
     * snapshot. Needs the role viewer. */
    getSnapshotsBySidDiff(sid: string, query?: {
        against?: string | undefined;
        only?: string | undefined;
        content?: "unified" | undefined;
        format?: "json" | "text" | "html" | undefined;
    }, how?: Call): Promise<wire.Comparison>;
    /** Show what differs between a snapshot and the jail it was taken of, another jail or another
     * snapshot. Needs the role viewer. */
    getSnapshotsBySidDiffText(sid: string, query?: {
        against?: string | undefined;
        only?: string | undefined;
        content?: "unified" | undefined;
        format?: "json" | "text" | "html" | undefined;
    }, how?: Call): Promise<string>;
    /** Show what differs between a snapshot and the jail it was taken of, another jail or another
     * snapshot. Needs the role viewer. */
    getSnapshotsBySidDiffHtml(sid: string, query?: {
        against?: string | undefined;
        only?: string | undefined;
        content?: "unified" | undefined;
        format?: "json" | "text" | "html" | undefined;
    }, how?: Call): Promise<string>;
    /** Download a snapshot, memory and files, as an archive that another host can import. Needs the
     * role operator. */
    getSnapshotsBySidExport(sid: string, how?: Call): Promise<Answer>;
    /** Make a jail from a snapshot, as it was. Needs the role operator. */
    postSnapshotsBySidRestore(sid: string, body: wire.Overrides | undefined, how?: Keyed): Promise<wire.Jail>;
    /** Make frozen copies of a snapshot ahead of need. Needs the role operator. */
    postSnapshotsBySidWarm(sid: string, body: wire.Warm, how?: Keyed): Promise<wire.Warmed>;
    /** Show what the daemon keeps on the disk, by what it is for, and the jails that it has made ahead
     * of need. Needs the role viewer. */
    getStorage(how?: Call): Promise<wire.Storage>;
    /** List tokens, oldest first. Needs the role admin. */
    getTokens(query?: {
        limit?: number | undefined;
        after?: string | undefined;
    }, how?: Call): Promise<wire.TokenPage>;
    /** Make a bearer token. The answer alone has its secret. Needs the role admin. */
    postTokens(body: wire.CreateToken, how?: Call): Promise<wire.Token>;
    /** Revoke a token. Needs the role admin. */
    deleteTokensById(id: string, how?: Call): Promise<void>;
    /** Show what runs. Needs the role viewer. */
    getVersion(how?: Call): Promise<wire.Version>;
}
