package api

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"glasshouse/agents/gateway"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
	"glasshouse/observe/event"
	"glasshouse/policy/access"
)

// jailHandler serves the routes of jails.
type jailHandler struct {
	jails      Manager
	snapshots  Snapshots // nil: none
	recordings *recordings
	listings   *listings
	log        *slog.Logger
	fleet      Fleet // nil: none
	front      bool  // this daemon has no jails
}

type oneJail struct {
	ID id.Jail `path:"id"`
}

func (h *jailHandler) createJail(ctx context.Context, _ none, b wire.CreateJail) (wire.Jail, error) {
	spec, err := specOf(b)
	if err != nil {
		return wire.Jail{}, err
	}
	spec.Trusted, spec.Creator = trusted(ctx), access.CallerOf(ctx).Token
	return shown(ctx, h.snapshots)(h.jails.Create(ctx, spec))
}

// trusted reports whether the caller is root or the daemon's own user on this host.
func trusted(ctx context.Context) bool {
	caller := access.CallerOf(ctx)
	return caller.Local && caller.Token == "" && caller.Role == access.Admin
}

func jailPlace(_ none, j wire.Jail) string { return "/jails/" + string(j.ID) }

type listJails struct {
	Limit int      `query:"limit" minimum:"1" maximum:"1000" description:"Maximum number of items per page. Default 100."`
	After string   `query:"after" description:"The 'next' value of the previous page."`
	State string   `query:"state" enum:"created,starting,running,paused,stopped,failed"`
	Name  string   `query:"name"`
	Label []string `query:"label" description:"A label, as key=value. If the parameter is repeated, all labels must match."`
	Nodes string   `query:"nodes" enum:"all,self" description:"all: the jails of all nodes of the fleet, whose state can be a second old. self: those of the daemon that answers. Default self, or all if that daemon has no jails."`
}

func (h *jailHandler) listJails(ctx context.Context, p listJails, _ none) (wire.Page[wire.Jail], error) {
	labels, err := labelsOf(p.Label)
	if err != nil {
		return wire.Page[wire.Jail]{}, err
	}
	state, err := stateOf(p.State)
	if err != nil {
		return wire.Page[wire.Jail]{}, err
	}
	o := jail.ListOptions{After: id.Jail(p.After), State: state, Name: p.Name, Label: labels}
	everywhere, err := allNodes("api.listJails", p.Nodes, h.fleet, h.front)
	if err != nil {
		return wire.Page[wire.Jail]{}, err
	}
	if everywhere {
		return h.listAll(ctx, p, o)
	}
	return pageOf(p.Limit, func(n int) ([]jail.Jail, error) {
		o.Limit = n
		return h.jails.List(ctx, o)
	}, func(j jail.Jail) string { return string(j.ID) }, func(j jail.Jail) wire.Jail { return jailOf(ctx, j, h.snapshots) })
}

func (h *jailHandler) getJail(ctx context.Context, p oneJail, _ none) (wire.Jail, error) {
	j, err := h.jails.Get(ctx, p.ID)
	if err != nil {
		return wire.Jail{}, err
	}
	w := jailOf(ctx, j, h.snapshots)
	w.Observation = h.recordings.observation(ctx, p.ID)
	st, err := h.jails.Stats(ctx, p.ID)
	if err != nil {
		// the jail may have stopped; the response then has no statistics
		h.log.Debug("no statistics", "jail", p.ID, "err", err)
		return w, nil
	}
	w.Usage = usageOf(st)
	return w, nil
}

func (h *jailHandler) startJail(ctx context.Context, p oneJail, _ none) (wire.Jail, error) {
	return shown(ctx, h.snapshots)(h.jails.Start(ctx, p.ID))
}

// defaultGrace is the time between SIGTERM and SIGKILL if a request does not contain it.
const defaultGrace = 10 * time.Second

func graceOf(b wire.StopJail) (time.Duration, error) {
	if b.GraceMS == nil {
		return defaultGrace, nil
	}
	return millis("grace_ms", *b.GraceMS)
}

func (h *jailHandler) stopJail(ctx context.Context, p oneJail, b wire.StopJail) (wire.Jail, error) {
	grace, err := graceOf(b)
	if err != nil {
		return wire.Jail{}, err
	}
	return shown(ctx, h.snapshots)(h.jails.Stop(ctx, p.ID, jail.StopOptions{Grace: grace}))
}

