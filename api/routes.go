package api

import (
	"net/http"

	"github.com/swaggest/jsonschema-go"

	"glasshouse/access"
	"glasshouse/api/wire"
)

// routes is the API, in the order of the OpenAPI document.
var routes = []route{
	{"POST /jails", access.Operator, create((*Server).createJail, jailPlace), "Create a jail."},
	{"GET /jails", access.Viewer, call(ok, (*Server).listJails), "List jails, oldest first."},
	{"GET /jails/{id}", access.Viewer, call(ok, (*Server).getJail), "Show a jail and its resource usage."},
	{"POST /jails/{id}/start", access.Operator, call(ok, (*Server).startJail), "Start a jail."},
	{"POST /jails/{id}/stop", access.Operator, call(ok, (*Server).stopJail), "Stop a jail. Its processes end; its files are kept."},
	{"POST /jails/{id}/pause", access.Operator, call(ok, (*Server).pauseJail), "Pause (freeze) a jail."},
	{"POST /jails/{id}/resume", access.Operator, call(ok, (*Server).resumeJail), "Resume a paused jail."},
	{"GET /jails/{id}/limits", access.Viewer, call(ok, (*Server).jailLimits), "Show a jail's limits and the history of changes and requests."},
	{"PATCH /jails/{id}/limits", access.Operator, call(ok, (*Server).limitJail), "Change a jail's limits, also while it runs. Omitted limits are unchanged."},
	{"DELETE /jails/{id}", access.Operator, call(noContent, (*Server).deleteJail), "Delete a jail and its files, in any state."},

	{"POST /jails/{id}/snapshot", access.Operator, create((*Server).takeSnapshot, snapshotPlace), "Take a snapshot of a jail. The jail continues to run."},
	{"GET /jails/{id}/snapshots", access.Viewer, call(ok, (*Server).listSnapshotsOf), "List the snapshots of a jail, oldest first. The jail may have been deleted."},
	{"POST /jails/{id}/branch", access.Operator, call(created, (*Server).branchJail), "Branch (fork) a jail. A snapshot is taken, and new jails are created from it."},
	{"POST /jails/{id}/rewind", access.Operator, call(ok, (*Server).rewindJail), "Rewind a jail to a snapshot. Events since the snapshot are kept in the event log."},
	{"GET /jails/{id}/diff", access.Viewer, raw((*Server).compareJail).
		gives(ok, wire.Comparison{}).or(ok, textKind, nil).or(ok, htmlKind, nil),
		"Compare a jail with another jail or a snapshot."},
	{"GET /snapshots", access.Viewer, call(ok, (*Server).listSnapshots), "List snapshots, oldest first."},
	{"GET /snapshots/{sid}", access.Viewer, call(ok, (*Server).getSnapshot), "Show a snapshot and its disk usage."},
	{"GET /snapshots/{sid}/diff", access.Viewer, raw((*Server).compareSnapshot).
		gives(ok, wire.Comparison{}).or(ok, textKind, nil).or(ok, htmlKind, nil),
		"Compare a snapshot with its jail, another jail or another snapshot."},
	{"GET /snapshots/{sid}/export", access.Operator, raw((*Server).exportSnapshot).
		gives(ok, nil).or(ok, parcelKind, nil),
		"Download a snapshot, with memory and files, as an archive that another host can import."},
	{"POST /snapshots/import", access.Admin, raw((*Server).importSnapshot).
		takesBytes(byteKind, parcelKind).gives(created, wire.Snapshot{}),
		"Import an exported snapshot. The archive must be trusted like a program that runs as root."},
	{"POST /snapshots/{sid}/restore", access.Operator, create((*Server).restoreSnapshot, restoredPlace), "Restore a snapshot as a new jail."},
	{"POST /snapshots/{sid}/branch", access.Operator, call(created, (*Server).branchSnapshot), "Branch (fork) jails from a snapshot. If some cannot be created, the response lists the errors."},
	{"POST /snapshots/{sid}/warm", access.Operator, call(ok, (*Server).warmSnapshot), "Create frozen copies of a snapshot in advance, for fast branches."},
	{"DELETE /snapshots/{sid}", access.Operator, call(noContent, (*Server).deleteSnapshot), "Delete a snapshot. Data that jails and other snapshots use is kept."},
	{"GET /lineage", access.Viewer, call(ok, (*Server).lineage), "Show the lineage of jails and snapshots as trees."},

	{"POST /jails/{id}/exec", access.Operator, raw((*Server).exec).
		takes(wire.ExecRequest{}).gives(ok, wire.Exec{}).or(created, jsonKind, wire.Exec{}).or(ok, eventKind, wire.Output{}).replayable(),
		"Run a command and wait for it, stream its output, or detach from it."},
	{"GET /jails/{id}/execs", access.Viewer, call(ok, (*Server).listExecs), "List the recent and running commands of a jail, oldest first."},
	{"GET /jails/{id}/execs/{exec}", access.Viewer, raw((*Server).getExec).
		gives(ok, wire.Exec{}).or(ok, eventKind, wire.Output{}),
		"Show a command and its output, or stream its output as events."},
	{"POST /jails/{id}/execs/{exec}/signal", access.Operator, call(noContent, (*Server).signalExec), "Send a signal to a command's process group."},
	{"POST /jails/{id}/execs/{exec}/resize", access.Operator, call(noContent, (*Server).resizeExec), "Change the size of a command's terminal."},
	{"POST /jails/{id}/execs/{exec}/stdin", access.Operator, raw((*Server).writeStdin).
		takesBytes(byteKind).gives(noContent, nil),
		"Write to a command's standard input."},
	{"GET /jails/{id}/terminal", access.Operator, raw((*Server).terminal).
		gives(http.StatusSwitchingProtocols, jsonschema.OneOf(wire.TerminalEvent{}, wire.TerminalControl{})).streams(),
		"Open a terminal over a WebSocket. Binary frames carry terminal data. Text frames carry a TerminalEvent from the daemon or a TerminalControl from the client. The close code is 4000 plus the exit code."},

	{"GET /jails/{id}/files", access.Viewer, raw((*Server).getFile).
		gives(ok, jsonschema.OneOf(wire.File{}, wire.Page[wire.File]{})).or(ok, byteKind, nil).or(ok, tarKind, nil).or(http.StatusPartialContent, byteKind, nil),
		"Read a file, list a directory, show metadata, or download a tar archive."},
	{"PUT /jails/{id}/files", access.Operator, raw((*Server).putFile).
		takesBytes(byteKind, tarKind).gives(ok, wire.File{}),
		"Write a file, create a directory, or extract a tar archive."},
	{"DELETE /jails/{id}/files", access.Operator, call(noContent, (*Server).deleteFile), "Delete a file or directory."},
	{"POST /jails/{id}/files/move", access.Operator, call(noContent, (*Server).moveFile), "Rename a file or directory."},
	{"GET /jails/{id}/files/watch", access.Viewer, raw((*Server).watchFiles).
		gives(ok, nil).or(ok, eventKind, wire.FileEvent{}).streams(),
		"Stream file changes below a path."},
	{"GET /jails/{id}/fs/diff", access.Viewer, raw((*Server).diffFiles).
		gives(ok, wire.Page[wire.Change]{}).or(ok, textKind, nil).or(ok, htmlKind, nil),
		"List file changes by path: of a jail's root filesystem or workspace, or relative to a snapshot or another jail."},

	{"GET /jails/{id}/events", access.Viewer, raw((*Server).streamEvents).
		gives(ok, wire.EventWindow{}).or(ok, eventKind, wire.Event{}).or(ok, lineKind, wire.Event{}).streams(),
		"Stream the events of a jail, from the first one, or from the position that a filter, a time or Last-Event-ID selects. The id of each server-sent event is its seq; the last one is 'end'. With offset or at, return a JSON window of the events instead."},
	{"GET /jails/{id}/timeline", access.Viewer, call(ok, (*Server).timeline), "Count the events of a jail by time and type, and by process."},
	{"GET /jails/{id}/processes", access.Viewer, raw((*Server).processes).
		gives(ok, wire.Processes{}).or(ok, textKind, nil),
		"Show the process tree of a jail, now or at an earlier time."},
	{"GET /jails/{id}/at", access.Viewer, raw((*Server).at).gives(ok, wire.Past{}),
		"Show the state of a jail at an earlier time: its processes, changed files, and the nearest snapshot."},
	{"GET /jails/{id}/syscalls", access.Viewer, raw((*Server).syscalls).gives(ok, wire.Profile{}),
		"Summarize the system calls of a jail: frequency, duration and errors."},
	{"GET /jails/{id}/connections", access.Viewer, raw((*Server).connections).gives(ok, wire.Connections{}),
		"Summarize the network connections of a jail by host, with the egress decisions."},
	{"GET /jails/{id}/network/log", access.Viewer, raw((*Server).networkLog).
		gives(ok, wire.Flows{}).or(ok, lineKind, wire.Event{}).or(ok, textKind, nil),
		"List the network flows of a jail, in order of their start."},
	{"GET /jails/{id}/network/pcap", access.Viewer, raw((*Server).networkPackets).
		gives(ok, nil).or(ok, "application/x-pcapng", nil),
		"Download the captured packets of a jail."},
	{"GET /jails/{id}/report", access.Viewer, raw((*Server).report).
		gives(ok, nil).or(ok, jsonKind, map[string]any{}).or(ok, htmlKind, nil).or(ok, markdownKind, nil),
		"Generate a report of the activity of a jail."},

	{"GET /jails/{id}/policy", access.Viewer, call(ok, (*Server).getPolicy), "Show a jail's policy, how it is interpreted, and lint findings."},
	{"PUT /jails/{id}/policy", access.Operator, call(ok, (*Server).putPolicy), "Replace a jail's policy. The new policy takes effect immediately."},
	{"DELETE /jails/{id}/policy", access.Operator, call(noContent, (*Server).deletePolicy), "Remove a jail's policy. Actions that need a policy decision are then denied."},
	{"POST /jails/{id}/policy/level", access.Operator, call(ok, (*Server).setLevel), "Change a jail's autonomy level. It can be lowered, or raised up to the ceiling, and takes effect immediately."},
	{"POST /jails/{id}/decide", access.Operator, call(ok, (*Server).decide).waits(), "Evaluate a policy decision, and wait for approval if it is required."},
	{"GET /jails/{id}/egress", access.Viewer, call(ok, (*Server).getEgress), "Show a jail's egress rules and traffic statistics."},
	{"PUT /jails/{id}/egress", access.Operator, call(ok, (*Server).putEgress), "Replace a jail's egress rules. They take effect immediately; open connections that they do not allow are closed."},
	{"POST /policy/lint", access.Viewer, call(ok, (*Server).lintPolicy), "Lint permission files."},
	{"POST /policy/explain", access.Viewer, call(ok, (*Server).explainPolicy), "Evaluate a policy decision without effect, and show the rules considered. No approval is requested and nothing is recorded."},
	{"POST /chat/session", access.Operator, create((*Server).openSession, sessionPlace), "Open a session. An existing session with the same id is returned."},
	{"GET /chat/session", access.Viewer, call(ok, (*Server).listSessions), "List sessions, newest first."},
	{"GET /chat/session/{session}", access.Viewer, call(ok, (*Server).getSession), "Show a session."},
	{"DELETE /chat/session/{session}", access.Operator, call(noContent, (*Server).closeSession), "Close a session. Its messages are kept."},
	{"POST /chat/send", access.Operator, call(ok, (*Server).sendMessage), "Send a message to a session's agent."},
	{"GET /chat/inbox", access.Viewer, call(ok, (*Server).listMessages), "List the messages of a session in one direction, oldest first."},
	{"GET /chat/events/{session}", access.Viewer, raw((*Server).followSession).
		gives(ok, nil).or(ok, eventKind, wire.RunEvent{}).or(http.StatusSwitchingProtocols, jsonKind, wire.RunEvent{}).streams(),
		"Stream the events of a session, from the first one, or after a number or Last-Event-ID. Over a WebSocket, each text frame is one event."},
	{"POST /chat/run", access.Operator, call(ok, (*Server).startRun), "Start a run: an agent pursues a goal, now, at a given time, or on a schedule."},
	{"GET /chat/run", access.Viewer, call(ok, (*Server).listRuns), "List runs, newest first."},
	{"GET /chat/run/{run}", access.Viewer, call(ok, (*Server).getRun), "Show a run."},
	{"GET /chat/run/{run}/actions", access.Viewer, call(ok, (*Server).listActions), "List the steps of a run in order."},
	{"POST /chat/run/{run}/checkpoint", access.Operator, call(ok, (*Server).checkpointRun), "Take a checkpoint of a run and its jail."},
	{"GET /chat/run/{run}/checkpoints", access.Viewer, call(ok, (*Server).listCheckpoints), "List the checkpoints of a run, oldest first."},
	{"GET /chat/run/{run}/checkpoints/{checkpoint}", access.Viewer, call(ok, (*Server).getCheckpoint), "Show a checkpoint with the state that the agent saved."},
	{"POST /chat/run/{run}/resume", access.Operator, call(ok, (*Server).resumeRun), "Resume a run where it was paused, rewind it to a checkpoint, or branch new runs from a checkpoint."},
	{"POST /chat/run/{run}/pause", access.Operator, call(ok, (*Server).pauseRun), "Pause a run. Its jail is frozen."},
	{"POST /chat/run/{run}/cancel", access.Operator, call(ok, (*Server).cancelRun), "Cancel a run and its child runs. For a run that waits for its schedule, the schedule is cancelled."},
	{"POST /chat/run/{run}/transition", access.Operator, call(ok, (*Server).moveRun), "Change a run's state manually."},
	{"GET /schedules", access.Viewer, call(ok, (*Server).listSchedules), "List schedules, oldest first."},
	{"GET /schedules/times", access.Viewer, call(ok, (*Server).scheduleTimes), "Preview the due times of a schedule. No schedule is created."},
	{"GET /schedules/{schedule}", access.Viewer, call(ok, (*Server).getSchedule), "Show a schedule and its next ten due times."},
	{"PATCH /schedules/{schedule}", access.Operator, call(ok, (*Server).editSchedule), "Change when a schedule starts runs. Omitted fields are unchanged."},
	{"POST /schedules/{schedule}/pause", access.Operator, call(ok, (*Server).pauseSchedule), "Pause a schedule."},
	{"POST /schedules/{schedule}/resume", access.Operator, call(ok, (*Server).resumeSchedule), "Resume a paused schedule."},
	{"DELETE /schedules/{schedule}", access.Operator, call(noContent, (*Server).deleteSchedule), "Delete a schedule. Its runs are kept."},
	{"POST /hooks/{connector}", "", raw((*Server).receiveHook).takesBytes(jsonKind).gives(http.StatusAccepted, wire.Received{}),
		"Receive an inbound webhook for a session. The request must be signed as the connector requires: by the Standard Webhooks specification or with GitHub's signature. A repeated delivery is ignored."},
	{"GET /connectors", access.Viewer, call(ok, (*Server).listConnectors), "List connectors (inbound webhooks, outbound webhooks and relays) and their pending deliveries."},
	{"GET /connectors/{connector}/deliveries", access.Viewer, call(ok, (*Server).listDeliveries), "List the deliveries of a connector, by due time."},
	{"POST /deliveries/{delivery}/redeliver", access.Operator, call(ok, (*Server).redeliverMessage), "Retry a failed delivery."},

	{"GET /sandbox/{id}/decisions", access.Viewer, call(ok, (*Server).trail), "List the policy decisions about a jail, oldest first."},
	{"POST /sandbox/{id}/decisions", access.Operator, call(ok, (*Server).claim).waits(), "Report a tool call that an agent is about to make, and get the policy decision."},

	{"GET /approvals", access.Viewer, call(ok, (*Server).listApprovals), "List approval requests: pending ones oldest first, or settled ones newest first."},
	{"GET /approvals/events", access.Viewer, raw((*Server).streamApprovals).gives(ok, nil).or(ok, eventKind, wire.ApprovalEvent{}).streams(),
		"Stream the state changes of approval requests. The stream starts with the pending requests."},
	{"GET /approvals/{approval}", access.Viewer, call(ok, (*Server).getApproval).waits(), "Show an approval request, immediately or when it is settled."},
	{"POST /approvals/{approval}", access.Operator, call(ok, (*Server).answerApproval), "Answer an approval request. Only the first answer takes effect; repeating it is not an error."},
	{"DELETE /approvals/{approval}", access.Operator, call(ok, (*Server).withdrawApproval), "Withdraw an approval request."},
	{"GET /push/key", access.Viewer, call(ok, (*Server).pushKey), "Show the public key with which a browser subscribes to push notifications."},
	{"POST /push/browsers", access.Operator, call(created, (*Server).subscribeBrowser).secret(), "Subscribe a browser to push notifications for approval requests. The subscription replaces the browser's previous one and ends with its login."},
	{"GET /push/browsers", access.Operator, call(ok, (*Server).listBrowsers), "List the browsers that receive push notifications, oldest first."},
	{"DELETE /push/browsers/{browser}", access.Operator, call(noContent, (*Server).unsubscribeBrowser), "Unsubscribe a browser from push notifications."},
	{"GET /notices/dead", access.Viewer, call(ok, (*Server).deadNotices), "List the notifications that could not be delivered."},
	{"POST /notices/{notice}/redeliver", access.Operator, call(noContent, (*Server).redeliver), "Retry a notification."},
	{"GET /answers/{token}", "", raw((*Server).answerLink).gives(ok, nil).or(ok, htmlKind, nil), "Show the approval request of an approval link. This does not answer it."},
	{"POST /answers/{token}", "", raw((*Server).answerLink).gives(ok, nil).or(ok, htmlKind, nil), "Answer the approval request of an approval link. A link can be used once."},

	{"GET /secrets", access.Viewer, call(ok, (*Server).listSecrets), "List secrets and their grants, by name. Values are never returned."},
	{"PUT /secrets/{name}", access.Admin, call(noContent, (*Server).putSecret).secret(), "Store a secret, encrypted, or a reference to an external secret."},
	{"DELETE /secrets/{name}", access.Admin, call(noContent, (*Server).deleteSecret), "Delete a secret and revoke its grants."},
	{"POST /secrets/{name}/grants", access.Operator, call(created, (*Server).grantSecret), "Grant a jail the use of a secret, as a file or injected into requests."},
	{"DELETE /grants/{grant}", access.Operator, call(noContent, (*Server).revokeGrant), "Revoke a grant. The revocation takes effect immediately."},
	{"POST /secrets/rotate", access.Admin, call(noContent, (*Server).rotateSecrets), "Re-encrypt all secrets with a new key and destroy the old key."},

	{"POST /capabilities", access.Admin, call(ok, (*Server).registerCapabilities), "Register the capabilities of a manifest. New permissions require approval."},
	{"GET /capabilities", access.Viewer, call(ok, (*Server).listCapabilities), "List the versions of all capabilities, by id, newest first."},
	{"GET /capabilities/{capability}", access.Viewer, call(ok, (*Server).getCapability), "Show a version of a capability with its manifest and schemas."},
	{"DELETE /capabilities/{capability}", access.Admin, call(noContent, (*Server).deleteCapability), "Delete a version of a capability and its stored data."},
	{"POST /capabilities/{capability}/call", access.Operator, call(ok, (*Server).callCapability), "Call a capability. A failed call is a successful response with state failed; a denied call is an error."},
	{"POST /capabilities/{capability}/revoke", access.Operator, call(ok, (*Server).revokeCapability), "Revoke a version of a capability, so that it cannot be called."},
	{"POST /capabilities/{capability}/trust", access.Admin, call(ok, (*Server).trustCapability), "Set whether a version, identified by its digest, may run directly on the host."},
	{"POST /capabilities/import", access.Admin, call(ok, (*Server).importServer), "Start an MCP (Model Context Protocol) server in a jail and generate manifests for its tools."},
	{"POST /skills", access.Operator, call(ok, (*Server).addSkill), "Add a skill, or replace the one with the same name. A skill that names an unapproved capability is rejected."},
	{"GET /skills", access.Viewer, call(ok, (*Server).listSkills), "List skills, by name."},
	{"GET /skills/{name}", access.Viewer, call(ok, (*Server).getSkill), "Show a skill as an agent reads it, with tool definitions of its capabilities."},
	{"DELETE /skills/{name}", access.Operator, call(noContent, (*Server).deleteSkill), "Delete a skill. Its capabilities are kept."},
	{"POST /bundles", access.Admin, raw((*Server).installBundle).takesBytes(byteKind).gives(ok, wire.Bundle{}), "Install a bundle. It is verified immediately; then approval is requested."},
	{"GET /bundles", access.Viewer, call(ok, (*Server).listBundles), "List installed bundles and pending installations, by name."},
	{"DELETE /bundles/{name}", access.Admin, call(noContent, (*Server).deleteBundle), "Delete a bundle with its capabilities and its skill."},
	{"GET /publishers", access.Viewer, call(ok, (*Server).listPublishers), "List trusted publishers and the highest tier of each."},
	{"PUT /publishers/{name}", access.Admin, call(noContent, (*Server).putPublisher), "Trust a publisher's key."},
	{"DELETE /publishers/{name}", access.Admin, call(noContent, (*Server).deletePublisher), "Remove a publisher. Its bundles can no longer be installed or called."},
	{"POST /publishers/rotate", access.Admin, call(noContent, (*Server).rotateKey), "Replace a publisher's key. Existing signatures of the old key remain valid."},
	{"POST /publishers/revoke", access.Admin, call(noContent, (*Server).revokeTrust), "Revoke trust in a key or bundle digest. Affected bundles can no longer be installed or called."},
	{"GET /market", access.Viewer, call(ok, (*Server).searchMarket), "Search the bundles that markets offer."},
	{"GET /market/outdated", access.Viewer, call(ok, (*Server).outdatedBundles), "List installed bundles for which their publisher offers a newer version."},
	{"POST /market/install", access.Admin, call(ok, (*Server).installOffer), "Install a bundle from a market."},
	{"GET /calls/{call}", access.Viewer, call(ok, (*Server).getCall), "Show the result of a recent call."},

	{"GET /chain", access.Viewer, call(ok, (*Server).listChain), "List entries of the causal chain (the audit log), oldest first or newest first."},
	{"GET /chain/head", access.Viewer, call(ok, (*Server).chainHead), "Show the length of the audit log, its public key, and its newest checkpoint."},
	{"GET /chain/verify", access.Viewer, call(ok, (*Server).verifyChain), "Verify the audit log: entries, hash links, tree and signatures."},
	{"GET /chain/export", access.Viewer, raw((*Server).exportChain).gives(ok, nil).or(ok, lineKind, wire.ChainEntry{}).streams(),
		"Download the audit log with its checkpoints and public key, for verification elsewhere."},
	{"POST /chain/consistency", access.Viewer, call(ok, (*Server).chainConsistency), "Prove that the audit log extends the log of an earlier checkpoint."},
	{"GET /chain/{seq}", access.Viewer, call(ok, (*Server).chainEntry), "Show an entry of the audit log."},
	{"GET /chain/{seq}/causes", access.Viewer, call(ok, (*Server).chainCauses), "List the causes of an audit log entry, first cause first."},
	{"POST /chain/{seq}/replay", access.Operator, call(ok, (*Server).replayCall), "Repeat a recorded call of a pure capability and compare the outputs."},
	{"GET /chain/{seq}/proof", access.Viewer, call(ok, (*Server).chainProof), "Prove that an entry is in the audit log. The proof is verified with the public key."},

	{"POST /tokens", access.Admin, call(created, (*Server).createToken).secret(), "Create a bearer token. The secret is returned only in this response."},
	{"POST /e2b/keys", access.Admin, call(created, (*Server).createE2BKey).secret(), "Create a key for clients of the E2B protocol. The key is returned only in this response."},
	{"GET /tokens", access.Admin, call(ok, (*Server).listTokens), "List tokens, oldest first."},
	{"DELETE /tokens/{id}", access.Admin, call(noContent, (*Server).revokeToken), "Revoke a token."},

	{"POST /login-links", access.Admin, call(created, (*Server).createLoginLink).secret(), "Create a login link for a browser. It is valid for ten minutes and can be used once."},
	{"POST /login", "", raw((*Server).logIn).takes(wire.LogIn{}).gives(ok, wire.Me{}), "Log in a browser with the code of a login link. The response sets the login cookie."},
	{"POST /logout", access.Viewer, raw((*Server).logOut).gives(noContent, nil), "End the login that the request's cookie identifies."},
	{"GET /logins", access.Admin, call(ok, (*Server).listLogins), "List logged-in browsers, oldest first."},
	{"DELETE /logins/{login}", access.Admin, call(noContent, (*Server).deleteLogin), "End a login and close its streams."},
	{"GET /feed", access.Viewer, raw((*Server).streamFeed).
		gives(ok, nil).or(ok, eventKind, jsonschema.OneOf(wire.FeedEvent{}, wire.FeedJailsEvent{}, wire.FeedHelloEvent{}, wire.Page[wire.Schedule]{})).streams(),
		"Stream events and the state of jails. The topics jail, approval, run, notice, step, decision and egress are audit log entries and resume after Last-Event-ID. The topics jails and schedules report the current state."},
	{"GET /me", access.Viewer, call(ok, (*Server).me), "Show the identity of the caller."},

	{"GET /backends", access.Viewer, call(ok, (*Server).backends), "List the isolation backends of this host."},
	{"GET /images", access.Viewer, call(ok, (*Server).images), "List the prepared root filesystems, newest first."},
	{"POST /images", access.Operator, call(ok, (*Server).prepareImage).waits(), "Prepare a root filesystem, so that the first jail that uses it starts faster."},
	{"POST /images/prune", access.Admin, call(ok, (*Server).pruneImages), "Delete the root filesystems that no jail uses, and list them."},
	{"GET /doctor", access.Viewer, call(ok, (*Server).doctor), "Check which features this host supports, with remedies for missing ones."},
	{"GET /storage", access.Viewer, call(ok, (*Server).storage), "Show the daemon's disk usage by category, and the warm pool."},
	{"GET /version", access.Viewer, call(ok, (*Server).version), "Show the daemon's version."},
	{"GET /metrics", access.Viewer, raw((*Server).serveMetrics).gives(ok, nil).or(ok, "text/plain", nil), "Get Prometheus metrics."},
	{"GET /health", "", call(ok, (*Server).health), "Check that the daemon is alive."},
	{"GET /health/ready", "", call(ok, (*Server).ready), "Check that the daemon is ready to serve requests."},
	{"GET /openapi.json", "", raw((*Server).serveOpenAPI).gives(ok, nil).or(ok, jsonKind, nil), "Get this OpenAPI document."},
	{"GET /problems/{problem}", "", raw((*Server).explainProblem).gives(ok, nil).or(ok, htmlKind, nil), "Explain a problem type."},
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
