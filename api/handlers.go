package api

import "sync"

// handlers serve the routes, by subject.
type handlers struct {
	jail       *jailHandler
	limit      *limitHandler
	snapshot   *snapshotHandler
	diff       *diffHandler
	exec       *execHandler
	terminal   *terminalHandler
	file       *fileHandler
	event      *eventHandler
	activity   *activityHandler
	network    *networkHandler
	policy     *policyHandler
	session    *sessionHandler
	run        *runHandler
	schedule   *scheduleHandler
	connector  *connectorHandler
	approval   *approvalHandler
	browser    *browserHandler
	secret     *secretHandler
	capability *capabilityHandler
	skill      *skillHandler
	bundle     *bundleHandler
	publisher  *publisherHandler
	market     *marketHandler
	chain      *chainHandler
	token      *tokenHandler
	login      *loginHandler
	feed       *feedHandler
	image      *imageHandler
	host       *hostHandler
	fleet      *fleetHandler
	document   *documentHandler
	agent      *agentHandler
}

// newHandlers returns the handlers of a server.
func newHandlers(o Options, s *Server) *handlers {
	st, ps, ms := s.streams, s.problems, s.metrics
	recorded := &recordings{observed: o.Observed, logger: o.Log}
	audit := &auditLog{chain: o.Chain, governor: o.Governor}
	changes := &listings{}
	event := &eventHandler{recordings: recorded, streams: st, metrics: ms}
	event.tallies.most = maxTallies
	activity := &activityHandler{recordings: recorded, jails: o.Jails, snapshots: o.Snapshots}
	activity.pasts.most = maxPasts
	network := &networkHandler{recordings: recorded, jails: o.Jails, audit: audit, events: event}
	network.judges.most = maxJudgements
	schedule := &scheduleHandler{o.Schedules, o.Gateway}
	return &handlers{
		jail:       &jailHandler{o.Jails, o.Snapshots, recorded, changes, o.Log, o.Fleet, o.Front},
		limit:      &limitHandler{o.Gateway, o.Snapshots},
		snapshot:   &snapshotHandler{o.Snapshots, o.Jails, ps, o.Fleet, o.Facts, o.Fetch, o.Created},
		diff:       &diffHandler{o.Jails, o.Snapshots, changes},
		exec:       &execHandler{o.Jails, st, s.replays, ps, ms, o.Log, o.MaxOutput},
		terminal:   &terminalHandler{o.Jails, st, ps, ms, o.Log},
		file:       &fileHandler{o.Jails, st, ms, o.Log},
		event:      event,
		activity:   activity,
		network:    network,
		policy:     &policyHandler{o.Governor, o.Jails},
		session:    &sessionHandler{o.Runs, o.Gateway, st},
		run:        &runHandler{o.Runs, o.Gateway},
		schedule:   schedule,
		connector:  &connectorHandler{o.Connectors},
		approval:   &approvalHandler{o.Approvals, recorded, st, o.Fleet, o.Front},
		browser:    &browserHandler{o.Approvals},
		secret:     &secretHandler{o.Secrets, o.Jails, o.Fleet},
		capability: &capabilityHandler{o.Capabilities, o.Caller, o.Importer, audit, s.closing},
		skill:      &skillHandler{o.Capabilities},
		bundle:     &bundleHandler{o.Capabilities, audit},
		publisher:  &publisherHandler{o.Publishers, o.Capabilities, audit},
		market:     &marketHandler{o.Markets, o.Capabilities},
		chain:      &chainHandler{audit, o.Witnessed, o.Stored, o.Fleet},
		token:      &tokenHandler{o.Tokens, o.Demand, o.E2B},
		login:      &loginHandler{o.Logins, o.Addresses, st},
		feed:       &feedHandler{o.Chain, o.Approvals, schedule, &rates{closing: s.closing, jails: o.Jails, recordings: recorded, log: o.Log}, st, ms, o.Log},
		image:      &imageHandler{o.Images},
		host:       &hostHandler{o.Jails, o.Doctor, o.Storage, o.Ready, o.Nodes, o.Version, s.closing, o.Log},
		fleet:      &fleetHandler{o.Fleet, o.Nodes, o.Move},
		// Document is called on first use, because it is the slowest step of a start.
		document: &documentHandler{ms, sync.OnceValues(func() ([]byte, error) { return Document(o.Version.Version) })},
		agent:    &agentHandler{o.Gateway, audit, o.Models, o.MCP, ps},
	}
}
