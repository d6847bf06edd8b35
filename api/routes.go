package api

import (
	"net/http"

	"github.com/swaggest/jsonschema-go"

	"glasshouse/access"
	"glasshouse/api/wire"
)

// routes is the API, in the order of the OpenAPI document.
var routes = []route{
	{"POST /jails", access.Operator, create((*Server).createJail, jailPlace), "Make a jail."},
	{"GET /jails", access.Viewer, call(ok, (*Server).listJails), "List jails, oldest first."},
	{"GET /jails/{id}", access.Viewer, call(ok, (*Server).getJail), "Show a jail and what it uses."},
	{"POST /jails/{id}/start", access.Operator, call(ok, (*Server).startJail), "Start a jail."},
	{"POST /jails/{id}/stop", access.Operator, call(ok, (*Server).stopJail), "End every process of a jail. Its files stay."},
	{"POST /jails/{id}/pause", access.Operator, call(ok, (*Server).pauseJail), "Freeze a jail."},
	{"POST /jails/{id}/resume", access.Operator, call(ok, (*Server).resumeJail), "Let a frozen jail go on."},
	{"GET /jails/{id}/limits", access.Viewer, call(ok, (*Server).jailLimits), "Show what a jail may use, and what became of requests for more."},
	{"PATCH /jails/{id}/limits", access.Operator, call(ok, (*Server).limitJail), "Change what a jail may use, while it runs. What is not named stays as it is."},
	{"DELETE /jails/{id}", access.Operator, call(noContent, (*Server).deleteJail), "Remove a jail, whatever its state, and its files."},

	{"POST /jails/{id}/snapshot", access.Operator, create((*Server).takeSnapshot, snapshotPlace), "Take a snapshot of a jail, which goes on."},
	{"GET /jails/{id}/snapshots", access.Viewer, call(ok, (*Server).listSnapshotsOf), "List the snapshots of a jail, oldest first, also of one that is gone."},
	{"POST /jails/{id}/branch", access.Operator, call(created, (*Server).branchJail), "Take a snapshot of a jail and make jails from it."},
	{"POST /jails/{id}/rewind", access.Operator, call(ok, (*Server).rewindJail), "Take a jail back to a snapshot. What it did since stays in its log."},
	{"GET /jails/{id}/diff", access.Viewer, raw((*Server).compareJail).
		gives(ok, wire.Comparison{}).or(ok, textKind, nil).or(ok, htmlKind, nil),
		"Show what differs between a jail and another, or a snapshot."},
	{"GET /snapshots", access.Viewer, call(ok, (*Server).listSnapshots), "List snapshots, oldest first."},
	{"GET /snapshots/{sid}", access.Viewer, call(ok, (*Server).getSnapshot), "Show a snapshot and what it takes on the disk."},
	{"GET /snapshots/{sid}/diff", access.Viewer, raw((*Server).compareSnapshot).
		gives(ok, wire.Comparison{}).or(ok, textKind, nil).or(ok, htmlKind, nil),
		"Show what differs between a snapshot and the jail it was taken of, another jail or another snapshot."},
	{"GET /snapshots/{sid}/export", access.Operator, raw((*Server).exportSnapshot).
		gives(ok, nil).or(ok, parcelKind, nil),
		"Download a snapshot, memory and files, as an archive that another host can import."},
	{"POST /snapshots/import", access.Admin, raw((*Server).importSnapshot).
		takesBytes(byteKind, parcelKind).gives(created, wire.Snapshot{}),
		"Keep a snapshot that was exported. Its archive is trusted like a program that runs as root."},
	{"POST /snapshots/{sid}/restore", access.Operator, create((*Server).restoreSnapshot, restoredPlace), "Make a jail from a snapshot, as it was."},
	{"POST /snapshots/{sid}/branch", access.Operator, call(created, (*Server).branchSnapshot), "Make jails from a snapshot. Some may fail; the answer says which."},
	{"POST /snapshots/{sid}/warm", access.Operator, call(ok, (*Server).warmSnapshot), "Make frozen copies of a snapshot ahead of need."},
	{"DELETE /snapshots/{sid}", access.Operator, call(noContent, (*Server).deleteSnapshot), "Remove a snapshot. What jails and other snapshots stand on stays."},
	{"GET /lineage", access.Viewer, call(ok, (*Server).lineage), "Show which jails and snapshots come from which, as trees."},

	{"POST /jails/{id}/exec", access.Operator, raw((*Server).exec).
		takes(wire.ExecRequest{}).gives(ok, wire.Exec{}).or(created, jsonKind, wire.Exec{}).or(ok, eventKind, wire.Output{}).replayable(),
		"Run a command and wait for it, stream its output, or detach from it."},
	{"GET /jails/{id}/execs", access.Viewer, call(ok, (*Server).listExecs), "List the commands of a jail that are still known, oldest first."},
	{"GET /jails/{id}/execs/{exec}", access.Viewer, raw((*Server).getExec).
		gives(ok, wire.Exec{}).or(ok, eventKind, wire.Output{}),
		"Show a command and its output, or follow it as events."},
	{"POST /jails/{id}/execs/{exec}/signal", access.Operator, call(noContent, (*Server).signalExec), "Send a signal to a command's process group."},
	{"POST /jails/{id}/execs/{exec}/resize", access.Operator, call(noContent, (*Server).resizeExec), "Change the size of a command's terminal."},
	{"POST /jails/{id}/execs/{exec}/stdin", access.Operator, raw((*Server).writeStdin).
		takesBytes(byteKind).gives(noContent, nil),
		"Write to a command's standard input."},
	{"GET /jails/{id}/terminal", access.Operator, raw((*Server).terminal).
		gives(http.StatusSwitchingProtocols, jsonschema.OneOf(wire.TerminalEvent{}, wire.TerminalControl{})).streams(),
		"Open a terminal as a WebSocket. Binary frames are bytes; text frames are a TerminalEvent from the daemon and a TerminalControl to it. The close code is 4000 plus the exit code."},

	{"GET /jails/{id}/files", access.Viewer, raw((*Server).getFile).
		gives(ok, jsonschema.OneOf(wire.File{}, wire.Page[wire.File]{})).or(ok, byteKind, nil).or(ok, tarKind, nil).or(http.StatusPartialContent, byteKind, nil),
		"Read a file, list a directory, describe either, or take a tar archive of it."},
	{"PUT /jails/{id}/files", access.Operator, raw((*Server).putFile).
		takesBytes(byteKind, tarKind).gives(ok, wire.File{}),
		"Write a file, make a directory, or extract a tar archive."},
	{"DELETE /jails/{id}/files", access.Operator, call(noContent, (*Server).deleteFile), "Remove a file or directory."},
	{"POST /jails/{id}/files/move", access.Operator, call(noContent, (*Server).moveFile), "Rename a file or directory."},
	{"GET /jails/{id}/files/watch", access.Viewer, raw((*Server).watchFiles).
		gives(ok, nil).or(ok, eventKind, wire.FileEvent{}).streams(),
		"Stream changes below a path as they happen."},
	{"GET /jails/{id}/fs/diff", access.Viewer, raw((*Server).diffFiles).
		gives(ok, wire.Page[wire.Change]{}).or(ok, textKind, nil).or(ok, htmlKind, nil),
		"List what a jail changed in its root filesystem or its workspace, or how it differs from a snapshot or another jail, by path."},

	{"GET /jails/{id}/events", access.Viewer, raw((*Server).streamEvents).
		gives(ok, wire.EventWindow{}).or(ok, eventKind, wire.Event{}).or(ok, lineKind, wire.Event{}).streams(),
		"Stream what a jail does, from its first record on or from where a filter, a time or Last-Event-ID says. Each event's id is its record's seq; 'end' comes last. With offset or at, answer with a window of it."},
	{"GET /jails/{id}/timeline", access.Viewer, call(ok, (*Server).timeline), "Count what a jail did by time and kind, and by process."},
	{"GET /jails/{id}/processes", access.Viewer, raw((*Server).processes).
		gives(ok, wire.Processes{}).or(ok, textKind, nil),
		"Show the tree of a jail's processes, as it is or as it was."},
	{"GET /jails/{id}/at", access.Viewer, raw((*Server).at).gives(ok, wire.Past{}),
		"Show how a jail was at an instant: its processes, the files it had changed, and the nearest snapshot."},
	{"GET /jails/{id}/syscalls", access.Viewer, raw((*Server).syscalls).gives(ok, wire.Profile{}),
		"Show which system calls a jail made, how long they took and how they failed."},
	{"GET /jails/{id}/connections", access.Viewer, raw((*Server).connections).gives(ok, wire.Connections{}),
		"Show whom a jail talked to, by host, and what was decided about it on its way out."},
	{"GET /jails/{id}/network/log", access.Viewer, raw((*Server).networkLog).
		gives(ok, wire.Flows{}).or(ok, lineKind, wire.Event{}).or(ok, textKind, nil),
		"List whom a jail talked to, in the order it began."},
	{"GET /jails/{id}/network/pcap", access.Viewer, raw((*Server).networkPackets).
		gives(ok, nil).or(ok, "application/x-pcapng", nil),
		"Download what is kept of a jail's packets."},
	{"GET /jails/{id}/report", access.Viewer, raw((*Server).report).
		gives(ok, nil).or(ok, jsonKind, map[string]any{}).or(ok, htmlKind, nil).or(ok, markdownKind, nil),
		"Report on all that a jail did, on one page."},

	{"GET /jails/{id}/policy", access.Viewer, call(ok, (*Server).getPolicy), "Show a jail's policy, how it is read, and what in it does not do what it seems to."},
	{"PUT /jails/{id}/policy", access.Operator, call(ok, (*Server).putPolicy), "Give a jail another policy, at once."},
	{"DELETE /jails/{id}/policy", access.Operator, call(noContent, (*Server).deletePolicy), "Take a jail's policy away. Nothing is allowed any more that is asked about."},
	{"POST /jails/{id}/policy/level", access.Operator, call(ok, (*Server).setLevel), "Change a jail's level of autonomy, at once: down, or up to its ceiling."},
	{"POST /jails/{id}/decide", access.Operator, call(ok, (*Server).decide).waits(), "Ask whether something may be done, and wait for a person if one is to be asked."},
	{"GET /jails/{id}/egress", access.Viewer, call(ok, (*Server).getEgress), "Show what may leave a jail, and what did, in numbers."},
	{"PUT /jails/{id}/egress", access.Operator, call(ok, (*Server).putEgress), "Change what may leave a jail, at once. What is carried and not allowed any more is cut."},
	{"POST /policy/lint", access.Viewer, call(ok, (*Server).lintPolicy), "Say what in permission files does not do what it seems to."},
	{"POST /policy/explain", access.Viewer, call(ok, (*Server).explainPolicy), "Say what a policy would answer, and which rules were looked at. Nothing is asked or recorded."},
	{"POST /chat/session", access.Operator, create((*Server).openSession, sessionPlace), "Open a session, or find the one of that name."},
	{"GET /chat/session", access.Viewer, call(ok, (*Server).listSessions), "List sessions, newest first."},
	{"GET /chat/session/{session}", access.Viewer, call(ok, (*Server).getSession), "Show a session."},
	{"DELETE /chat/session/{session}", access.Operator, call(noContent, (*Server).closeSession), "Close a session. What was said in it stays."},
	{"POST /chat/send", access.Operator, call(ok, (*Server).sendMessage), "Tell a session's agent something."},
	{"GET /chat/inbox", access.Viewer, call(ok, (*Server).listMessages), "List the messages of a session that went one way, oldest first."},
	{"GET /chat/events/{session}", access.Viewer, raw((*Server).followSession).
		gives(ok, nil).or(ok, eventKind, wire.RunEvent{}).or(http.StatusSwitchingProtocols, jsonKind, wire.RunEvent{}).streams(),
		"Stream what happens in a session, from its first event on or from after a number or Last-Event-ID. Over a WebSocket each text frame is an event."},
	{"POST /chat/run", access.Operator, call(ok, (*Server).startRun), "Have an agent pursue a goal: now, at a time, or by a schedule."},
	{"GET /chat/run", access.Viewer, call(ok, (*Server).listRuns), "List runs, newest first."},
	{"GET /chat/run/{run}", access.Viewer, call(ok, (*Server).getRun), "Show a run."},
	{"GET /chat/run/{run}/actions", access.Viewer, call(ok, (*Server).listActions), "List what a run has done, in its order."},
	{"POST /chat/run/{run}/checkpoint", access.Operator, call(ok, (*Server).checkpointRun), "Keep a run as it is, with its jail."},
	{"GET /chat/run/{run}/checkpoints", access.Viewer, call(ok, (*Server).listCheckpoints), "List the checkpoints of a run, oldest first."},
	{"GET /chat/run/{run}/checkpoints/{checkpoint}", access.Viewer, call(ok, (*Server).getCheckpoint), "Show a checkpoint, with what the agent keeps of itself."},
	{"POST /chat/run/{run}/resume", access.Operator, call(ok, (*Server).resumeRun), "Have a run go on where it was, go back to a checkpoint, or go on as others from one."},
	{"POST /chat/run/{run}/pause", access.Operator, call(ok, (*Server).pauseRun), "Have a run wait. Its jail stands still."},
	{"POST /chat/run/{run}/cancel", access.Operator, call(ok, (*Server).cancelRun), "End a run and those that are a part of it; of one that waits for its schedule, the schedule."},
	{"POST /chat/run/{run}/transition", access.Operator, call(ok, (*Server).moveRun), "Change a run's state by hand."},
	{"GET /schedules", access.Viewer, call(ok, (*Server).listSchedules), "List schedules, oldest first."},
	{"GET /schedules/times", access.Viewer, call(ok, (*Server).scheduleTimes), "Say when a schedule would be due that is made now. None is made."},
	{"GET /schedules/{schedule}", access.Viewer, call(ok, (*Server).getSchedule), "Show a schedule, and its next ten times."},
	{"PATCH /schedules/{schedule}", access.Operator, call(ok, (*Server).editSchedule), "Change when a schedule makes runs. What is not named stays as it is."},
	{"POST /schedules/{schedule}/pause", access.Operator, call(ok, (*Server).pauseSchedule), "Have a schedule make no runs."},
	{"POST /schedules/{schedule}/resume", access.Operator, call(ok, (*Server).resumeSchedule), "Have it make runs again."},
	{"DELETE /schedules/{schedule}", access.Operator, call(noContent, (*Server).deleteSchedule), "Remove a schedule. Runs that it has made stay."},
	{"POST /hooks/{connector}", "", raw((*Server).receiveHook).takesBytes(jsonKind).gives(http.StatusAccepted, wire.Received{}),
		"Tell a session something from outside, signed as the connector wants it: by the Standard Webhooks or as GitHub signs. The same twice is taken once."},
	{"GET /connectors", access.Viewer, call(ok, (*Server).listConnectors), "List what joins sessions to others, and what of its deliveries waits."},
	{"GET /connectors/{connector}/deliveries", access.Viewer, call(ok, (*Server).listDeliveries), "List what is or was to be delivered to a connector, by when it is due."},
	{"POST /deliveries/{delivery}/redeliver", access.Operator, call(ok, (*Server).redeliverMessage), "Try a delivery anew that failed too often."},

	{"GET /sandbox/{id}/decisions", access.Viewer, call(ok, (*Server).trail), "List what was decided about a jail, oldest first: its audit trail."},
	{"POST /sandbox/{id}/decisions", access.Operator, call(ok, (*Server).claim).waits(), "Say what an agent is about to do, and hear whether it may."},

	{"GET /approvals", access.Viewer, call(ok, (*Server).listApprovals), "List what waits for a person, oldest first, or what no longer does, newest first."},
	{"GET /approvals/events", access.Viewer, raw((*Server).streamApprovals).gives(ok, nil).or(ok, eventKind, wire.ApprovalEvent{}).streams(),
		"Stream what happens to requests, what waits already first."},
	{"GET /approvals/{approval}", access.Viewer, call(ok, (*Server).getApproval).waits(), "Show a request, at once or as soon as it is settled."},
	{"POST /approvals/{approval}", access.Operator, call(ok, (*Server).answerApproval), "Answer a request. The first answer counts; the same again is no error."},
	{"DELETE /approvals/{approval}", access.Operator, call(ok, (*Server).withdrawApproval), "End a request that nobody needs the answer of."},
	{"GET /push/key", access.Viewer, call(ok, (*Server).pushKey), "Show the key that a browser subscribes to pushes with."},
	{"POST /push/browsers", access.Operator, call(created, (*Server).subscribeBrowser).secret(), "Have a browser told when a person is asked, as long as its login is good. In place of what it had subscribed before."},
	{"GET /push/browsers", access.Operator, call(ok, (*Server).listBrowsers), "List the browsers that are told, oldest first."},
	{"DELETE /push/browsers/{browser}", access.Operator, call(noContent, (*Server).unsubscribeBrowser), "Have a browser told no more."},
	{"GET /notices/dead", access.Viewer, call(ok, (*Server).deadNotices), "List the notices that could not be delivered."},
	{"POST /notices/{notice}/redeliver", access.Operator, call(noContent, (*Server).redeliver), "Try a notice anew."},
	{"GET /answers/{token}", "", raw((*Server).answerLink).gives(ok, nil).or(ok, htmlKind, nil), "Show what a link would decide. Nothing is decided by looking."},
	{"POST /answers/{token}", "", raw((*Server).answerLink).gives(ok, nil).or(ok, htmlKind, nil), "Decide what a link decides, once."},

	{"GET /secrets", access.Viewer, call(ok, (*Server).listSecrets), "List secrets by name, with who may have them. Nobody is shown their values."},
	{"PUT /secrets/{name}", access.Admin, call(noContent, (*Server).putSecret).secret(), "Keep a secret, sealed, or refer to one that others keep."},
	{"DELETE /secrets/{name}", access.Admin, call(noContent, (*Server).deleteSecret), "Remove a secret, from all who have it too."},
	{"POST /secrets/{name}/grants", access.Operator, call(created, (*Server).grantSecret), "Let a jail have a secret, as a file or in requests on their way out."},
	{"DELETE /grants/{grant}", access.Operator, call(noContent, (*Server).revokeGrant), "Take a grant away, at once."},
	{"POST /secrets/rotate", access.Admin, call(noContent, (*Server).rotateSecrets), "Seal all secrets with a new key, and destroy the old one."},

	{"POST /capabilities", access.Admin, call(ok, (*Server).registerCapabilities), "Register the capabilities of a manifest. About what they may do that is new a person is asked."},
	{"GET /capabilities", access.Viewer, call(ok, (*Server).listCapabilities), "List the versions of all capabilities, by id, the newest first."},
	{"GET /capabilities/{capability}", access.Viewer, call(ok, (*Server).getCapability), "Show a version of a capability, with its manifest and its schemas."},
	{"DELETE /capabilities/{capability}", access.Admin, call(noContent, (*Server).deleteCapability), "Remove a version of a capability, and what was kept for it."},
	{"POST /capabilities/{capability}/call", access.Operator, call(ok, (*Server).callCapability), "Call a capability. That it failed is an answer; that it was refused is an error."},
	{"POST /capabilities/{capability}/revoke", access.Operator, call(ok, (*Server).revokeCapability), "Have a version no longer be called, from now on."},
	{"POST /capabilities/{capability}/trust", access.Admin, call(ok, (*Server).trustCapability), "Say whether a version, by its digest, may run on the host itself."},
	{"POST /capabilities/import", access.Admin, call(ok, (*Server).importServer), "Start somebody's server of the Model Context Protocol in a jail, and show manifests of its tools, to be registered."},
	{"POST /skills", access.Operator, call(ok, (*Server).addSkill), "Take up a skill, in place of one of the same name. One that names a capability that nobody has allowed is refused."},
	{"GET /skills", access.Viewer, call(ok, (*Server).listSkills), "List skills, by name."},
	{"GET /skills/{name}", access.Viewer, call(ok, (*Server).getSkill), "Show a skill as an agent reads it, with its capabilities as tools."},
	{"DELETE /skills/{name}", access.Operator, call(noContent, (*Server).deleteSkill), "Forget a skill. Its capabilities stay."},
	{"POST /bundles", access.Admin, raw((*Server).installBundle).takesBytes(byteKind).gives(ok, wire.Bundle{}), "Install a bundle. What is wrong with it is said at once; then a person is asked."},
	{"GET /bundles", access.Viewer, call(ok, (*Server).listBundles), "List bundles that are installed, or that a person is asked about, by name."},
	{"DELETE /bundles/{name}", access.Admin, call(noContent, (*Server).deleteBundle), "Remove a bundle with its capabilities and its skill."},
	{"GET /publishers", access.Viewer, call(ok, (*Server).listPublishers), "List whose bundles are taken, and up to what tier."},
	{"PUT /publishers/{name}", access.Admin, call(noContent, (*Server).putPublisher), "Have bundles taken that are signed by a key."},
	{"DELETE /publishers/{name}", access.Admin, call(noContent, (*Server).deletePublisher), "Have none of a publisher's bundles taken any more, nor called."},
	{"POST /publishers/rotate", access.Admin, call(noContent, (*Server).rotateKey), "Give a publisher a new key. What the old one signed until now stays good."},
	{"POST /publishers/revoke", access.Admin, call(noContent, (*Server).revokeTrust), "Have nothing taken any more, nor called, that a key has signed, or that has a digest."},
	{"GET /market", access.Viewer, call(ok, (*Server).searchMarket), "List what markets offer."},
	{"GET /market/outdated", access.Viewer, call(ok, (*Server).outdatedBundles), "List what is installed and offered in a newer version by its publisher."},
	{"POST /market/install", access.Admin, call(ok, (*Server).installOffer), "Install what a market offers."},
	{"GET /calls/{call}", access.Viewer, call(ok, (*Server).getCall), "Show what became of a call, of those that were last."},

	{"GET /chain", access.Viewer, call(ok, (*Server).listChain), "List entries of the causal chain, oldest first or newest first."},
	{"GET /chain/head", access.Viewer, call(ok, (*Server).chainHead), "Show how long the chain is, its key, and its newest checkpoint."},
	{"GET /chain/verify", access.Viewer, call(ok, (*Server).verifyChain), "Verify the chain: entries, links, tree and signatures."},
	{"GET /chain/export", access.Viewer, raw((*Server).exportChain).gives(ok, nil).or(ok, lineKind, wire.ChainEntry{}).streams(),
		"Download the chain with its checkpoints and its key, so that others can verify it."},
	{"POST /chain/consistency", access.Viewer, call(ok, (*Server).chainConsistency), "Prove that the chain contains one that an earlier checkpoint was signed over."},
	{"GET /chain/{seq}", access.Viewer, call(ok, (*Server).chainEntry), "Show an entry of the chain."},
	{"GET /chain/{seq}/causes", access.Viewer, call(ok, (*Server).chainCauses), "List what caused an entry, the first cause first."},
	{"POST /chain/{seq}/replay", access.Operator, call(ok, (*Server).replayCall), "Make a recorded call of a pure capability again, and compare what comes out."},
	{"GET /chain/{seq}/proof", access.Viewer, call(ok, (*Server).chainProof), "Prove that an entry is in the chain, to who has the public key."},

	{"POST /tokens", access.Admin, call(created, (*Server).createToken).secret(), "Make a bearer token. The answer alone has its secret."},
	{"POST /e2b/keys", access.Admin, call(created, (*Server).createE2BKey).secret(), "Make a key for clients of the E2B protocol. The answer alone has it."},
	{"GET /tokens", access.Admin, call(ok, (*Server).listTokens), "List tokens, oldest first."},
	{"DELETE /tokens/{id}", access.Admin, call(noContent, (*Server).revokeToken), "Revoke a token."},

	{"POST /login-links", access.Admin, call(created, (*Server).createLoginLink).secret(), "Make a link by which a browser logs in, once, within ten minutes."},
	{"POST /login", "", raw((*Server).logIn).takes(wire.LogIn{}).gives(ok, wire.Me{}), "Log a browser in by the code of a link. The answer sets its cookie."},
	{"POST /logout", access.Viewer, raw((*Server).logOut).gives(noContent, nil), "End the login that the request's cookie is of."},
	{"GET /logins", access.Admin, call(ok, (*Server).listLogins), "List the browsers that are logged in, oldest first."},
	{"DELETE /logins/{login}", access.Admin, call(noContent, (*Server).deleteLogin), "End a login, and the streams it reads."},
	{"GET /feed", access.Viewer, raw((*Server).streamFeed).
		gives(ok, nil).or(ok, eventKind, jsonschema.OneOf(wire.FeedEvent{}, wire.FeedJailsEvent{}, wire.FeedHelloEvent{}, wire.Page[wire.Schedule]{})).streams(),
		"Stream what happens, and how jails fare. The topics jail, approval, run, notice, step, decision and egress are entries of the chain, and after a Last-Event-ID go on behind it; jails and schedules are as of now."},
	{"GET /me", access.Viewer, call(ok, (*Server).me), "Show who the caller is."},

	{"GET /backends", access.Viewer, call(ok, (*Server).backends), "List what can isolate on this host."},
	{"GET /images", access.Viewer, call(ok, (*Server).images), "List the root filesystems that are ready, the newest first."},
	{"POST /images", access.Operator, call(ok, (*Server).prepareImage).waits(), "Make a root filesystem ready, so that the first jail on it need not wait."},
	{"POST /images/prune", access.Admin, call(ok, (*Server).pruneImages), "Remove the root filesystems that no jail uses, and list them."},
	{"GET /doctor", access.Viewer, call(ok, (*Server).doctor), "Probe what this host can do, and what to do about what it cannot."},
	{"GET /storage", access.Viewer, call(ok, (*Server).storage), "Show what the daemon keeps on the disk, by what it is for, and the jails that it has made ahead of need."},
	{"GET /version", access.Viewer, call(ok, (*Server).version), "Show what runs."},
	{"GET /metrics", access.Viewer, raw((*Server).serveMetrics).gives(ok, nil).or(ok, "text/plain", nil), "Metrics for Prometheus."},
	{"GET /health", "", call(ok, (*Server).health), "Say that the daemon lives."},
	{"GET /health/ready", "", call(ok, (*Server).ready), "Say that the daemon can serve."},
	{"GET /openapi.json", "", raw((*Server).serveOpenAPI).gives(ok, nil).or(ok, jsonKind, nil), "This document."},
	{"GET /problems/{problem}", "", raw((*Server).explainProblem).gives(ok, nil).or(ok, htmlKind, nil), "Explain a type of problem."},
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
