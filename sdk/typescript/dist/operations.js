// Made by `make sdk` from the OpenAPI document. Do not edit.
import { part, Transport } from "./transport.js";
/**
 * The API, route by route, with nothing done beyond what is asked.
 *
 * A route that answers in more than one form has a method for each: the plain name
 * gives the first of JSON, events, lines of JSON, text and bytes.
 */
export class Operations extends Transport {
    /** Show what a link would decide. */
    getAnswersByToken(token, how = {}) {
        return this.text({ method: "GET", path: `/answers/${part(token)}`, accept: "text/html", ...how });
    }
    /** Decide what a link decides, once. */
    postAnswersByToken(token, how = {}) {
        return this.text({ method: "POST", path: `/answers/${part(token)}`, accept: "text/html", ...how });
    }
    /** List what waits for a person, oldest first, or what no longer does, newest first. Needs the role
     * viewer. */
    getApprovals(query = {}, how = {}) {
        return this.json({ method: "GET", path: "/approvals", query, ...how });
    }
    /** Stream what happens to requests, what waits already first. Needs the role viewer. */
    getApprovalsEvents(how = {}) {
        return this.events({ method: "GET", path: "/approvals/events", accept: "text/event-stream", ...how });
    }
    /** Show a request, at once or as soon as it is settled. Needs the role viewer. */
    getApprovalsByApproval(approval, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/approvals/${part(approval)}`, query, ...how });
    }
    /** Answer a request. The first answer counts; the same again is no error. Needs the role operator. */
    postApprovalsByApproval(approval, body, how = {}) {
        return this.json({ method: "POST", path: `/approvals/${part(approval)}`, body, ...how });
    }
    /** End a request that nobody needs the answer of. Needs the role operator. */
    deleteApprovalsByApproval(approval, how = {}) {
        return this.json({ method: "DELETE", path: `/approvals/${part(approval)}`, ...how });
    }
    /** List what can isolate on this host. Needs the role viewer. */
    getBackends(how = {}) {
        return this.json({ method: "GET", path: "/backends", ...how });
    }
    /** List bundles that are installed, or that a person is asked about, by name. Needs the role
     * viewer. */
    getBundles(how = {}) {
        return this.json({ method: "GET", path: "/bundles", ...how });
    }
    /** Install a bundle. What is wrong with it is said at once; then a person is asked. Needs the role
     * admin. */
    postBundles(content, query, how = {}) {
        return this.json({ method: "POST", path: "/bundles", content, contentType: "application/octet-stream", query, ...how });
    }
    /** Remove a bundle with its capabilities and its skill. Needs the role admin. */
    deleteBundlesByName(name, how = {}) {
        return this.none({ method: "DELETE", path: `/bundles/${part(name)}`, ...how });
    }
    /** Show what became of a call, of those that were last. Needs the role viewer. */
    getCallsByCall(call, how = {}) {
        return this.json({ method: "GET", path: `/calls/${part(call)}`, ...how });
    }
    /** List the versions of all capabilities, by id, the newest first. Needs the role viewer. */
    getCapabilities(how = {}) {
        return this.json({ method: "GET", path: "/capabilities", ...how });
    }
    /** Register the capabilities of a manifest. About what they may do that is new a person is asked.
     * Needs the role admin. */
    postCapabilities(body, how = {}) {
        return this.json({ method: "POST", path: "/capabilities", body, ...how });
    }
    /** Start somebody's server of the Model Context Protocol in a jail, and show manifests of its
     * tools, to be registered. Needs the role admin. */
    postCapabilitiesImport(body, how = {}) {
        return this.json({ method: "POST", path: "/capabilities/import", body, ...how });
    }
    /** Show a version of a capability, with its manifest and its schemas. Needs the role viewer. */
    getCapabilitiesByCapability(capability, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/capabilities/${part(capability)}`, query, ...how });
    }
    /** Remove a version of a capability, and what was kept for it. Needs the role admin. */
    deleteCapabilitiesByCapability(capability, query = {}, how = {}) {
        return this.none({ method: "DELETE", path: `/capabilities/${part(capability)}`, query, ...how });
    }
    /** Call a capability. That it failed is an answer; that it was refused is an error. Needs the role
     * operator. */
    postCapabilitiesByCapabilityCall(capability, body, how = {}) {
        return this.json({ method: "POST", path: `/capabilities/${part(capability)}/call`, body, ...how });
    }
    /** Have a version no longer be called, from now on. Needs the role operator. */
    postCapabilitiesByCapabilityRevoke(capability, body, query = {}, how = {}) {
        return this.json({ method: "POST", path: `/capabilities/${part(capability)}/revoke`, body, query, ...how });
    }
    /** Say whether a version, by its digest, may run on the host itself. Needs the role admin. */
    postCapabilitiesByCapabilityTrust(capability, body, query = {}, how = {}) {
        return this.json({ method: "POST", path: `/capabilities/${part(capability)}/trust`, body, query, ...how });
    }
    /** List entries of the causal chain, oldest first or newest first. Needs the role viewer. */
    getChain(query = {}, how = {}) {
        return this.json({ method: "GET", path: "/chain", query, ...how });
    }
    /** Prove that the chain contains one that an earlier checkpoint was signed over. Needs the role
     * viewer. */
    postChainConsistency(body, how = {}) {
        return this.json({ method: "POST", path: "/chain/consistency", body, ...how });
    }
    /** Download the chain with its checkpoints and its key, so that others can verify it. Needs the
     * role viewer. */
    getChainExport(how = {}) {
        return this.lines({ method: "GET", path: "/chain/export", accept: "application/x-ndjson", ...how });
    }
    /** Show how long the chain is, its key, and its newest checkpoint. Needs the role viewer. */
    getChainHead(how = {}) {
        return this.json({ method: "GET", path: "/chain/head", ...how });
    }
    /** Verify the chain: entries, links, tree and signatures. Needs the role viewer. */
    getChainVerify(query = {}, how = {}) {
        return this.json({ method: "GET", path: "/chain/verify", query, ...how });
    }
    /** Show an entry of the chain. Needs the role viewer. */
    getChainBySeq(seq, how = {}) {
        return this.json({ method: "GET", path: `/chain/${part(seq)}`, ...how });
    }
    /** List what caused an entry, the first cause first. Needs the role viewer. */
    getChainBySeqCauses(seq, how = {}) {
        return this.json({ method: "GET", path: `/chain/${part(seq)}/causes`, ...how });
    }
    /** Prove that an entry is in the chain, to who has the public key. Needs the role viewer. */
    getChainBySeqProof(seq, how = {}) {
        return this.json({ method: "GET", path: `/chain/${part(seq)}/proof`, ...how });
    }
    /** Make a recorded call of a pure capability again, and compare what comes out. Needs the role
     * operator. */
    postChainBySeqReplay(seq, how = {}) {
        return this.json({ method: "POST", path: `/chain/${part(seq)}/replay`, ...how });
    }
    /** Stream what happens in a session, from its first event on or from after a number or
     * Last-Event-ID. Over a WebSocket each text frame is an event. Needs the role viewer. */
    getChatEventsBySession(session, query = {}, how = {}) {
        return this.events({ method: "GET", path: `/chat/events/${part(session)}`, query, accept: "text/event-stream", ...how });
    }
    /** List the messages of a session that went one way, oldest first. Needs the role viewer. */
    getChatInbox(query = {}, how = {}) {
        return this.json({ method: "GET", path: "/chat/inbox", query, ...how });
    }
    /** List runs, newest first. Needs the role viewer. */
    getChatRun(query = {}, how = {}) {
        return this.json({ method: "GET", path: "/chat/run", query, ...how });
    }
    /** Have an agent pursue a goal: now, at a time, or by a schedule. Needs the role operator. */
    postChatRun(body, how = {}) {
        return this.json({ method: "POST", path: "/chat/run", body, ...how });
    }
    /** Show a run. Needs the role viewer. */
    getChatRunByRun(run, how = {}) {
        return this.json({ method: "GET", path: `/chat/run/${part(run)}`, ...how });
    }
    /** List what a run has done, in its order. Needs the role viewer. */
    getChatRunByRunActions(run, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/chat/run/${part(run)}/actions`, query, ...how });
    }
    /** End a run and those that are a part of it; of one that waits for its schedule, the schedule.
     * Needs the role operator. */
    postChatRunByRunCancel(run, how = {}) {
        return this.json({ method: "POST", path: `/chat/run/${part(run)}/cancel`, ...how });
    }
    /** Keep a run as it is, with its jail. Needs the role operator. */
    postChatRunByRunCheckpoint(run, body, how = {}) {
        return this.json({ method: "POST", path: `/chat/run/${part(run)}/checkpoint`, body, ...how });
    }
    /** List the checkpoints of a run, oldest first. Needs the role viewer. */
    getChatRunByRunCheckpoints(run, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/chat/run/${part(run)}/checkpoints`, query, ...how });
    }
    /** Show a checkpoint, with what the agent keeps of itself. Needs the role viewer. */
    getChatRunByRunCheckpointsByCheckpoint(run, checkpoint, how = {}) {
        return this.json({ method: "GET", path: `/chat/run/${part(run)}/checkpoints/${part(checkpoint)}`, ...how });
    }
    /** Have a run wait. Its jail stands still. Needs the role operator. */
    postChatRunByRunPause(run, how = {}) {
        return this.json({ method: "POST", path: `/chat/run/${part(run)}/pause`, ...how });
    }
    /** Have a run go on where it was, go back to a checkpoint, or go on as others from one. Needs the
     * role operator. */
    postChatRunByRunResume(run, body, how = {}) {
        return this.json({ method: "POST", path: `/chat/run/${part(run)}/resume`, body, ...how });
    }
    /** Change a run's state by hand. Needs the role operator. */
    postChatRunByRunTransition(run, body, how = {}) {
        return this.json({ method: "POST", path: `/chat/run/${part(run)}/transition`, body, ...how });
    }
    /** Tell a session's agent something. Needs the role operator. */
    postChatSend(body, how = {}) {
        return this.json({ method: "POST", path: "/chat/send", body, ...how });
    }
    /** List sessions, newest first. Needs the role viewer. */
    getChatSession(query = {}, how = {}) {
        return this.json({ method: "GET", path: "/chat/session", query, ...how });
    }
    /** Open a session, or find the one of that name. Needs the role operator. */
    postChatSession(body, how = {}) {
        return this.json({ method: "POST", path: "/chat/session", body, ...how });
    }
    /** Show a session. Needs the role viewer. */
    getChatSessionBySession(session, how = {}) {
        return this.json({ method: "GET", path: `/chat/session/${part(session)}`, ...how });
    }
    /** Close a session. What was said in it stays. Needs the role operator. */
    deleteChatSessionBySession(session, how = {}) {
        return this.none({ method: "DELETE", path: `/chat/session/${part(session)}`, ...how });
    }
    /** List what joins sessions to others, and what of its deliveries waits. Needs the role viewer. */
    getConnectors(how = {}) {
        return this.json({ method: "GET", path: "/connectors", ...how });
    }
    /** List what is or was to be delivered to a connector, by when it is due. Needs the role viewer. */
    getConnectorsByConnectorDeliveries(connector, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/connectors/${part(connector)}/deliveries`, query, ...how });
    }
    /** Try a delivery anew that failed too often. Needs the role operator. */
    postDeliveriesByDeliveryRedeliver(delivery, how = {}) {
        return this.json({ method: "POST", path: `/deliveries/${part(delivery)}/redeliver`, ...how });
    }
    /** Probe what this host can do, and what to do about what it cannot. Needs the role viewer. */
    getDoctor(how = {}) {
        return this.json({ method: "GET", path: "/doctor", ...how });
    }
    /** Make a key for clients of the E2B protocol. The answer alone has it. Needs the role admin. */
    postE2bKeys(body, how = {}) {
        return this.json({ method: "POST", path: "/e2b/keys", body, ...how });
    }
    /** Stream what happens, and how jails fare. The topics jail, approval, run, notice, step, decision
     * and egress are entries of the chain, and after a Last-Event-ID go on behind it; jails and
     * schedules are as of now. Needs the role viewer. */
    getFeed(query = {}, how = {}) {
        return this.events({ method: "GET", path: "/feed", query, accept: "text/event-stream", ...how });
    }
    /** Take a grant away, at once. Needs the role operator. */
    deleteGrantsByGrant(grant, how = {}) {
        return this.none({ method: "DELETE", path: `/grants/${part(grant)}`, ...how });
    }
    /** Say that the daemon lives. */
    getHealth(how = {}) {
        return this.json({ method: "GET", path: "/health", ...how });
    }
    /** Say that the daemon can serve. */
    getHealthReady(how = {}) {
        return this.json({ method: "GET", path: "/health/ready", ...how });
    }
    /** Tell a session something from outside, signed as the connector wants it: by the Standard
     * Webhooks or as GitHub signs. */
    postHooksByConnector(connector, how = {}) {
        return this.json({ method: "POST", path: `/hooks/${part(connector)}`, ...how });
    }
    /** List the root filesystems that are ready, the newest first. Needs the role viewer. */
    getImages(query = {}, how = {}) {
        return this.json({ method: "GET", path: "/images", query, ...how });
    }
    /** Make a root filesystem ready, so that the first jail on it need not wait. Needs the role
     * operator. */
    postImages(body, how = {}) {
        return this.json({ method: "POST", path: "/images", body, ...how });
    }
    /** Remove the root filesystems that no jail uses, and list them. Needs the role admin. */
    postImagesPrune(how = {}) {
        return this.json({ method: "POST", path: "/images/prune", ...how });
    }
    /** List jails, oldest first. Needs the role viewer. */
    getJails(query = {}, how = {}) {
        return this.json({ method: "GET", path: "/jails", query, ...how });
    }
    /** Make a jail. Needs the role operator. */
    postJails(body, how = {}) {
        return this.json({ method: "POST", path: "/jails", body, ...how });
    }
    /** Show a jail and what it uses. Needs the role viewer. */
    getJailsById(id, how = {}) {
        return this.json({ method: "GET", path: `/jails/${part(id)}`, ...how });
    }
    /** Remove a jail, whatever its state, and its files. Needs the role operator. */
    deleteJailsById(id, query = {}, how = {}) {
        return this.none({ method: "DELETE", path: `/jails/${part(id)}`, query, ...how });
    }
    /** Show how a jail was at an instant: its processes, the files it had changed, and the nearest
     * snapshot. Needs the role viewer. */
    getJailsByIdAt(id, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/jails/${part(id)}/at`, query, ...how });
    }
    /** Take a snapshot of a jail and make jails from it. Needs the role operator. */
    postJailsByIdBranch(id, body, how = {}) {
        return this.json({ method: "POST", path: `/jails/${part(id)}/branch`, body, ...how });
    }
    /** Show whom a jail talked to, by host, and what was decided about it on its way out. Needs the
     * role viewer. */
    getJailsByIdConnections(id, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/jails/${part(id)}/connections`, query, ...how });
    }
    /** Ask whether something may be done, and wait for a person if one is to be asked. Needs the role
     * operator. */
    postJailsByIdDecide(id, body, how = {}) {
        return this.json({ method: "POST", path: `/jails/${part(id)}/decide`, body, ...how });
    }
    /** Show what differs between a jail and another, or a snapshot. Needs the role viewer. */
    getJailsByIdDiff(id, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/jails/${part(id)}/diff`, query, ...how });
    }
    /** Show what differs between a jail and another, or a snapshot. Needs the role viewer. */
    getJailsByIdDiffText(id, query = {}, how = {}) {
        return this.text({ method: "GET", path: `/jails/${part(id)}/diff`, query, accept: "text/plain", ...how });
    }
    /** Show what differs between a jail and another, or a snapshot. Needs the role viewer. */
    getJailsByIdDiffHtml(id, query = {}, how = {}) {
        return this.text({ method: "GET", path: `/jails/${part(id)}/diff`, query, accept: "text/html", ...how });
    }
    /** Show what may leave a jail, and what did, in numbers. Needs the role viewer. */
    getJailsByIdEgress(id, how = {}) {
        return this.json({ method: "GET", path: `/jails/${part(id)}/egress`, ...how });
    }
    /** Change what may leave a jail, at once. What is carried and not allowed any more is cut. Needs
     * the role operator. */
    putJailsByIdEgress(id, body, how = {}) {
        return this.json({ method: "PUT", path: `/jails/${part(id)}/egress`, body, ...how });
    }
    /** Stream what a jail does, from its first record on or from where a filter, a time or
     * Last-Event-ID says. Each event's id is its record's seq; 'end' comes last. With offset or at,
     * answer with a window of it. Needs the role viewer. */
    getJailsByIdEvents(id, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/jails/${part(id)}/events`, query, ...how });
    }
    /** Stream what a jail does, from its first record on or from where a filter, a time or
     * Last-Event-ID says. Each event's id is its record's seq; 'end' comes last. With offset or at,
     * answer with a window of it. Needs the role viewer. */
    getJailsByIdEventsStream(id, query = {}, how = {}) {
        return this.events({ method: "GET", path: `/jails/${part(id)}/events`, query, accept: "text/event-stream", ...how });
    }
    /** Stream what a jail does, from its first record on or from where a filter, a time or
     * Last-Event-ID says. Each event's id is its record's seq; 'end' comes last. With offset or at,
     * answer with a window of it. Needs the role viewer. */
    getJailsByIdEventsLines(id, query = {}, how = {}) {
        return this.lines({ method: "GET", path: `/jails/${part(id)}/events`, query, accept: "application/x-ndjson", ...how });
    }
    /** Run a command and wait for it, stream its output, or detach from it. Needs the role operator. */
    postJailsByIdExec(id, body, how = {}) {
        return this.json({ method: "POST", path: `/jails/${part(id)}/exec`, body, ...how });
    }
    /** Run a command and wait for it, stream its output, or detach from it. Needs the role operator. */
    postJailsByIdExecStream(id, body, how = {}) {
        return this.events({ method: "POST", path: `/jails/${part(id)}/exec`, body, accept: "text/event-stream", ...how });
    }
    /** List the commands of a jail that are still known, oldest first. Needs the role viewer. */
    getJailsByIdExecs(id, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/jails/${part(id)}/execs`, query, ...how });
    }
    /** Show a command and its output, or follow it as events. Needs the role viewer. */
    getJailsByIdExecsByExec(id, exec, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/jails/${part(id)}/execs/${part(exec)}`, query, ...how });
    }
    /** Show a command and its output, or follow it as events. Needs the role viewer. */
    getJailsByIdExecsByExecStream(id, exec, query = {}, how = {}) {
        return this.events({ method: "GET", path: `/jails/${part(id)}/execs/${part(exec)}`, query, accept: "text/event-stream", ...how });
    }
    /** Change the size of a command's terminal. Needs the role operator. */
    postJailsByIdExecsByExecResize(id, exec, body, how = {}) {
        return this.none({ method: "POST", path: `/jails/${part(id)}/execs/${part(exec)}/resize`, body, ...how });
    }
    /** Send a signal to a command's process group. Needs the role operator. */
    postJailsByIdExecsByExecSignal(id, exec, body, how = {}) {
        return this.none({ method: "POST", path: `/jails/${part(id)}/execs/${part(exec)}/signal`, body, ...how });
    }
    /** Write to a command's standard input. Needs the role operator. */
    postJailsByIdExecsByExecStdin(id, exec, content, query = {}, how = {}) {
        return this.none({ method: "POST", path: `/jails/${part(id)}/execs/${part(exec)}/stdin`, content, contentType: "application/octet-stream", query, ...how });
    }
    /** Read a file, list a directory, describe either, or take a tar archive of it. Needs the role
     * viewer. */
    getJailsByIdFiles(id, query, how = {}) {
        return this.json({ method: "GET", path: `/jails/${part(id)}/files`, query, ...how });
    }
    /** Read a file, list a directory, describe either, or take a tar archive of it. Needs the role
     * viewer. */
    getJailsByIdFilesBytes(id, query, how = {}) {
        return this.open({ method: "GET", path: `/jails/${part(id)}/files`, query, accept: "application/octet-stream", ...how });
    }
    /** Write a file, make a directory, or extract a tar archive. Needs the role operator. */
    putJailsByIdFiles(id, content, query, how = {}) {
        return this.json({ method: "PUT", path: `/jails/${part(id)}/files`, content, contentType: "application/octet-stream", query, ...how });
    }
    /** Remove a file or directory. Needs the role operator. */
    deleteJailsByIdFiles(id, query, how = {}) {
        return this.none({ method: "DELETE", path: `/jails/${part(id)}/files`, query, ...how });
    }
    /** Rename a file or directory. Needs the role operator. */
    postJailsByIdFilesMove(id, body, how = {}) {
        return this.none({ method: "POST", path: `/jails/${part(id)}/files/move`, body, ...how });
    }
    /** Stream changes below a path as they happen. Needs the role viewer. */
    getJailsByIdFilesWatch(id, query, how = {}) {
        return this.events({ method: "GET", path: `/jails/${part(id)}/files/watch`, query, accept: "text/event-stream", ...how });
    }
    /** List what a jail changed in its root filesystem or its workspace, or how it differs from a
     * snapshot or another jail, by path. Needs the role viewer. */
    getJailsByIdFsDiff(id, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/jails/${part(id)}/fs/diff`, query, ...how });
    }
    /** List what a jail changed in its root filesystem or its workspace, or how it differs from a
     * snapshot or another jail, by path. Needs the role viewer. */
    getJailsByIdFsDiffText(id, query = {}, how = {}) {
        return this.text({ method: "GET", path: `/jails/${part(id)}/fs/diff`, query, accept: "text/plain", ...how });
    }
    /** List what a jail changed in its root filesystem or its workspace, or how it differs from a
     * snapshot or another jail, by path. Needs the role viewer. */
    getJailsByIdFsDiffHtml(id, query = {}, how = {}) {
        return this.text({ method: "GET", path: `/jails/${part(id)}/fs/diff`, query, accept: "text/html", ...how });
    }
    /** Show what a jail may use, and what became of requests for more. Needs the role viewer. */
    getJailsByIdLimits(id, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/jails/${part(id)}/limits`, query, ...how });
    }
    /** Change what a jail may use, while it runs. What is not named stays as it is. Needs the role
     * operator. */
    patchJailsByIdLimits(id, body, how = {}) {
        return this.json({ method: "PATCH", path: `/jails/${part(id)}/limits`, body, ...how });
    }
    /** List whom a jail talked to, in the order it began. Needs the role viewer. */
    getJailsByIdNetworkLog(id, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/jails/${part(id)}/network/log`, query, ...how });
    }
    /** List whom a jail talked to, in the order it began. Needs the role viewer. */
    getJailsByIdNetworkLogLines(id, query = {}, how = {}) {
        return this.lines({ method: "GET", path: `/jails/${part(id)}/network/log`, query, accept: "application/x-ndjson", ...how });
    }
    /** List whom a jail talked to, in the order it began. Needs the role viewer. */
    getJailsByIdNetworkLogText(id, query = {}, how = {}) {
        return this.text({ method: "GET", path: `/jails/${part(id)}/network/log`, query, accept: "text/plain", ...how });
    }
    /** Download what is kept of a jail's packets. Needs the role viewer. */
    getJailsByIdNetworkPcap(id, how = {}) {
        return this.open({ method: "GET", path: `/jails/${part(id)}/network/pcap`, accept: "application/x-pcapng", ...how });
    }
    /** Freeze a jail. Needs the role operator. */
    postJailsByIdPause(id, how = {}) {
        return this.json({ method: "POST", path: `/jails/${part(id)}/pause`, ...how });
    }
    /** Show a jail's policy, how it is read, and what in it does not do what it seems to. Needs the
     * role viewer. */
    getJailsByIdPolicy(id, how = {}) {
        return this.json({ method: "GET", path: `/jails/${part(id)}/policy`, ...how });
    }
    /** Give a jail another policy, at once. Needs the role operator. */
    putJailsByIdPolicy(id, body, how = {}) {
        return this.json({ method: "PUT", path: `/jails/${part(id)}/policy`, body, ...how });
    }
    /** Take a jail's policy away. Nothing is allowed any more that is asked about. Needs the role
     * operator. */
    deleteJailsByIdPolicy(id, how = {}) {
        return this.none({ method: "DELETE", path: `/jails/${part(id)}/policy`, ...how });
    }
    /** Change a jail's level of autonomy, at once: down, or up to its ceiling. Needs the role operator. */
    postJailsByIdPolicyLevel(id, body, how = {}) {
        return this.json({ method: "POST", path: `/jails/${part(id)}/policy/level`, body, ...how });
    }
    /** Show the tree of a jail's processes, as it is or as it was. Needs the role viewer. */
    getJailsByIdProcesses(id, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/jails/${part(id)}/processes`, query, ...how });
    }
    /** Show the tree of a jail's processes, as it is or as it was. Needs the role viewer. */
    getJailsByIdProcessesText(id, query = {}, how = {}) {
        return this.text({ method: "GET", path: `/jails/${part(id)}/processes`, query, accept: "text/plain", ...how });
    }
    /** Report on all that a jail did, on one page. Needs the role viewer. */
    getJailsByIdReport(id, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/jails/${part(id)}/report`, query, ...how });
    }
    /** Report on all that a jail did, on one page. Needs the role viewer. */
    getJailsByIdReportText(id, query = {}, how = {}) {
        return this.text({ method: "GET", path: `/jails/${part(id)}/report`, query, accept: "text/markdown", ...how });
    }
    /** Report on all that a jail did, on one page. Needs the role viewer. */
    getJailsByIdReportHtml(id, query = {}, how = {}) {
        return this.text({ method: "GET", path: `/jails/${part(id)}/report`, query, accept: "text/html", ...how });
    }
    /** Let a frozen jail go on. Needs the role operator. */
    postJailsByIdResume(id, how = {}) {
        return this.json({ method: "POST", path: `/jails/${part(id)}/resume`, ...how });
    }
    /** Take a jail back to a snapshot. What it did since stays in its log. Needs the role operator. */
    postJailsByIdRewind(id, body, how = {}) {
        return this.json({ method: "POST", path: `/jails/${part(id)}/rewind`, body, ...how });
    }
    /** Take a snapshot of a jail, which goes on. Needs the role operator. */
    postJailsByIdSnapshot(id, body, how = {}) {
        return this.json({ method: "POST", path: `/jails/${part(id)}/snapshot`, body, ...how });
    }
    /** List the snapshots of a jail, oldest first, also of one that is gone. Needs the role viewer. */
    getJailsByIdSnapshots(id, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/jails/${part(id)}/snapshots`, query, ...how });
    }
    /** Start a jail. Needs the role operator. */
    postJailsByIdStart(id, how = {}) {
        return this.json({ method: "POST", path: `/jails/${part(id)}/start`, ...how });
    }
    /** End every process of a jail. Its files stay. Needs the role operator. */
    postJailsByIdStop(id, body, how = {}) {
        return this.json({ method: "POST", path: `/jails/${part(id)}/stop`, body, ...how });
    }
    /** Show which system calls a jail made, how long they took and how they failed. Needs the role
     * viewer. */
    getJailsByIdSyscalls(id, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/jails/${part(id)}/syscalls`, query, ...how });
    }
    /** Count what a jail did by time and kind, and by process. Needs the role viewer. */
    getJailsByIdTimeline(id, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/jails/${part(id)}/timeline`, query, ...how });
    }
    /** Show which jails and snapshots come from which, as trees. Needs the role viewer. */
    getLineage(query = {}, how = {}) {
        return this.json({ method: "GET", path: "/lineage", query, ...how });
    }
    /** Log a browser in by the code of a link. */
    postLogin(body, how = {}) {
        return this.json({ method: "POST", path: "/login", body, ...how });
    }
    /** Make a link by which a browser logs in, once, within ten minutes. Needs the role admin. */
    postLoginLinks(body, how = {}) {
        return this.json({ method: "POST", path: "/login-links", body, ...how });
    }
    /** List the browsers that are logged in, oldest first. Needs the role admin. */
    getLogins(query = {}, how = {}) {
        return this.json({ method: "GET", path: "/logins", query, ...how });
    }
    /** End a login, and the streams it reads. Needs the role admin. */
    deleteLoginsByLogin(login, how = {}) {
        return this.none({ method: "DELETE", path: `/logins/${part(login)}`, ...how });
    }
    /** End the login that the request's cookie is of. Needs the role viewer. */
    postLogout(how = {}) {
        return this.none({ method: "POST", path: "/logout", ...how });
    }
    /** List what markets offer. Needs the role viewer. */
    getMarket(query = {}, how = {}) {
        return this.json({ method: "GET", path: "/market", query, ...how });
    }
    /** Install what a market offers. Needs the role admin. */
    postMarketInstall(body, how = {}) {
        return this.json({ method: "POST", path: "/market/install", body, ...how });
    }
    /** List what is installed and offered in a newer version by its publisher. Needs the role viewer. */
    getMarketOutdated(how = {}) {
        return this.json({ method: "GET", path: "/market/outdated", ...how });
    }
    /** Show who the caller is. Needs the role viewer. */
    getMe(how = {}) {
        return this.json({ method: "GET", path: "/me", ...how });
    }
    /** Metrics for Prometheus. Needs the role viewer. */
    getMetrics(how = {}) {
        return this.text({ method: "GET", path: "/metrics", accept: "text/plain", ...how });
    }
    /** List the notices that could not be delivered. Needs the role viewer. */
    getNoticesDead(how = {}) {
        return this.json({ method: "GET", path: "/notices/dead", ...how });
    }
    /** Try a notice anew. Needs the role operator. */
    postNoticesByNoticeRedeliver(notice, how = {}) {
        return this.none({ method: "POST", path: `/notices/${part(notice)}/redeliver`, ...how });
    }
    /** This document. */
    getOpenapiJson(how = {}) {
        return this.json({ method: "GET", path: "/openapi.json", ...how });
    }
    /** Say what a policy would answer, and which rules were looked at. Nothing is asked or recorded.
     * Needs the role viewer. */
    postPolicyExplain(body, how = {}) {
        return this.json({ method: "POST", path: "/policy/explain", body, ...how });
    }
    /** Say what in permission files does not do what it seems to. Needs the role viewer. */
    postPolicyLint(body, how = {}) {
        return this.json({ method: "POST", path: "/policy/lint", body, ...how });
    }
    /** Explain a type of problem. */
    getProblemsByProblem(problem, how = {}) {
        return this.text({ method: "GET", path: `/problems/${part(problem)}`, accept: "text/html", ...how });
    }
    /** List whose bundles are taken, and up to what tier. Needs the role viewer. */
    getPublishers(how = {}) {
        return this.json({ method: "GET", path: "/publishers", ...how });
    }
    /** Have nothing taken any more, nor called, that a key has signed, or that has a digest. Needs the
     * role admin. */
    postPublishersRevoke(body, how = {}) {
        return this.none({ method: "POST", path: "/publishers/revoke", body, ...how });
    }
    /** Give a publisher a new key. What the old one signed until now stays good. Needs the role admin. */
    postPublishersRotate(body, how = {}) {
        return this.none({ method: "POST", path: "/publishers/rotate", body, ...how });
    }
    /** Have bundles taken that are signed by a key. Needs the role admin. */
    putPublishersByName(name, body, how = {}) {
        return this.none({ method: "PUT", path: `/publishers/${part(name)}`, body, ...how });
    }
    /** Have none of a publisher's bundles taken any more, nor called. Needs the role admin. */
    deletePublishersByName(name, how = {}) {
        return this.none({ method: "DELETE", path: `/publishers/${part(name)}`, ...how });
    }
    /** List the browsers that are told, oldest first. Needs the role operator. */
    getPushBrowsers(how = {}) {
        return this.json({ method: "GET", path: "/push/browsers", ...how });
    }
    /** Have a browser told when a person is asked, as long as its login is good. In place of what it
     * had subscribed before. Needs the role operator. */
    postPushBrowsers(body, how = {}) {
        return this.json({ method: "POST", path: "/push/browsers", body, ...how });
    }
    /** Have a browser told no more. Needs the role operator. */
    deletePushBrowsersByBrowser(browser, how = {}) {
        return this.none({ method: "DELETE", path: `/push/browsers/${part(browser)}`, ...how });
    }
    /** Show the key that a browser subscribes to pushes with. Needs the role viewer. */
    getPushKey(how = {}) {
        return this.json({ method: "GET", path: "/push/key", ...how });
    }
    /** List what was decided about a jail, oldest first: its audit trail. Needs the role viewer. */
    getSandboxByIdDecisions(id, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/sandbox/${part(id)}/decisions`, query, ...how });
    }
    /** Say what an agent is about to do, and hear whether it may. Needs the role operator. */
    postSandboxByIdDecisions(id, body, how = {}) {
        return this.json({ method: "POST", path: `/sandbox/${part(id)}/decisions`, body, ...how });
    }
    /** List schedules, oldest first. Needs the role viewer. */
    getSchedules(query = {}, how = {}) {
        return this.json({ method: "GET", path: "/schedules", query, ...how });
    }
    /** Say when a schedule would be due that is made now. None is made. Needs the role viewer. */
    getSchedulesTimes(query = {}, how = {}) {
        return this.json({ method: "GET", path: "/schedules/times", query, ...how });
    }
    /** Show a schedule, and its next ten times. Needs the role viewer. */
    getSchedulesBySchedule(schedule, how = {}) {
        return this.json({ method: "GET", path: `/schedules/${part(schedule)}`, ...how });
    }
    /** Change when a schedule makes runs. What is not named stays as it is. Needs the role operator. */
    patchSchedulesBySchedule(schedule, body, how = {}) {
        return this.json({ method: "PATCH", path: `/schedules/${part(schedule)}`, body, ...how });
    }
    /** Remove a schedule. Runs that it has made stay. Needs the role operator. */
    deleteSchedulesBySchedule(schedule, how = {}) {
        return this.none({ method: "DELETE", path: `/schedules/${part(schedule)}`, ...how });
    }
    /** Have a schedule make no runs. Needs the role operator. */
    postSchedulesBySchedulePause(schedule, how = {}) {
        return this.json({ method: "POST", path: `/schedules/${part(schedule)}/pause`, ...how });
    }
    /** Have it make runs again. Needs the role operator. */
    postSchedulesByScheduleResume(schedule, how = {}) {
        return this.json({ method: "POST", path: `/schedules/${part(schedule)}/resume`, ...how });
    }
    /** List secrets by name, with who may have them. Nobody is shown their values. Needs the role
     * viewer. */
    getSecrets(how = {}) {
        return this.json({ method: "GET", path: "/secrets", ...how });
    }
    /** Seal all secrets with a new key, and destroy the old one. Needs the role admin. */
    postSecretsRotate(how = {}) {
        return this.none({ method: "POST", path: "/secrets/rotate", ...how });
    }
    /** Keep a secret, sealed, or refer to one that others keep. Needs the role admin. */
    putSecretsByName(name, body, how = {}) {
        return this.none({ method: "PUT", path: `/secrets/${part(name)}`, body, ...how });
    }
    /** Remove a secret, from all who have it too. Needs the role admin. */
    deleteSecretsByName(name, how = {}) {
        return this.none({ method: "DELETE", path: `/secrets/${part(name)}`, ...how });
    }
    /** Let a jail have a secret, as a file or in requests on their way out. Needs the role operator. */
    postSecretsByNameGrants(name, body, how = {}) {
        return this.json({ method: "POST", path: `/secrets/${part(name)}/grants`, body, ...how });
    }
    /** List skills, by name. Needs the role viewer. */
    getSkills(how = {}) {
        return this.json({ method: "GET", path: "/skills", ...how });
    }
    /** Take up a skill, in place of one of the same name. One that names a capability that nobody has
     * allowed is refused. Needs the role operator. */
    postSkills(body, how = {}) {
        return this.json({ method: "POST", path: "/skills", body, ...how });
    }
    /** Show a skill as an agent reads it, with its capabilities as tools. Needs the role viewer. */
    getSkillsByName(name, how = {}) {
        return this.json({ method: "GET", path: `/skills/${part(name)}`, ...how });
    }
    /** Forget a skill. Its capabilities stay. Needs the role operator. */
    deleteSkillsByName(name, how = {}) {
        return this.none({ method: "DELETE", path: `/skills/${part(name)}`, ...how });
    }
    /** List snapshots, oldest first. Needs the role viewer. */
    getSnapshots(query = {}, how = {}) {
        return this.json({ method: "GET", path: "/snapshots", query, ...how });
    }
    /** Keep a snapshot that was exported. Its archive is trusted like a program that runs as root.
     * Needs the role admin. */
    postSnapshotsImport(content, query = {}, how = {}) {
        return this.json({ method: "POST", path: "/snapshots/import", content, contentType: "application/octet-stream", query, ...how });
    }
    /** Show a snapshot and what it takes on the disk. Needs the role viewer. */
    getSnapshotsBySid(sid, how = {}) {
        return this.json({ method: "GET", path: `/snapshots/${part(sid)}`, ...how });
    }
    /** Remove a snapshot. What jails and other snapshots stand on stays. Needs the role operator. */
    deleteSnapshotsBySid(sid, how = {}) {
        return this.none({ method: "DELETE", path: `/snapshots/${part(sid)}`, ...how });
    }
    /** Make jails from a snapshot. Some may fail; the answer says which. Needs the role operator. */
    postSnapshotsBySidBranch(sid, body, how = {}) {
        return this.json({ method: "POST", path: `/snapshots/${part(sid)}/branch`, body, ...how });
    }
    /** Show what differs between a snapshot and the jail it was taken of, another jail or another
     * snapshot. Needs the role viewer. */
    getSnapshotsBySidDiff(sid, query = {}, how = {}) {
        return this.json({ method: "GET", path: `/snapshots/${part(sid)}/diff`, query, ...how });
    }
    /** Show what differs between a snapshot and the jail it was taken of, another jail or another
     * snapshot. Needs the role viewer. */
    getSnapshotsBySidDiffText(sid, query = {}, how = {}) {
        return this.text({ method: "GET", path: `/snapshots/${part(sid)}/diff`, query, accept: "text/plain", ...how });
    }
    /** Show what differs between a snapshot and the jail it was taken of, another jail or another
     * snapshot. Needs the role viewer. */
    getSnapshotsBySidDiffHtml(sid, query = {}, how = {}) {
        return this.text({ method: "GET", path: `/snapshots/${part(sid)}/diff`, query, accept: "text/html", ...how });
    }
    /** Download a snapshot, memory and files, as an archive that another host can import. Needs the
     * role operator. */
    getSnapshotsBySidExport(sid, how = {}) {
        return this.open({ method: "GET", path: `/snapshots/${part(sid)}/export`, accept: "application/zstd", ...how });
    }
    /** Make a jail from a snapshot, as it was. Needs the role operator. */
    postSnapshotsBySidRestore(sid, body, how = {}) {
        return this.json({ method: "POST", path: `/snapshots/${part(sid)}/restore`, body, ...how });
    }
    /** Make frozen copies of a snapshot ahead of need. Needs the role operator. */
    postSnapshotsBySidWarm(sid, body, how = {}) {
        return this.json({ method: "POST", path: `/snapshots/${part(sid)}/warm`, body, ...how });
    }
    /** Show what the daemon keeps on the disk, by what it is for, and the jails that it has made ahead
     * of need. Needs the role viewer. */
    getStorage(how = {}) {
        return this.json({ method: "GET", path: "/storage", ...how });
    }
    /** List tokens, oldest first. Needs the role admin. */
    getTokens(query = {}, how = {}) {
        return this.json({ method: "GET", path: "/tokens", query, ...how });
    }
    /** Make a bearer token. The answer alone has its secret. Needs the role admin. */
    postTokens(body, how = {}) {
        return this.json({ method: "POST", path: "/tokens", body, ...how });
    }
    /** Revoke a token. Needs the role admin. */
    deleteTokensById(id, how = {}) {
        return this.none({ method: "DELETE", path: `/tokens/${part(id)}`, ...how });
    }
    /** Show what runs. Needs the role viewer. */
    getVersion(how = {}) {
        return this.json({ method: "GET", path: "/version", ...how });
    }
}
