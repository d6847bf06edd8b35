package api

import (
	"net/http"

	"github.com/swaggest/jsonschema-go"

	"glasshouse/api/wire"
	"glasshouse/policy/access"
)

// routes is the API, in the order of the OpenAPI document.
var routes = []route{
	{"createJail", "POST /jails", access.Operator, create((*Server).createJail, jailPlace), "Create a jail."},
	{"listJails", "GET /jails", access.Viewer, call(ok, (*Server).listJails), "List jails, oldest first."},
	{"getJail", "GET /jails/{id}", access.Viewer, call(ok, (*Server).getJail), "Show a jail and its resource usage."},
	{"startJail", "POST /jails/{id}/start", access.Operator, call(ok, (*Server).startJail), "Start a jail."},
	{"stopJail", "POST /jails/{id}/stop", access.Operator, call(ok, (*Server).stopJail), "Stop a jail. Its processes end; its files are kept."},
	{"pauseJail", "POST /jails/{id}/pause", access.Operator, call(ok, (*Server).pauseJail), "Pause (freeze) a jail."},
	{"resumeJail", "POST /jails/{id}/resume", access.Operator, call(ok, (*Server).resumeJail), "Resume a paused jail."},
	{"getJailLimits", "GET /jails/{id}/limits", access.Viewer, call(ok, (*Server).getJailLimits), "Show a jail's limits and the history of changes and requests."},
	{"updateJailLimits", "PATCH /jails/{id}/limits", access.Operator, call(ok, (*Server).updateJailLimits), "Change a jail's limits, also while it runs. Omitted limits are unchanged."},
	{"deleteJail", "DELETE /jails/{id}", access.Operator, call(noContent, (*Server).deleteJail), "Delete a jail and its files, in any state."},

	{"takeSnapshot", "POST /jails/{id}/snapshot", access.Operator, create((*Server).takeSnapshot, snapshotPlace), "Take a snapshot of a jail. The jail continues to run."},
	{"listJailSnapshots", "GET /jails/{id}/snapshots", access.Viewer, call(ok, (*Server).listJailSnapshots), "List the snapshots of a jail, oldest first. The jail may have been deleted."},
	{"branchJail", "POST /jails/{id}/branch", access.Operator, call(created, (*Server).branchJail), "Branch (fork) a jail. A snapshot is taken, and new jails are created from it."},
	{"rewindJail", "POST /jails/{id}/rewind", access.Operator, call(ok, (*Server).rewindJail), "Rewind a jail to a snapshot. Events since the snapshot are kept in the event log."},
	{"compareJail", "GET /jails/{id}/diff", access.Viewer, raw((*Server).compareJail).
		gives(ok, wire.Comparison{}).or(ok, textKind, nil).or(ok, htmlKind, nil),
		"Compare a jail with another jail or a snapshot."},
	{"listSnapshots", "GET /snapshots", access.Viewer, call(ok, (*Server).listSnapshots), "List snapshots, oldest first."},
	{"getSnapshot", "GET /snapshots/{sid}", access.Viewer, call(ok, (*Server).getSnapshot), "Show a snapshot and its disk usage."},
	{"compareSnapshot", "GET /snapshots/{sid}/diff", access.Viewer, raw((*Server).compareSnapshot).
		gives(ok, wire.Comparison{}).or(ok, textKind, nil).or(ok, htmlKind, nil),
		"Compare a snapshot with its jail, another jail or another snapshot."},
	{"exportSnapshot", "GET /snapshots/{sid}/export", access.Operator, raw((*Server).exportSnapshot).
		gives(ok, nil).or(ok, parcelKind, nil),
		"Download a snapshot, with memory and files, as an archive that another host can import."},
	{"importSnapshot", "POST /snapshots/import", access.Admin, raw((*Server).importSnapshot).
		takesBytes(byteKind, parcelKind).gives(created, wire.Snapshot{}),
		"Import an exported snapshot. The archive must be trusted like a program that runs as root."},
	{"restoreSnapshot", "POST /snapshots/{sid}/restore", access.Operator, create((*Server).restoreSnapshot, restoredPlace), "Restore a snapshot as a new jail."},
	{"branchSnapshot", "POST /snapshots/{sid}/branch", access.Operator, call(created, (*Server).branchSnapshot), "Branch (fork) jails from a snapshot. If some cannot be created, the response lists the errors."},
	{"warmSnapshot", "POST /snapshots/{sid}/warm", access.Operator, call(ok, (*Server).warmSnapshot), "Create frozen copies of a snapshot in advance, for fast branches."},
	{"deleteSnapshot", "DELETE /snapshots/{sid}", access.Operator, call(noContent, (*Server).deleteSnapshot), "Delete a snapshot. Data that jails and other snapshots use is kept."},
	{"getLineage", "GET /lineage", access.Viewer, call(ok, (*Server).getLineage), "Show the lineage of jails and snapshots as trees."},

	{"execCommand", "POST /jails/{id}/exec", access.Operator, raw((*Server).execCommand).
		takes(wire.ExecRequest{}).gives(ok, wire.Exec{}).or(created, jsonKind, wire.Exec{}).or(ok, eventKind, wire.Output{}).replayable(),
		"Run a command and wait for it, stream its output, or detach from it."},
	{"listExecs", "GET /jails/{id}/execs", access.Viewer, call(ok, (*Server).listExecs), "List the recent and running commands of a jail, oldest first."},
	{"getExec", "GET /jails/{id}/execs/{exec}", access.Viewer, raw((*Server).getExec).
		gives(ok, wire.Exec{}).or(ok, eventKind, wire.Output{}),
		"Show a command and its output, or stream its output as events."},
	{"signalExec", "POST /jails/{id}/execs/{exec}/signal", access.Operator, call(noContent, (*Server).signalExec), "Send a signal to a command's process group."},
	{"resizeExec", "POST /jails/{id}/execs/{exec}/resize", access.Operator, call(noContent, (*Server).resizeExec), "Change the size of a command's terminal."},
	{"writeStdin", "POST /jails/{id}/execs/{exec}/stdin", access.Operator, raw((*Server).writeStdin).
		takesBytes(byteKind).gives(noContent, nil),
		"Write to a command's standard input."},
	{"openTerminal", "GET /jails/{id}/terminal", access.Operator, raw((*Server).openTerminal).
		gives(http.StatusSwitchingProtocols, jsonschema.OneOf(wire.TerminalEvent{}, wire.TerminalControl{})).streams(),
		"Open a terminal over a WebSocket. Binary frames carry terminal data. Text frames carry a TerminalEvent from the daemon or a TerminalControl from the client. The close code is 4000 plus the exit code."},

	{"getFile", "GET /jails/{id}/files", access.Viewer, raw((*Server).getFile).
		gives(ok, jsonschema.OneOf(wire.File{}, wire.Page[wire.File]{})).or(ok, byteKind, nil).or(ok, tarKind, nil).or(http.StatusPartialContent, byteKind, nil),
		"Read a file, list a directory, show metadata, or download a tar archive."},
	{"putFile", "PUT /jails/{id}/files", access.Operator, raw((*Server).putFile).
		takesBytes(byteKind, tarKind).gives(ok, wire.File{}),
		"Write a file, create a directory, or extract a tar archive."},
	{"deleteFile", "DELETE /jails/{id}/files", access.Operator, call(noContent, (*Server).deleteFile), "Delete a file or directory."},
	{"moveFile", "POST /jails/{id}/files/move", access.Operator, call(noContent, (*Server).moveFile), "Rename a file or directory."},
	{"watchFiles", "GET /jails/{id}/files/watch", access.Viewer, raw((*Server).watchFiles).
		gives(ok, nil).or(ok, eventKind, wire.FileEvent{}).streams(),
		"Stream file changes below a path."},
	{"diffFiles", "GET /jails/{id}/fs/diff", access.Viewer, raw((*Server).diffFiles).
		gives(ok, wire.Page[wire.Change]{}).or(ok, textKind, nil).or(ok, htmlKind, nil),
		"List file changes by path: of a jail's root filesystem or workspace, or relative to a snapshot or another jail."},

	{"streamEvents", "GET /jails/{id}/events", access.Viewer, raw((*Server).streamEvents).
		gives(ok, wire.EventWindow{}).or(ok, eventKind, wire.Event{}).or(ok, lineKind, wire.Event{}).streams(),
		"Stream the events of a jail, from the first one, or from the position that a filter, a time or Last-Event-ID selects. The id of each server-sent event is its seq; the last one is 'end'. With offset or at, return a JSON window of the events instead."},
	{"getTimeline", "GET /jails/{id}/timeline", access.Viewer, call(ok, (*Server).getTimeline), "Count the events of a jail by time and type, and by process."},
	{"listProcesses", "GET /jails/{id}/processes", access.Viewer, raw((*Server).listProcesses).
		gives(ok, wire.Processes{}).or(ok, textKind, nil),
		"Show the process tree of a jail, now or at an earlier time."},
	{"getPastState", "GET /jails/{id}/at", access.Viewer, raw((*Server).getPastState).gives(ok, wire.Past{}),
		"Show the state of a jail at an earlier time: its processes, changed files, and the nearest snapshot."},
	{"getSyscallProfile", "GET /jails/{id}/syscalls", access.Viewer, raw((*Server).getSyscallProfile).gives(ok, wire.Profile{}),
		"Summarize the system calls of a jail: frequency, duration and errors."},
	{"listConnections", "GET /jails/{id}/connections", access.Viewer, raw((*Server).listConnections).gives(ok, wire.Connections{}),
		"Summarize the network connections of a jail by host, with the egress decisions."},
	{"listNetworkFlows", "GET /jails/{id}/network/log", access.Viewer, raw((*Server).listNetworkFlows).
		gives(ok, wire.Flows{}).or(ok, lineKind, wire.Event{}).or(ok, textKind, nil),
		"List the network flows of a jail, in order of their start."},
	{"getNetworkPackets", "GET /jails/{id}/network/pcap", access.Viewer, raw((*Server).getNetworkPackets).
		gives(ok, nil).or(ok, "application/x-pcapng", nil),
		"Download the captured packets of a jail."},
	{"getReport", "GET /jails/{id}/report", access.Viewer, raw((*Server).getReport).
		gives(ok, nil).or(ok, jsonKind, map[string]any{}).or(ok, htmlKind, nil).or(ok, markdownKind, nil),
		"Generate a report of the activity of a jail."},

	{"getPolicy", "GET /jails/{id}/policy", access.Viewer, call(ok, (*Server).getPolicy), "Show a jail's policy, how it is interpreted, and lint findings."},
	{"putPolicy", "PUT /jails/{id}/policy", access.Operator, call(ok, (*Server).putPolicy), "Replace a jail's policy. The new policy takes effect immediately."},
	{"deletePolicy", "DELETE /jails/{id}/policy", access.Operator, call(noContent, (*Server).deletePolicy), "Remove a jail's policy. Actions that need a policy decision are then denied."},
	{"setPolicyLevel", "POST /jails/{id}/policy/level", access.Operator, call(ok, (*Server).setPolicyLevel), "Change a jail's autonomy level. It can be lowered, or raised up to the ceiling, and takes effect immediately."},
	{"requestDecision", "POST /jails/{id}/decide", access.Operator, call(ok, (*Server).requestDecision).waits(), "Evaluate a policy decision, and wait for approval if it is required."},
	{"getEgress", "GET /jails/{id}/egress", access.Viewer, call(ok, (*Server).getEgress), "Show a jail's egress rules and traffic statistics."},
	{"putEgress", "PUT /jails/{id}/egress", access.Operator, call(ok, (*Server).putEgress), "Replace a jail's egress rules. They take effect immediately; open connections that they do not allow are closed."},
	{"lintPolicy", "POST /policy/lint", access.Viewer, call(ok, (*Server).lintPolicy), "Lint permission files."},
	{"explainPolicy", "POST /policy/explain", access.Viewer, call(ok, (*Server).explainPolicy), "Evaluate a policy decision without effect, and show the rules considered. No approval is requested and nothing is recorded."},
	{"createSession", "POST /chat/session", access.Operator, create((*Server).createSession, sessionPlace), "Open a session. An existing session with the same id is returned."},
	{"listSessions", "GET /chat/session", access.Viewer, call(ok, (*Server).listSessions), "List sessions, newest first."},
	{"getSession", "GET /chat/session/{session}", access.Viewer, call(ok, (*Server).getSession), "Show a session."},
	{"closeSession", "DELETE /chat/session/{session}", access.Operator, call(noContent, (*Server).closeSession), "Close a session. Its messages are kept."},
	{"sendMessage", "POST /chat/send", access.Operator, call(ok, (*Server).sendMessage), "Send a message to a session's agent."},
	{"listMessages", "GET /chat/inbox", access.Viewer, call(ok, (*Server).listMessages), "List the messages of a session in one direction, oldest first."},
	{"streamSession", "GET /chat/events/{session}", access.Viewer, raw((*Server).streamSession).
		gives(ok, nil).or(ok, eventKind, wire.RunEvent{}).or(http.StatusSwitchingProtocols, jsonKind, wire.RunEvent{}).streams(),
		"Stream the events of a session, from the first one, or after a number or Last-Event-ID. Over a WebSocket, each text frame is one event."},
	{"startRun", "POST /chat/run", access.Operator, call(ok, (*Server).startRun), "Start a run: an agent pursues a goal, now, at a given time, or on a schedule."},
	{"listRuns", "GET /chat/run", access.Viewer, call(ok, (*Server).listRuns), "List runs, newest first."},
	{"getRun", "GET /chat/run/{run}", access.Viewer, call(ok, (*Server).getRun), "Show a run."},
	{"listActions", "GET /chat/run/{run}/actions", access.Viewer, call(ok, (*Server).listActions), "List the steps of a run in order."},
	{"checkpointRun", "POST /chat/run/{run}/checkpoint", access.Operator, call(ok, (*Server).checkpointRun), "Take a checkpoint of a run and its jail."},
	{"listCheckpoints", "GET /chat/run/{run}/checkpoints", access.Viewer, call(ok, (*Server).listCheckpoints), "List the checkpoints of a run, oldest first."},
	{"getCheckpoint", "GET /chat/run/{run}/checkpoints/{checkpoint}", access.Viewer, call(ok, (*Server).getCheckpoint), "Show a checkpoint with the state that the agent saved."},
	{"resumeRun", "POST /chat/run/{run}/resume", access.Operator, call(ok, (*Server).resumeRun), "Resume a run where it was paused, rewind it to a checkpoint, or branch new runs from a checkpoint."},
	{"pauseRun", "POST /chat/run/{run}/pause", access.Operator, call(ok, (*Server).pauseRun), "Pause a run. Its jail is frozen."},
	{"cancelRun", "POST /chat/run/{run}/cancel", access.Operator, call(ok, (*Server).cancelRun), "Cancel a run and its child runs. For a run that waits for its schedule, the schedule is cancelled."},
	{"transitionRun", "POST /chat/run/{run}/transition", access.Operator, call(ok, (*Server).transitionRun), "Change a run's state manually."},
	{"listSchedules", "GET /schedules", access.Viewer, call(ok, (*Server).listSchedules), "List schedules, oldest first."},
	{"previewSchedule", "GET /schedules/times", access.Viewer, call(ok, (*Server).previewSchedule), "Preview the due times of a schedule. No schedule is created."},
	{"getSchedule", "GET /schedules/{schedule}", access.Viewer, call(ok, (*Server).getSchedule), "Show a schedule and its next ten due times."},
	{"updateSchedule", "PATCH /schedules/{schedule}", access.Operator, call(ok, (*Server).updateSchedule), "Change when a schedule starts runs. Omitted fields are unchanged."},
	{"pauseSchedule", "POST /schedules/{schedule}/pause", access.Operator, call(ok, (*Server).pauseSchedule), "Pause a schedule."},
	{"resumeSchedule", "POST /schedules/{schedule}/resume", access.Operator, call(ok, (*Server).resumeSchedule), "Resume a paused schedule."},
	{"deleteSchedule", "DELETE /schedules/{schedule}", access.Operator, call(noContent, (*Server).deleteSchedule), "Delete a schedule. Its runs are kept."},
	{"receiveHook", "POST /hooks/{connector}", "", raw((*Server).receiveHook).takesBytes(jsonKind).gives(http.StatusAccepted, wire.Received{}),
		"Receive an inbound webhook for a session. The request must be signed as the connector requires: by the Standard Webhooks specification or with GitHub's signature. A repeated delivery is ignored."},
	{"listConnectors", "GET /connectors", access.Viewer, call(ok, (*Server).listConnectors), "List connectors (inbound webhooks, outbound webhooks and relays) and their pending deliveries."},
	{"listDeliveries", "GET /connectors/{connector}/deliveries", access.Viewer, call(ok, (*Server).listDeliveries), "List the deliveries of a connector, by due time."},
	{"redeliverMessage", "POST /deliveries/{delivery}/redeliver", access.Operator, call(ok, (*Server).redeliverMessage), "Retry a failed delivery."},

	{"listDecisions", "GET /sandbox/{id}/decisions", access.Viewer, call(ok, (*Server).listDecisions), "List the policy decisions about a jail, oldest first."},
	{"reportToolCall", "POST /sandbox/{id}/decisions", access.Operator, call(ok, (*Server).reportToolCall).waits(), "Report a tool call that an agent is about to make, and get the policy decision."},

	{"listApprovals", "GET /approvals", access.Viewer, call(ok, (*Server).listApprovals), "List approval requests: pending ones oldest first, or settled ones newest first."},
	{"streamApprovals", "GET /approvals/events", access.Viewer, raw((*Server).streamApprovals).gives(ok, nil).or(ok, eventKind, wire.ApprovalEvent{}).streams(),
		"Stream the state changes of approval requests. The stream starts with the pending requests."},
	{"getApproval", "GET /approvals/{approval}", access.Viewer, call(ok, (*Server).getApproval).waits(), "Show an approval request, immediately or when it is settled."},
	{"answerApproval", "POST /approvals/{approval}", access.Operator, call(ok, (*Server).answerApproval), "Answer an approval request. Only the first answer takes effect; repeating it is not an error."},
	{"withdrawApproval", "DELETE /approvals/{approval}", access.Operator, call(ok, (*Server).withdrawApproval), "Withdraw an approval request."},
	{"getPushKey", "GET /push/key", access.Viewer, call(ok, (*Server).getPushKey), "Show the public key with which a browser subscribes to push notifications."},
	{"subscribeBrowser", "POST /push/browsers", access.Operator, call(created, (*Server).subscribeBrowser).secret(), "Subscribe a browser to push notifications for approval requests. The subscription replaces the browser's previous one and ends with its login."},
	{"listBrowsers", "GET /push/browsers", access.Operator, call(ok, (*Server).listBrowsers), "List the browsers that receive push notifications, oldest first."},
	{"unsubscribeBrowser", "DELETE /push/browsers/{browser}", access.Operator, call(noContent, (*Server).unsubscribeBrowser), "Unsubscribe a browser from push notifications."},
	{"listDeadNotices", "GET /notices/dead", access.Viewer, call(ok, (*Server).listDeadNotices), "List the notifications that could not be delivered."},
	{"redeliverNotice", "POST /notices/{notice}/redeliver", access.Operator, call(noContent, (*Server).redeliverNotice), "Retry a notification."},
	{"showApprovalLink", "GET /answers/{token}", "", raw((*Server).answerLink).gives(ok, nil).or(ok, htmlKind, nil), "Show the approval request of an approval link. This does not answer it."},
	{"answerApprovalLink", "POST /answers/{token}", "", raw((*Server).answerLink).gives(ok, nil).or(ok, htmlKind, nil), "Answer the approval request of an approval link. A link can be used once."},

	{"listSecrets", "GET /secrets", access.Viewer, call(ok, (*Server).listSecrets), "List secrets and their grants, by name. Values are never returned."},
	{"putSecret", "PUT /secrets/{name}", access.Admin, call(noContent, (*Server).putSecret).secret(), "Store a secret, encrypted, or a reference to an external secret."},
	{"deleteSecret", "DELETE /secrets/{name}", access.Admin, call(noContent, (*Server).deleteSecret), "Delete a secret and revoke its grants."},
	{"grantSecret", "POST /secrets/{name}/grants", access.Operator, call(created, (*Server).grantSecret), "Grant a jail the use of a secret, as a file or injected into requests."},
	{"revokeGrant", "DELETE /grants/{grant}", access.Operator, call(noContent, (*Server).revokeGrant), "Revoke a grant. The revocation takes effect immediately."},
	{"rotateSecrets", "POST /secrets/rotate", access.Admin, call(noContent, (*Server).rotateSecrets), "Re-encrypt all secrets with a new key and destroy the old key."},

	{"registerCapabilities", "POST /capabilities", access.Admin, call(ok, (*Server).registerCapabilities), "Register the capabilities of a manifest. New permissions require approval."},
	{"listCapabilities", "GET /capabilities", access.Viewer, call(ok, (*Server).listCapabilities), "List the versions of all capabilities, by id, newest first."},
	{"getCapability", "GET /capabilities/{capability}", access.Viewer, call(ok, (*Server).getCapability), "Show a version of a capability with its manifest and schemas."},
	{"deleteCapability", "DELETE /capabilities/{capability}", access.Admin, call(noContent, (*Server).deleteCapability), "Delete a version of a capability and its stored data."},
	{"callCapability", "POST /capabilities/{capability}/call", access.Operator, call(ok, (*Server).callCapability), "Call a capability. A failed call is a successful response with state failed; a denied call is an error."},
	{"revokeCapability", "POST /capabilities/{capability}/revoke", access.Operator, call(ok, (*Server).revokeCapability), "Revoke a version of a capability, so that it cannot be called."},
	{"trustCapability", "POST /capabilities/{capability}/trust", access.Admin, call(ok, (*Server).trustCapability), "Set whether a version, identified by its digest, may run directly on the host."},
	{"importCapabilities", "POST /capabilities/import", access.Admin, call(ok, (*Server).importCapabilities), "Start an MCP (Model Context Protocol) server in a jail and generate manifests for its tools."},
	{"addSkill", "POST /skills", access.Operator, call(ok, (*Server).addSkill), "Add a skill, or replace the one with the same name. A skill that names an unapproved capability is rejected."},
	{"listSkills", "GET /skills", access.Viewer, call(ok, (*Server).listSkills), "List skills, by name."},
	{"getSkill", "GET /skills/{name}", access.Viewer, call(ok, (*Server).getSkill), "Show a skill as an agent reads it, with tool definitions of its capabilities."},
	{"deleteSkill", "DELETE /skills/{name}", access.Operator, call(noContent, (*Server).deleteSkill), "Delete a skill. Its capabilities are kept."},
	{"installBundle", "POST /bundles", access.Admin, raw((*Server).installBundle).takesBytes(byteKind).gives(ok, wire.Bundle{}), "Install a bundle. It is verified immediately; then approval is requested."},
	{"listBundles", "GET /bundles", access.Viewer, call(ok, (*Server).listBundles), "List installed bundles and pending installations, by name."},
	{"deleteBundle", "DELETE /bundles/{name}", access.Admin, call(noContent, (*Server).deleteBundle), "Delete a bundle with its capabilities and its skill."},
	{"listPublishers", "GET /publishers", access.Viewer, call(ok, (*Server).listPublishers), "List trusted publishers and the highest tier of each."},
	{"putPublisher", "PUT /publishers/{name}", access.Admin, call(noContent, (*Server).putPublisher), "Trust a publisher's key."},
	{"deletePublisher", "DELETE /publishers/{name}", access.Admin, call(noContent, (*Server).deletePublisher), "Remove a publisher. Its bundles can no longer be installed or called."},
	{"rotatePublisherKey", "POST /publishers/rotate", access.Admin, call(noContent, (*Server).rotatePublisherKey), "Replace a publisher's key. Existing signatures of the old key remain valid."},
	{"revokePublisherTrust", "POST /publishers/revoke", access.Admin, call(noContent, (*Server).revokePublisherTrust), "Revoke trust in a key or bundle digest. Affected bundles can no longer be installed or called."},
	{"searchMarket", "GET /market", access.Viewer, call(ok, (*Server).searchMarket), "Search the bundles that markets offer."},
	{"listOutdatedBundles", "GET /market/outdated", access.Viewer, call(ok, (*Server).listOutdatedBundles), "List installed bundles for which their publisher offers a newer version."},
	{"installFromMarket", "POST /market/install", access.Admin, call(ok, (*Server).installFromMarket), "Install a bundle from a market."},
	{"getCall", "GET /calls/{call}", access.Viewer, call(ok, (*Server).getCall), "Show the result of a recent call."},

	{"listChainEntries", "GET /chain", access.Viewer, call(ok, (*Server).listChainEntries), "List entries of the causal chain (the audit log), oldest first or newest first."},
	{"getChainHead", "GET /chain/head", access.Viewer, call(ok, (*Server).getChainHead), "Show the length of the audit log, its public key, and its newest checkpoint."},
	{"verifyChain", "GET /chain/verify", access.Viewer, call(ok, (*Server).verifyChain), "Verify the audit log: entries, hash links, tree and signatures."},
	{"exportChain", "GET /chain/export", access.Viewer, raw((*Server).exportChain).gives(ok, nil).or(ok, lineKind, wire.ChainEntry{}).streams(),
		"Download the audit log with its checkpoints and public key, for verification elsewhere."},
	{"getChainConsistency", "POST /chain/consistency", access.Viewer, call(ok, (*Server).getChainConsistency), "Prove that the audit log extends the log of an earlier checkpoint."},
	{"getChainEntry", "GET /chain/{seq}", access.Viewer, call(ok, (*Server).getChainEntry), "Show an entry of the audit log."},
	{"listChainCauses", "GET /chain/{seq}/causes", access.Viewer, call(ok, (*Server).listChainCauses), "List the causes of an audit log entry, first cause first."},
	{"replayCall", "POST /chain/{seq}/replay", access.Operator, call(ok, (*Server).replayCall), "Repeat a recorded call of a pure capability and compare the outputs."},
	{"getChainProof", "GET /chain/{seq}/proof", access.Viewer, call(ok, (*Server).getChainProof), "Prove that an entry is in the audit log. The proof is verified with the public key."},

	{"createToken", "POST /tokens", access.Admin, call(created, (*Server).createToken).secret(), "Create a bearer token. The secret is returned only in this response."},
	{"createE2bKey", "POST /e2b/keys", access.Admin, call(created, (*Server).createE2bKey).secret(), "Create a key for clients of the E2B protocol. The key is returned only in this response."},
	{"listTokens", "GET /tokens", access.Admin, call(ok, (*Server).listTokens), "List tokens, oldest first."},
	{"revokeToken", "DELETE /tokens/{id}", access.Admin, call(noContent, (*Server).revokeToken), "Revoke a token."},

	{"createLoginLink", "POST /login-links", access.Admin, call(created, (*Server).createLoginLink).secret(), "Create a login link for a browser. It is valid for ten minutes and can be used once."},
	{"logIn", "POST /login", "", raw((*Server).logIn).takes(wire.LogIn{}).gives(ok, wire.Me{}), "Log in a browser with the code of a login link. The response sets the login cookie."},
	{"logOut", "POST /logout", access.Viewer, raw((*Server).logOut).gives(noContent, nil), "End the login that the request's cookie identifies."},
	{"listLogins", "GET /logins", access.Admin, call(ok, (*Server).listLogins), "List logged-in browsers, oldest first."},
	{"deleteLogin", "DELETE /logins/{login}", access.Admin, call(noContent, (*Server).deleteLogin), "End a login and close its streams."},
	{"streamFeed", "GET /feed", access.Viewer, raw((*Server).streamFeed).
		gives(ok, nil).or(ok, eventKind, jsonschema.OneOf(wire.FeedEvent{}, wire.FeedJailsEvent{}, wire.FeedHelloEvent{}, wire.Page[wire.Schedule]{})).streams(),
		"Stream events and the state of jails. The topics jail, approval, run, notice, step, decision and egress are audit log entries and resume after Last-Event-ID. The topics jails and schedules report the current state."},
	{"getCaller", "GET /me", access.Viewer, call(ok, (*Server).getCaller), "Show the identity of the caller."},

	{"listBackends", "GET /backends", access.Viewer, call(ok, (*Server).listBackends), "List the isolation backends of this host."},
	{"listImages", "GET /images", access.Viewer, call(ok, (*Server).listImages), "List the prepared root filesystems, newest first."},
	{"prepareImage", "POST /images", access.Operator, call(ok, (*Server).prepareImage).waits(), "Prepare a root filesystem, so that the first jail that uses it starts faster."},
	{"pruneImages", "POST /images/prune", access.Admin, call(ok, (*Server).pruneImages), "Delete the root filesystems that no jail uses, and list them."},
	{"diagnoseHost", "GET /doctor", access.Viewer, call(ok, (*Server).diagnoseHost), "Check which features this host supports, with remedies for missing ones."},
	{"getStorage", "GET /storage", access.Viewer, call(ok, (*Server).getStorage), "Show the daemon's disk usage by category, and the warm pool."},
	{"getVersion", "GET /version", access.Viewer, call(ok, (*Server).getVersion), "Show the daemon's version."},
	{"getMetrics", "GET /metrics", access.Viewer, raw((*Server).getMetrics).gives(ok, nil).or(ok, "text/plain", nil), "Get Prometheus metrics."},
	{"checkHealth", "GET /health", "", call(ok, (*Server).checkHealth), "Check that the daemon is alive."},
	{"checkReadiness", "GET /health/ready", "", call(ok, (*Server).checkReadiness), "Check that the daemon is ready to serve requests."},
	{"getOpenApi", "GET /openapi.json", "", raw((*Server).getOpenApi).gives(ok, nil).or(ok, jsonKind, nil), "Get this OpenAPI document."},
	{"getProblem", "GET /problems/{problem}", "", raw((*Server).getProblem).gives(ok, nil).or(ok, htmlKind, nil), "Explain a problem type."},
}

const (
	ok        = http.StatusOK
	created   = http.StatusCreated
	noContent = http.StatusNoContent

	jsonKind  = "application/json"
	byteKind  = "application/octet-stream"
	tarKind   = "application/x-tar"
	eventKind = "text/event-stream"
	lineKind  = "application/x-ndjson"
	textKind  = "text/plain"
	htmlKind  = "text/html"

	markdownKind = "text/markdown"
)