func (h *jailHandler) pauseJail(ctx context.Context, p oneJail, _ none) (wire.Jail, error) {
	return shown(ctx, h.snapshots)(h.jails.PauseBy(ctx, p.ID, by(ctx)))
}

func (h *jailHandler) resumeJail(ctx context.Context, p oneJail, _ none) (wire.Jail, error) {
	return shown(ctx, h.snapshots)(h.jails.Resume(ctx, p.ID))
}

type deleteJail struct {
	ID        id.Jail `path:"id"`
	Snapshots bool    `query:"snapshots" description:"Also delete all snapshots of the jail. Default: snapshots that a client requested are kept."`
}

func (h *jailHandler) deleteJail(ctx context.Context, p deleteJail, _ none) (none, error) {
	if p.Snapshots {
		if err := h.deleteSnapshots(ctx, p.ID); err != nil {
			return none{}, err
		}
	}
	if err := h.jails.Delete(ctx, p.ID); err != nil {
		return none{}, err
	}
	h.listings.dropJail(p.ID)
	if h.snapshots != nil {
		// The jail is deleted. Leftovers are removed when the daemon starts the next time.
		if err := h.snapshots.JailDeleted(context.WithoutCancel(ctx), p.ID); err != nil {
			h.log.Error("cannot remove leftovers of a deleted jail's snapshots", "jail", p.ID, "err", err)
		}
	}
	return none{}, nil
}

// deleteSnapshots deletes the snapshots of a jail before the jail is deleted. In this order
// a failed request can be repeated.
func (h *jailHandler) deleteSnapshots(ctx context.Context, j id.Jail) error {
	if h.snapshots == nil {
		return noSnapshots
	}
	if _, err := h.jails.Get(ctx, j); err != nil {
		return err
	}
	list, err := h.snapshots.List(ctx, snapshot.ListOptions{Jail: j})
	if err != nil {
		return err
	}
	for _, one := range slices.Backward(list) {
		if err := h.snapshots.Delete(ctx, one.ID); err != nil && !errors.Is(err, fault.NotFound) {
			return err
		}
	}
	return nil
}

// shown converts results of the Manager for the caller of ctx. taken has the snapshots of jails,
// or is nil.
func shown(ctx context.Context, taken Snapshots) func(jail.Jail, error) (wire.Jail, error) {
	return func(j jail.Jail, err error) (wire.Jail, error) {
		if err != nil {
			return wire.Jail{}, err
		}
		return jailOf(ctx, j, taken), nil
	}
}

// ownLabels are reserved for the daemon. They identify the jails of capabilities, which the
// daemon removes at startup, and the jails of agents.
var ownLabels = []string{"glasshouse.capability", gateway.LabelSession, gateway.LabelRun, gateway.LabelName, "e2b.sandbox", "e2b.build"}

func specOf(b wire.CreateJail) (jail.Spec, error) {
	network, ok := networks[b.Network]
	if !ok {
		return jail.Spec{}, fault.Fieldf("api.specOf", "network", "%q is not one of isolated, proxy, bridged, full", text.Clip(b.Network, 64))
	}
	for _, own := range ownLabels {
		if _, ok := b.Labels[own]; ok {
			return jail.Spec{}, fault.Fieldf("api.specOf", "labels", "%s is the daemon's own label", own)
		}
	}
	if b.Session != "" {
		if !id.ValidSession(b.Session) {
			return jail.Spec{}, fault.Fieldf("api.specOf", "session_id", "%q is not a valid session name", text.Clip(b.Session, 64))
		}
		b.Labels = maps.Clone(b.Labels)
		if b.Labels == nil {
			b.Labels = map[string]string{}
		}
		b.Labels[gateway.LabelSession] = b.Session
	}
	s := jail.Spec{
		Name: b.Name, Labels: b.Labels, Backend: b.Backend, Runtime: b.Runtime,
		Rootfs: jail.Rootfs(b.Rootfs), Limits: jail.Limits(b.Limits), Network: network, Group: b.Group,
		Hostname: b.Hostname, Env: b.Env, Cwd: b.Cwd, User: b.User, Command: b.Command,
	}
	for _, m := range b.Mounts {
		s.Mounts = append(s.Mounts, jail.Mount{Source: m.Source, Target: m.Target, Write: m.Write})
	}
	s.Start, s.Enforce = b.Start, b.Enforce
	s.Observe = event.Selection(b.Observe)
	var err error
	s.Policy, err = governOf(b.Policy, b.Egress)
	if err != nil {
		return jail.Spec{}, err
	}
	s.Snapshots, err = policyOf(b.Snapshots)
	if err != nil {
		return jail.Spec{}, err
	}
	if b.Workspace != nil {
		w := jail.Workspace(*b.Workspace)
		s.Workspace = &w
	}
	return s, nil
}

