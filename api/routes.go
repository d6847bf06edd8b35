package api

import (
	"net/http"
	"slices"

	"github.com/swaggest/jsonschema-go"

	"glasshouse/api/wire"
	"glasshouse/policy/access"
)

// routes returns the routes of the API, by subject. A route whose requirement the options do not
// meet responds with the error.
func routes(o Options, h *handlers) []route {
	return slices.Concat(
		[]route{
			{"createJail", "POST /jails", access.Operator, create(h.jail.createJail, jailPlace), "Create a jail."},
			{"listJails", "GET /jails", access.Viewer, call(ok, h.jail.listJails), "List jails, oldest first."},
			{"getJail", "GET /jails/{id}", access.Viewer, call(ok, h.jail.getJail), "Show a jail and its resource usage."},
			{"startJail", "POST /jails/{id}/start", access.Operator, call(ok, h.jail.startJail), "Start a jail."},
			{"stopJail", "POST /jails/{id}/stop", access.Operator, call(ok, h.jail.stopJail), "Stop a jail. Its processes end; its files are kept."},
			{"pauseJail", "POST /jails/{id}/pause", access.Operator, call(ok, h.jail.pauseJail), "Pause (freeze) a jail."},
			{"resumeJail", "POST /jails/{id}/resume", access.Operator, call(ok, h.jail.resumeJail), "Resume a paused jail."},
			{"deleteJail", "DELETE /jails/{id}", access.Operator, call(noContent, h.jail.deleteJail), "Delete a jail and its files, in any state."},
		},

		requires(o.Gateway != nil, noAgents,
			route{"getJailLimits", "GET /jails/{id}/limits", access.Viewer, call(ok, h.limit.getJailLimits), "Show a jail's limits and the history of changes and requests."},
			route{"updateJailLimits", "PATCH /jails/{id}/limits", access.Operator, call(ok, h.limit.updateJailLimits), "Change a jail's limits, also while it runs. Omitted limits are unchanged."},
		),

		requires(o.Snapshots != nil, noSnapshots,
			route{"takeSnapshot", "POST /jails/{id}/snapshot", access.Operator, create(h.snapshot.takeSnapshot, snapshotPlace), "Take a snapshot of a jail. The jail continues to run."},
			route{"listJailSnapshots", "GET /jails/{id}/snapshots", access.Viewer, call(ok, h.snapshot.listJailSnapshots), "List the snapshots of a jail, oldest first. The jail may have been deleted."},
			route{"moveJail", "POST /jails/{id}/move", access.Operator, call(ok, h.fleet.moveJail), "Move a jail to another node of the fleet. Its processes, files, ID and event log are kept; its connections are closed."},
			route{"branchJail", "POST /jails/{id}/branch", access.Operator, call(created, h.snapshot.branchJail), "Branch (fork) a jail. A snapshot is taken, and new jails are created from it."},
			route{"rewindJail", "POST /jails/{id}/rewind", access.Operator, call(ok, h.snapshot.rewindJail), "Rewind a jail to a snapshot. Events since the snapshot are kept in the event log."},
			route{"compareJail", "GET /jails/{id}/diff", access.Viewer, raw(h.diff.compareJail).
				gives(ok, wire.Comparison{}).or(ok, textKind, nil).or(ok, htmlKind, nil),
				"Compare a jail with another jail or a snapshot."},
			route{"listSnapshots", "GET /snapshots", access.Viewer, call(ok, h.snapshot.listSnapshots), "List snapshots, oldest first."},
			route{"getSnapshot", "GET /snapshots/{sid}", access.Viewer, call(ok, h.snapshot.getSnapshot), "Show a snapshot and its disk usage."},
			route{"compareSnapshot", "GET /snapshots/{sid}/diff", access.Viewer, raw(h.diff.compareSnapshot).
				gives(ok, wire.Comparison{}).or(ok, textKind, nil).or(ok, htmlKind, nil),
				"Compare a snapshot with its jail, another jail or another snapshot."},
			route{"exportSnapshot", "GET /snapshots/{sid}/export", access.Operator, raw(h.snapshot.exportSnapshot).
				gives(ok, nil).or(ok, parcelKind, nil),
				"Download a snapshot, with memory and files, as an archive that another host can import."},
			route{"importSnapshot", "POST /snapshots/import", access.Admin, raw(h.snapshot.importSnapshot).
				takesBytes(byteKind, parcelKind).gives(created, wire.Snapshot{}),
				"Import an exported snapshot. The archive must be trusted like a program that runs as root."},
			route{"restoreSnapshot", "POST /snapshots/{sid}/restore", access.Operator, create(h.snapshot.restoreSnapshot, restoredPlace), "Restore a snapshot as a new jail."},
			route{"branchSnapshot", "POST /snapshots/{sid}/branch", access.Operator, call(created, h.snapshot.branchSnapshot), "Branch (fork) jails from a snapshot. If some cannot be created, the response lists the errors."},
			route{"warmSnapshot", "POST /snapshots/{sid}/warm", access.Operator, call(ok, h.snapshot.warmSnapshot), "Create frozen copies of a snapshot in advance, for fast branches."},
			route{"deleteSnapshot", "DELETE /snapshots/{sid}", access.Operator, call(noContent, h.snapshot.deleteSnapshot), "Delete a snapshot. Data that jails and other snapshots use is kept."},
			route{"getLineage", "GET /lineage", access.Viewer, call(ok, h.snapshot.getLineage), "Show the lineage of jails and snapshots as trees."},
		),

		[]route{
			{"execCommand", "POST /jails/{id}/exec", access.Operator, raw(h.exec.execCommand).
				takes(wire.ExecRequest{}).gives(ok, wire.Exec{}).or(created, jsonKind, wire.Exec{}).or(ok, eventKind, wire.Output{}).replayable(),
				"Run a command and wait for it, stream its output, or detach from it."},
			{"listExecs", "GET /jails/{id}/execs", access.Viewer, call(ok, h.exec.listExecs), "List the recent and running commands of a jail, oldest first."},
			{"getExec", "GET /jails/{id}/execs/{exec}", access.Viewer, raw(h.exec.getExec).
				gives(ok, wire.Exec{}).or(ok, eventKind, wire.Output{}),
				"Show a command and its output, or stream its output as events."},
			{"signalExec", "POST /jails/{id}/execs/{exec}/signal", access.Operator, call(noContent, h.exec.signalExec), "Send a signal to a command's process group."},
			{"resizeExec", "POST /jails/{id}/execs/{exec}/resize", access.Operator, call(noContent, h.exec.resizeExec), "Change the size of a command's terminal."},
			{"writeStdin", "POST /jails/{id}/execs/{exec}/stdin", access.Operator, raw(h.exec.writeStdin).
				takesBytes(byteKind).gives(noContent, nil),
				"Write to a command's standard input."},
			{"openTerminal", "GET /jails/{id}/terminal", access.Operator, raw(h.terminal.openTerminal).
				gives(http.StatusSwitchingProtocols, jsonschema.OneOf(wire.TerminalEvent{}, wire.TerminalControl{})).streams(),
				"Open a terminal over a WebSocket. Binary frames carry terminal data. Text frames carry a TerminalEvent from the daemon or a TerminalControl from the client. The close code is 4000 plus the exit code."},
		},

		[]route{
			{"getFile", "GET /jails/{id}/files", access.Viewer, raw(h.file.getFile).
				gives(ok, jsonschema.OneOf(wire.File{}, wire.Page[wire.File]{})).or(ok, byteKind, nil).or(ok, tarKind, nil).or(http.StatusPartialContent, byteKind, nil),
				"Read a file, list a directory, show metadata, or download a tar archive."},
			{"putFile", "PUT /jails/{id}/files", access.Operator, raw(h.file.putFile).
				takesBytes(byteKind, tarKind).gives(ok, wire.File{}),
				"Write a file, create a directory, or extract a tar archive."},
			{"deleteFile", "DELETE /jails/{id}/files", access.Operator, call(noContent, h.file.deleteFile), "Delete a file or directory."},
			{"moveFile", "POST /jails/{id}/files/move", access.Operator, call(noContent, h.file.moveFile), "Rename a file or directory."},
			{"watchFiles", "GET /jails/{id}/files/watch", access.Viewer, raw(h.file.watchFiles).
				gives(ok, nil).or(ok, eventKind, wire.FileEvent{}).streams(),
				"Stream file changes below a path."},
			{"diffFiles", "GET /jails/{id}/fs/diff", access.Viewer, raw(h.diff.diffFiles).
				gives(ok, wire.Page[wire.Change]{}).or(ok, textKind, nil).or(ok, htmlKind, nil),
				"List file changes by path: of a jail's root filesystem or workspace, or relative to a snapshot or another jail."},
		},

		[]route{
			{"streamEvents", "GET /jails/{id}/events", access.Viewer, raw(h.event.streamEvents).
				gives(ok, wire.EventWindow{}).or(ok, eventKind, wire.Event{}).or(ok, lineKind, wire.Event{}).streams(),
				"Stream the events of a jail, from the first one, or from the position that a filter, a time or Last-Event-ID selects. The id of each server-sent event is its seq; the last one is 'end'. With offset or at, return a JSON window of the events instead."},
			{"getTimeline", "GET /jails/{id}/timeline", access.Viewer, call(ok, h.event.getTimeline), "Count the events of a jail by time and type, and by process."},
			{"listProcesses", "GET /jails/{id}/processes", access.Viewer, raw(h.activity.listProcesses).
				gives(ok, wire.Processes{}).or(ok, textKind, nil),
				"Show the process tree of a jail, now or at an earlier time."},
			{"getPastState", "GET /jails/{id}/at", access.Viewer, raw(h.activity.getPastState).gives(ok, wire.Past{}),
				"Show the state of a jail at an earlier time: its processes, changed files, and the nearest snapshot."},
			{"getSyscallProfile", "GET /jails/{id}/syscalls", access.Viewer, raw(h.activity.getSyscallProfile).gives(ok, wire.Profile{}),
				"Summarize the system calls of a jail: frequency, duration and errors."},
			{"listConnections", "GET /jails/{id}/connections", access.Viewer, raw(h.network.listConnections).gives(ok, wire.Connections{}),
				"Summarize the network connections of a jail by host, with the egress decisions."},
			{"listNetworkFlows", "GET /jails/{id}/network/log", access.Viewer, raw(h.network.listNetworkFlows).
				gives(ok, wire.Flows{}).or(ok, lineKind, wire.Event{}).or(ok, textKind, nil),
				"List the network flows of a jail, in order of their start."},
			{"getNetworkPackets", "GET /jails/{id}/network/pcap", access.Viewer, raw(h.network.getNetworkPackets).
				gives(ok, nil).or(ok, "application/x-pcapng", nil),
				"Download the captured packets of a jail."},
			{"getReport", "GET /jails/{id}/report", access.Viewer, raw(h.activity.getReport).
				gives(ok, nil).or(ok, jsonKind, map[string]any{}).or(ok, htmlKind, nil).or(ok, markdownKind, nil),
				"Generate a report of the activity of a jail."},
		},

		[]route{
			{"getPolicy", "GET /jails/{id}/policy", access.Viewer, call(ok, h.policy.getPolicy), "Show a jail's policy, how it is interpreted, and lint findings."},
			{"lintPolicy", "POST /policy/lint", access.Viewer, call(ok, h.policy.lintPolicy), "Lint permission files."},
			{"explainPolicy", "POST /policy/explain", access.Viewer, call(ok, h.policy.explainPolicy), "Evaluate a policy decision without effect, and show the rules considered. No approval is requested and nothing is recorded."},
		},

		requires(o.Governor != nil, noGovernor,
			route{"putPolicy", "PUT /jails/{id}/policy", access.Operator, call(ok, h.policy.putPolicy), "Replace a jail's policy. The new policy takes effect immediately."},
			route{"deletePolicy", "DELETE /jails/{id}/policy", access.Operator, call(noContent, h.policy.deletePolicy), "Remove a jail's policy. Actions that need a policy decision are then denied."},
			route{"setPolicyLevel", "POST /jails/{id}/policy/level", access.Operator, call(ok, h.policy.setPolicyLevel), "Change a jail's autonomy level. It can be lowered, or raised up to the ceiling, and takes effect immediately."},
			route{"requestDecision", "POST /jails/{id}/decide", access.Operator, call(ok, h.policy.requestDecision).waits(), "Evaluate a policy decision, and wait for approval if it is required."},
			route{"getEgress", "GET /jails/{id}/egress", access.Viewer, call(ok, h.policy.getEgress), "Show a jail's egress rules and traffic statistics."},
			route{"putEgress", "PUT /jails/{id}/egress", access.Operator, call(ok, h.policy.putEgress), "Replace a jail's egress rules. They take effect immediately; open connections that they do not allow are closed."},
			route{"reportToolCall", "POST /sandbox/{id}/decisions", access.Operator, call(ok, h.policy.reportToolCall).waits(), "Report a tool call that an agent is about to make, and get the policy decision."},
		),

		requires(o.Runs != nil && o.Gateway != nil, noAgents,
			route{"createSession", "POST /chat/session", access.Operator, create(h.session.createSession, sessionPlace), "Open a session. An existing session with the same id is returned."},
			route{"listSessions", "GET /chat/session", access.Viewer, call(ok, h.session.listSessions), "List sessions, newest first."},
			route{"getSession", "GET /chat/session/{session}", access.Viewer, call(ok, h.session.getSession), "Show a session."},
			route{"closeSession", "DELETE /chat/session/{session}", access.Operator, call(noContent, h.session.closeSession), "Close a session. Its messages are kept."},
			route{"sendMessage", "POST /chat/send", access.Operator, call(ok, h.session.sendMessage), "Send a message to a session's agent."},
			route{"listMessages", "GET /chat/inbox", access.Viewer, call(ok, h.session.listMessages), "List the messages of a session in one direction, oldest first."},
			route{"streamSession", "GET /chat/events/{session}", access.Viewer, raw(h.session.streamSession).
				gives(ok, nil).or(ok, eventKind, wire.RunEvent{}).or(http.StatusSwitchingProtocols, jsonKind, wire.RunEvent{}).streams(),
				"Stream the events of a session, from the first one, or after a number or Last-Event-ID. Over a WebSocket, each text frame is one event."},
			route{"startRun", "POST /chat/run", access.Operator, call(ok, h.run.startRun), "Start a run: an agent pursues a goal, now, at a given time, or on a schedule."},
			route{"listRuns", "GET /chat/run", access.Viewer, call(ok, h.run.listRuns), "List runs, newest first."},
			route{"getRun", "GET /chat/run/{run}", access.Viewer, call(ok, h.run.getRun), "Show a run."},
			route{"listActions", "GET /chat/run/{run}/actions", access.Viewer, call(ok, h.run.listActions), "List the steps of a run in order."},
			route{"checkpointRun", "POST /chat/run/{run}/checkpoint", access.Operator, call(ok, h.run.checkpointRun), "Take a checkpoint of a run and its jail."},
			route{"listCheckpoints", "GET /chat/run/{run}/checkpoints", access.Viewer, call(ok, h.run.listCheckpoints), "List the checkpoints of a run, oldest first."},
			route{"getCheckpoint", "GET /chat/run/{run}/checkpoints/{checkpoint}", access.Viewer, call(ok, h.run.getCheckpoint), "Show a checkpoint with the state that the agent saved."},
			route{"resumeRun", "POST /chat/run/{run}/resume", access.Operator, call(ok, h.run.resumeRun), "Resume a run where it was paused, rewind it to a checkpoint, or branch new runs from a checkpoint."},
			route{"pauseRun", "POST /chat/run/{run}/pause", access.Operator, call(ok, h.run.pauseRun), "Pause a run. Its jail is frozen."},
			route{"cancelRun", "POST /chat/run/{run}/cancel", access.Operator, call(ok, h.run.cancelRun), "Cancel a run and its child runs. For a run that waits for its schedule, the schedule is cancelled."},
			route{"transitionRun", "POST /chat/run/{run}/transition", access.Operator, call(ok, h.run.transitionRun), "Change a run's state manually."},
		),

		requires(o.Schedules != nil && o.Gateway != nil, noAgents,
			route{"listSchedules", "GET /schedules", access.Viewer, call(ok, h.schedule.listSchedules), "List schedules, oldest first."},
			route{"getSchedule", "GET /schedules/{schedule}", access.Viewer, call(ok, h.schedule.getSchedule), "Show a schedule and its next ten due times."},
			route{"updateSchedule", "PATCH /schedules/{schedule}", access.Operator, call(ok, h.schedule.updateSchedule), "Change when a schedule starts runs. Omitted fields are unchanged."},
			route{"pauseSchedule", "POST /schedules/{schedule}/pause", access.Operator, call(ok, h.schedule.pauseSchedule), "Pause a schedule."},
			route{"resumeSchedule", "POST /schedules/{schedule}/resume", access.Operator, call(ok, h.schedule.resumeSchedule), "Resume a paused schedule."},
			route{"deleteSchedule", "DELETE /schedules/{schedule}", access.Operator, call(noContent, h.schedule.deleteSchedule), "Delete a schedule. Its runs are kept."},
		),

		[]route{
			{"previewSchedule", "GET /schedules/times", access.Viewer, call(ok, h.schedule.previewSchedule), "Preview the due times of a schedule. No schedule is created."},
		},

		requires(o.Connectors != nil, noAgents,
			route{"receiveHook", "POST /hooks/{connector}", "", raw(h.connector.receiveHook).takesBytes(jsonKind).gives(http.StatusAccepted, wire.Received{}),
				"Receive an inbound webhook for a session. The request must be signed as the connector requires: by the Standard Webhooks specification or with GitHub's signature. A repeated delivery is ignored."},
			route{"listConnectors", "GET /connectors", access.Viewer, call(ok, h.connector.listConnectors), "List connectors (inbound webhooks, outbound webhooks and relays) and their pending deliveries."},
			route{"listDeliveries", "GET /connectors/{connector}/deliveries", access.Viewer, call(ok, h.connector.listDeliveries), "List the deliveries of a connector, by due time."},
			route{"redeliverMessage", "POST /deliveries/{delivery}/redeliver", access.Operator, call(ok, h.connector.redeliverMessage), "Retry a failed delivery."},
		),

		requires(o.Approvals != nil, noApprovals,
			route{"listApprovals", "GET /approvals", access.Viewer, call(ok, h.approval.listApprovals), "List approval requests: pending ones oldest first, or settled ones newest first."},
			route{"streamApprovals", "GET /approvals/events", access.Viewer, raw(h.approval.streamApprovals).gives(ok, nil).or(ok, eventKind, wire.ApprovalEvent{}).streams(),
				"Stream the state changes of approval requests. The stream starts with the pending requests."},
			route{"getApproval", "GET /approvals/{approval}", access.Viewer, call(ok, h.approval.getApproval).waits(), "Show an approval request, immediately or when it is settled."},
			route{"answerApproval", "POST /approvals/{approval}", access.Operator, call(ok, h.approval.answerApproval), "Answer an approval request. Only the first answer takes effect; repeating it is not an error."},
			route{"withdrawApproval", "DELETE /approvals/{approval}", access.Operator, call(ok, h.approval.withdrawApproval), "Withdraw an approval request."},
			route{"getPushKey", "GET /push/key", access.Viewer, call(ok, h.browser.getPushKey), "Show the public key with which a browser subscribes to push notifications."},
			route{"subscribeBrowser", "POST /push/browsers", access.Operator, call(created, h.browser.subscribeBrowser).secret(), "Subscribe a browser to push notifications for approval requests. The subscription replaces the browser's previous one and ends with its login."},
			route{"listBrowsers", "GET /push/browsers", access.Operator, call(ok, h.browser.listBrowsers), "List the browsers that receive push notifications, oldest first."},
			route{"unsubscribeBrowser", "DELETE /push/browsers/{browser}", access.Operator, call(noContent, h.browser.unsubscribeBrowser), "Unsubscribe a browser from push notifications."},
			route{"listDeadNotices", "GET /notices/dead", access.Viewer, call(ok, h.approval.listDeadNotices), "List the notifications that could not be delivered."},
			route{"redeliverNotice", "POST /notices/{notice}/redeliver", access.Operator, call(noContent, h.approval.redeliverNotice), "Retry a notification."},
			route{"showApprovalLink", "GET /answers/{token}", "", raw(h.approval.answerLink).gives(ok, nil).or(ok, htmlKind, nil), "Show the approval request of an approval link. This does not answer it."},
			route{"answerApprovalLink", "POST /answers/{token}", "", raw(h.approval.answerLink).gives(ok, nil).or(ok, htmlKind, nil), "Answer the approval request of an approval link. A link can be used once."},
		),

		requires(o.Secrets != nil, noSecrets,
			route{"listSecrets", "GET /secrets", access.Viewer, call(ok, h.secret.listSecrets), "List secrets and their grants, by name. Values are never returned."},
			route{"putSecret", "PUT /secrets/{name}", access.Admin, call(noContent, h.secret.putSecret).secret(), "Store a secret, encrypted, or a reference to an external secret."},
			route{"deleteSecret", "DELETE /secrets/{name}", access.Admin, call(noContent, h.secret.deleteSecret), "Delete a secret and revoke its grants."},
			route{"grantSecret", "POST /secrets/{name}/grants", access.Operator, call(created, h.secret.grantSecret), "Grant a jail the use of a secret, as a file or injected into requests."},
			route{"revokeGrant", "DELETE /grants/{grant}", access.Operator, call(noContent, h.secret.revokeGrant), "Revoke a grant. The revocation takes effect immediately."},
			route{"rotateSecrets", "POST /secrets/rotate", access.Admin, call(noContent, h.secret.rotateSecrets), "Re-encrypt all secrets with a new key and destroy the old key."},
		),

		requires(o.Capabilities != nil, noCapabilities,
			route{"registerCapabilities", "POST /capabilities", access.Admin, call(ok, h.capability.registerCapabilities), "Register the capabilities of a manifest. New permissions require approval."},
			route{"listCapabilities", "GET /capabilities", access.Viewer, call(ok, h.capability.listCapabilities), "List the versions of all capabilities, by id, newest first."},
			route{"getCapability", "GET /capabilities/{capability}", access.Viewer, call(ok, h.capability.getCapability), "Show a version of a capability with its manifest and schemas."},
			route{"deleteCapability", "DELETE /capabilities/{capability}", access.Admin, call(noContent, h.capability.deleteCapability), "Delete a version of a capability and its stored data."},
			route{"revokeCapability", "POST /capabilities/{capability}/revoke", access.Operator, call(ok, h.capability.revokeCapability), "Revoke a version of a capability, so that it cannot be called."},
			route{"trustCapability", "POST /capabilities/{capability}/trust", access.Admin, call(ok, h.capability.trustCapability), "Set whether a version, identified by its digest, may run directly on the host."},
			route{"addSkill", "POST /skills", access.Operator, call(ok, h.skill.addSkill), "Add a skill, or replace the one with the same name. A skill that names an unapproved capability is rejected."},
			route{"listSkills", "GET /skills", access.Viewer, call(ok, h.skill.listSkills), "List skills, by name."},
			route{"getSkill", "GET /skills/{name}", access.Viewer, call(ok, h.skill.getSkill), "Show a skill as an agent reads it, with tool definitions of its capabilities."},
			route{"deleteSkill", "DELETE /skills/{name}", access.Operator, call(noContent, h.skill.deleteSkill), "Delete a skill. Its capabilities are kept."},
			route{"installBundle", "POST /bundles", access.Admin, raw(h.bundle.installBundle).takesBytes(byteKind).gives(ok, wire.Bundle{}), "Install a bundle. It is verified immediately; then approval is requested."},
			route{"listBundles", "GET /bundles", access.Viewer, call(ok, h.bundle.listBundles), "List installed bundles and pending installations, by name."},
			route{"deleteBundle", "DELETE /bundles/{name}", access.Admin, call(noContent, h.bundle.deleteBundle), "Delete a bundle with its capabilities and its skill."},
			route{"replayCall", "POST /chain/{seq}/replay", access.Operator, call(ok, h.capability.replayCall), "Repeat a recorded call of a pure capability and compare the outputs."},
		),

		[]route{
			{"callCapability", "POST /capabilities/{capability}/call", access.Operator, call(ok, h.capability.callCapability), "Call a capability. A failed call is a successful response with state failed; a denied call is an error."},
			{"getCall", "GET /calls/{call}", access.Viewer, call(ok, h.capability.getCall), "Show the result of a recent call."},
			{"importCapabilities", "POST /capabilities/import", access.Admin, call(ok, h.capability.importCapabilities), "Start an MCP (Model Context Protocol) server in a jail and generate manifests for its tools."},
		},

		requires(o.Publishers != nil && o.Capabilities != nil, noPublishers,
			route{"listPublishers", "GET /publishers", access.Viewer, call(ok, h.publisher.listPublishers), "List trusted publishers and the highest tier of each."},
			route{"putPublisher", "PUT /publishers/{name}", access.Admin, call(noContent, h.publisher.putPublisher), "Trust a publisher's key."},
			route{"deletePublisher", "DELETE /publishers/{name}", access.Admin, call(noContent, h.publisher.deletePublisher), "Remove a publisher. Its bundles can no longer be installed or called."},
			route{"rotatePublisherKey", "POST /publishers/rotate", access.Admin, call(noContent, h.publisher.rotatePublisherKey), "Replace a publisher's key. Existing signatures of the old key remain valid."},
			route{"revokePublisherTrust", "POST /publishers/revoke", access.Admin, call(noContent, h.publisher.revokePublisherTrust), "Revoke trust in a key or bundle digest. Affected bundles can no longer be installed or called."},
		),

		requires(o.Markets != nil && o.Capabilities != nil, noMarkets,
			route{"searchMarket", "GET /market", access.Viewer, call(ok, h.market.searchMarket), "Search the bundles that markets offer."},
			route{"listOutdatedBundles", "GET /market/outdated", access.Viewer, call(ok, h.market.listOutdatedBundles), "List installed bundles for which their publisher offers a newer version."},
			route{"installFromMarket", "POST /market/install", access.Admin, call(ok, h.market.installFromMarket), "Install a bundle from a market."},
		),

		requires(o.Chain != nil, noChain,
			route{"listDecisions", "GET /sandbox/{id}/decisions", access.Viewer, call(ok, h.chain.listDecisions), "List the policy decisions about a jail, oldest first."},
			route{"listChainEntries", "GET /chain", access.Viewer, call(ok, h.chain.listChainEntries), "List entries of the causal chain (the audit log), oldest first or newest first."},
			route{"getChainHead", "GET /chain/head", access.Viewer, call(ok, h.chain.getChainHead), "Show the length of the audit log, its public key, and its newest checkpoint."},
			route{"verifyChain", "GET /chain/verify", access.Viewer, call(ok, h.chain.verifyChain), "Verify the audit log: entries, hash links, tree and signatures."},
			route{"exportChain", "GET /chain/export", access.Viewer, raw(h.chain.exportChain).gives(ok, nil).or(ok, lineKind, wire.ChainEntry{}).streams(),
				"Download the audit log with its checkpoints and public key, for verification elsewhere."},
			route{"getChainConsistency", "POST /chain/consistency", access.Viewer, call(ok, h.chain.getChainConsistency), "Prove that the audit log extends the log of an earlier checkpoint."},
			route{"listWitnessedLogs", "GET /chain/witnessed", access.Viewer, call(ok, h.chain.listWitnessed), "List what this daemon has seen of the audit logs of other nodes of the fleet."},
			route{"listStoredLogs", "GET /chain/stored", access.Viewer, call(ok, h.chain.listStored), "List the copies of the audit logs of all nodes of the fleet in the object store."},
			route{"getChainEntry", "GET /chain/{seq}", access.Viewer, call(ok, h.chain.getChainEntry), "Show an entry of the audit log."},
			route{"listChainCauses", "GET /chain/{seq}/causes", access.Viewer, call(ok, h.chain.listChainCauses), "List the causes of an audit log entry, first cause first."},
			route{"getChainProof", "GET /chain/{seq}/proof", access.Viewer, call(ok, h.chain.getChainProof), "Prove that an entry is in the audit log. The proof is verified with the public key."},
		),

		[]route{
			{"createToken", "POST /tokens", access.Admin, call(created, h.token.createToken).secret(), "Create a bearer token. The secret is returned only in this response."},
			{"createE2bKey", "POST /e2b/keys", access.Admin, call(created, h.token.createE2bKey).secret(), "Create a key for clients of the E2B protocol. The key is returned only in this response."},
			{"listTokens", "GET /tokens", access.Admin, call(ok, h.token.listTokens), "List tokens, oldest first."},
			{"updateToken", "PATCH /tokens/{id}", access.Admin, call(ok, h.token.updateToken), "Change the quota of a token or an E2B key. Nothing ends if it is lowered below the use."},
			{"revokeToken", "DELETE /tokens/{id}", access.Admin, call(noContent, h.token.revokeToken), "Revoke a token."},
		},

		requires(o.Logins != nil, noLogins,
			route{"createLoginLink", "POST /login-links", access.Admin, call(created, h.login.createLoginLink).secret(), "Create a login link for a browser. It is valid for ten minutes and can be used once."},
			route{"logIn", "POST /login", "", raw(h.login.logIn).takes(wire.LogIn{}).gives(ok, wire.Me{}), "Log in a browser with the code of a login link. The response sets the login cookie."},
			route{"listLogins", "GET /logins", access.Admin, call(ok, h.login.listLogins), "List logged-in browsers, oldest first."},
			route{"deleteLogin", "DELETE /logins/{login}", access.Admin, call(noContent, h.login.deleteLogin), "End a login and close its streams."},
		),

		[]route{
			{"logOut", "POST /logout", access.Viewer, raw(h.login.logOut).gives(noContent, nil), "End the login that the request's cookie identifies."},
			{"getCaller", "GET /me", access.Viewer, call(ok, h.login.getCaller), "Show the identity of the caller."},
			{"streamFeed", "GET /feed", access.Viewer, raw(h.feed.streamFeed).
				gives(ok, nil).or(ok, eventKind, jsonschema.OneOf(wire.FeedEvent{}, wire.FeedJailsEvent{}, wire.FeedHelloEvent{}, wire.Page[wire.Schedule]{})).streams(),
				"Stream events and the state of jails. The topics jail, approval, run, notice, step, decision and egress are audit log entries and resume after Last-Event-ID. The topics jails and schedules report the current state."},
		},

		[]route{
			{"listBackends", "GET /backends", access.Viewer, call(ok, h.host.listBackends), "List the isolation backends of this host."},
			{"listImages", "GET /images", access.Viewer, call(ok, h.image.listImages), "List the prepared root filesystems, newest first."},
			{"prepareImage", "POST /images", access.Operator, call(ok, h.image.prepareImage).waits(), "Prepare a root filesystem, so that the first jail that uses it starts faster."},
			{"pruneImages", "POST /images/prune", access.Admin, call(ok, h.image.pruneImages), "Delete the root filesystems that no jail uses, and list them."},
			{"diagnoseHost", "GET /doctor", access.Viewer, call(ok, h.host.diagnoseHost), "Check which features this host supports, with remedies for missing ones."},
			{"listNodes", "GET /nodes", access.Viewer, call(ok, h.host.listNodes), "List the daemons that share the database of runs, by ID. The list is empty if this daemon shares it with no other."},
			{"createNodeToken", "POST /nodes/tokens", access.Admin, call(created, h.fleet.createNodeToken).secret(), "Create a token with which one daemon can join the fleet within ten minutes. It is returned only in this response."},
			{"updateNode", "PATCH /nodes/{node}", access.Admin, call(ok, h.fleet.updateNode), "Set whether a daemon of the fleet gets new jails and sessions."},
			{"removeNode", "DELETE /nodes/{node}", access.Admin, call(noContent, h.fleet.removeNode), "Remove a daemon from the fleet. Its certificate is then refused."},
			{"getStorage", "GET /storage", access.Viewer, call(ok, h.host.getStorage), "Show the daemon's disk usage by category, and the warm pool."},
			{"getVersion", "GET /version", access.Viewer, call(ok, h.host.getVersion), "Show the daemon's version."},
			{"getMetrics", "GET /metrics", access.Viewer, raw(h.document.getMetrics).gives(ok, nil).or(ok, "text/plain", nil), "Get Prometheus metrics."},
			{"checkHealth", "GET /health", "", call(ok, h.host.checkHealth), "Check that the daemon is alive."},
			{"checkReadiness", "GET /health/ready", "", call(ok, h.host.checkReadiness), "Check that the daemon is ready to serve requests."},
			{"getOpenApi", "GET /openapi.json", "", raw(h.document.getOpenApi).gives(ok, nil).or(ok, jsonKind, nil), "Get this OpenAPI document."},
			{"getProblem", "GET /problems/{problem}", "", raw(h.document.getProblem).gives(ok, nil).or(ok, htmlKind, nil), "Explain a problem type."},
		},
	)
}

// requires sets the error of routes whose requirement is not met.
func requires(met bool, err error, list ...route) []route {
	if met {
		return list
	}
	for i := range list {
		list[i].op.missing = err
	}
	return list
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
