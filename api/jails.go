package api

import (
	"context"
	"maps"
	"strings"
	"time"

	"glasshouse/agents/gateway"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/observe/event"
	"glasshouse/policy/access"
)

type oneJail struct {
	ID id.Jail `path:"id"`
}

func (s *Server) createJail(ctx context.Context, _ none, b wire.CreateJail) (wire.Jail, error) {
	spec, err := specOf(b)
	if err != nil {
		return wire.Jail{}, err
	}
	spec.Trusted = trusted(ctx)
	return s.shown(ctx)(s.o.Jails.Create(ctx, spec))
}

// trusted reports whether the caller is root or the daemon's own user on this host.
func trusted(ctx context.Context) bool {
	caller := access.CallerOf(ctx)
	return caller.Local && caller.Token == "" && caller.Role == access.Admin
}

func jailPlace(_ none, j wire.Jail) string { return "/jails/" + string(j.ID) }

type listJails struct {
	Limit int      `query:"limit" minimum:"1" maximum:"1000" description:"Maximum number of items per page. Default 100."`
	After id.Jail  `query:"after" description:"The 'next' value of the previous page."`
	State string   `query:"state" enum:"created,starting,running,paused,stopped,failed"`
	Name  string   `query:"name"`
	Label []string `query:"label" description:"A label, as key=value. If the parameter is repeated, all labels must match."`
}

func (s *Server) listJails(ctx context.Context, p listJails, _ none) (wire.Page[wire.Jail], error) {
	labels, err := labelsOf(p.Label)
	if err != nil {
		return wire.Page[wire.Jail]{}, err
	}
	state, err := stateOf(p.State)
	if err != nil {
		return wire.Page[wire.Jail]{}, err
	}
	return pageOf(p.Limit, func(n int) ([]jail.Jail, error) {
		return s.o.Jails.List(ctx, jail.ListOptions{After: p.After, Limit: n, State: state, Name: p.Name, Label: labels})
	}, func(j jail.Jail) string { return string(j.ID) }, func(j jail.Jail) wire.Jail { return s.jailOf(ctx, j) })
}

func (s *Server) getJail(ctx context.Context, p oneJail, _ none) (wire.Jail, error) {
	j, err := s.o.Jails.Get(ctx, p.ID)
	if err != nil {
		return wire.Jail{}, err
	}
	w := s.jailOf(ctx, j)
	w.Observation = s.observation(ctx, p.ID)
	st, err := s.o.Jails.Stats(ctx, p.ID)
	if err != nil {
		// the jail may have stopped; the response then has no statistics
		s.o.Log.Debug("no statistics", "jail", p.ID, "err", err)
		return w, nil
	}
	w.Usage = usageOf(st)
	return w, nil
}

func (s *Server) startJail(ctx context.Context, p oneJail, _ none) (wire.Jail, error) {
	return s.shown(ctx)(s.o.Jails.Start(ctx, p.ID))
}

func (s *Server) stopJail(ctx context.Context, p oneJail, b wire.StopJail) (wire.Jail, error) {
	grace, err := millis("grace_ms", b.GraceMS)
	if err != nil {
		return wire.Jail{}, err
	}
	return s.shown(ctx)(s.o.Jails.Stop(ctx, p.ID, jail.StopOptions{Grace: grace}))
}

func (s *Server) pauseJail(ctx context.Context, p oneJail, _ none) (wire.Jail, error) {
	return s.shown(ctx)(s.o.Jails.Pause(ctx, p.ID))
}

func (s *Server) resumeJail(ctx context.Context, p oneJail, _ none) (wire.Jail, error) {
	return s.shown(ctx)(s.o.Jails.Resume(ctx, p.ID))
}

type deleteJail struct {
	ID        id.Jail `path:"id"`
	Snapshots bool    `query:"snapshots" description:"Also delete all snapshots of the jail. Default: snapshots that a client requested are kept."`
}

func (s *Server) deleteJail(ctx context.Context, p deleteJail, _ none) (none, error) {
	if p.Snapshots {
		if err := s.deleteSnapshotsOf(ctx, p.ID); err != nil {
			return none{}, err
		}
	}
	if err := s.o.Jails.Delete(ctx, p.ID); err != nil {
		return none{}, err
	}
	s.listings.dropJail(p.ID)
	if s.o.Snapshots != nil {
		// The jail is deleted. Leftovers are removed when the daemon starts the next time.
		if err := s.o.Snapshots.JailDeleted(context.WithoutCancel(ctx), p.ID); err != nil {
			s.o.Log.Error("cannot remove leftovers of a deleted jail's snapshots", "jail", p.ID, "err", err)
		}
	}
	return none{}, nil
}

// shown converts results of the Manager for the caller of ctx.
func (s *Server) shown(ctx context.Context) func(jail.Jail, error) (wire.Jail, error) {
	return func(j jail.Jail, err error) (wire.Jail, error) {
		if err != nil {
			return wire.Jail{}, err
		}
		return s.jailOf(ctx, j), nil
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
func (s *Server) jailOf(ctx context.Context, j jail.Jail) wire.Jail {
	self := "/jails/" + string(j.ID)
	w := wire.Jail{
		ID: j.ID, Name: j.Spec.Name, Labels: j.Spec.Labels,
		State: string(j.State), Reason: j.Reason,
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
	if s.o.Snapshots != nil {
		w.Nearest = s.o.Snapshots.LastOf(j.ID)
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

// maxMillis prevents the overflow of a time.Duration.
const maxMillis = int64(24 * time.Hour / time.Millisecond * 365)

func millis(field string, ms int64) (time.Duration, error) {
	if ms < 0 || ms > maxMillis {
		return 0, fault.Fieldf("api.millis", field, "%d is not between 0 and %d", ms, maxMillis)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// cut returns the first n items of list, and the key of the last of them if there are more.
func cut[T any](list []T, n int, key func(T) string) ([]T, string) {
	if len(list) <= n {
		return list, ""
	}
	return list[:n], key(list[n-1])
}

// pageOf reads one page. It requests one item more than the page size to detect further items.
func pageOf[T, W any](size int, read func(n int) ([]T, error), key func(T) string, show func(T) W) (wire.Page[W], error) {
	var page wire.Page[W]
	n, err := limit(size)
	if err != nil {
		return page, err
	}
	list, err := read(n + 1)
	if err != nil {
		return page, err
	}
	list, page.Next = cut(list, n, key)
	page.Items = each(list, show)
	return page, nil
}

// each never returns nil, so that an empty list is [] in JSON.
func each[T, U any](list []T, f func(T) U) []U {
	out := make([]U, 0, len(list))
	for _, v := range list {
		out = append(out, f(v))
	}
	return out
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}