// networks maps spellings to network modes. Clients of the first design still send the
// capitalized ones.
var networks = map[string]jail.Network{
	"": "", "isolated": jail.Isolated, "proxy": jail.Proxied, "bridged": jail.Bridged, "full": jail.Full,
	"Isolated": jail.Isolated, "FullAccess": jail.Full,
}

// jailOf converts a jail for the caller of ctx. Environment variables may be secret, so
// viewers do not receive them.
func jailOf(ctx context.Context, j jail.Jail, taken Snapshots) wire.Jail {
	self := "/jails/" + string(j.ID)
	w := wire.Jail{
		ID: j.ID, Name: j.Spec.Name, Labels: j.Spec.Labels,
		State: string(j.State), Reason: j.Reason, Creator: j.Spec.Creator,
		Backend: j.Spec.Backend, Runtime: j.Spec.Runtime,
		Rootfs: wire.Rootfs(j.Spec.Rootfs), Digest: j.Digest,
		Limits: wire.Limits(j.Spec.Limits), Network: string(j.Spec.Network), Group: j.Spec.Group,
		Hostname: j.Spec.Hostname, Env: j.Spec.Env, Cwd: j.Spec.Cwd, User: j.Spec.User, Command: j.Spec.Command,
		Observe:   wire.Observe(j.Spec.Observe),
		Snapshots: policyShown(j.Spec.Snapshots),
		CreatedAt: j.Created.UTC(), StartedAt: utc(j.Started), StoppedAt: utc(j.Stopped),
		Links: map[string]string{
			"self": self, "exec": self + "/exec", "execs": self + "/execs",
			"files": self + "/files", "terminal": self + "/terminal", "diff": self + "/fs/diff",
			"snapshots": self + "/snapshots",
			"events":    self + "/events", "processes": self + "/processes", "network": self + "/network/log", "report": self + "/report",
		},
	}
	if !access.CallerOf(ctx).Role.Allows(access.Operator) {
		w.Env = nil
	}
	for _, c := range j.Conditions {
		w.Conditions = append(w.Conditions, wire.Condition(c))
	}
	if j.Origin != nil {
		from := wire.Origin(*j.Origin)
		w.Origin = &from
	}
	if taken != nil {
		w.Nearest = taken.LastOf(j.ID)
	}
	for _, m := range j.Spec.Mounts {
		w.Mounts = append(w.Mounts, wire.Mount{Source: m.Source, Target: m.Target, Write: m.Write})
	}
	if j.Spec.Workspace != nil {
		ws := wire.Workspace(*j.Spec.Workspace)
		w.Workspace = &ws
	}
	return w
}

func usageOf(s jail.Stats) *wire.Usage {
	return &wire.Usage{
		CPUMS: s.CPU.Milliseconds(), MemoryBytes: s.MemoryBytes, MemoryPeak: s.MemoryPeak,
		PIDs: s.PIDs, MaxPIDs: s.ProcessesMax, DiskBytes: s.DiskBytes, DiskLimit: s.DiskLimit,
		OOMKills: s.OOMKills, RxBytes: s.RxBytes, TxBytes: s.TxBytes, NotMeasured: s.NotMeasured,
	}
}

func stateOf(s string) (jail.State, error) {
	switch st := jail.State(s); st {
	case "", jail.Created, jail.Running, jail.Paused, jail.Stopped, jail.Failed, "starting":
		return st, nil
	}
	return "", fault.Fieldf("api.stateOf", "state", "%q is not a state of a jail", text.Clip(s, 64))
}

func labelsOf(pairs []string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	labels := map[string]string{}
	for _, p := range pairs {
		k, v, ok := strings.Cut(p, "=")
		if !ok || k == "" {
			return nil, fault.Fieldf("api.labelsOf", "label", "%q is not key=value", text.Clip(p, 64))
		}
		if had, twice := labels[k]; twice && had != v {
			return nil, fault.Fieldf("api.labelsOf", "label", "no jail has two values of %q", text.Clip(k, 64))
		}
		labels[k] = v
	}
	return labels, nil
}
