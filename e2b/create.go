package e2b

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

// maxTimeout is the maximum timeout of a sandbox.
const maxTimeout = 24 * time.Hour

// A CreateOptions describes a sandbox to create.
type CreateOptions struct {
	Template   string
	Timeout    time.Duration
	Metadata   map[string]string
	Env        map[string]string
	Secure     bool
	AutoPause  bool
	FilesOnly  bool
	AutoResume bool
	Internet   *bool
	Network    Network
	Volumes    []VolumeMount
}

func (w CreateOptions) check() error {
	switch {
	case w.Timeout < 0:
		return invalid("Timeout must not be negative")
	case w.Timeout > maxTimeout:
		return invalid("Timeout cannot be greater than %d hours", maxTimeout/time.Hour)
	case w.FilesOnly && !w.AutoPause:
		return invalid("autoPauseMemory false needs autoPause: it selects how the sandbox is paused at its timeout")
	case !w.Secure && w.Network.Public != nil && !*w.Network.Public:
		return invalid("allowPublicTraffic false needs a secure sandbox: without an access token anyone can use its envd")
	case w.AutoResume && w.FilesOnly:
		return invalid("autoResume cannot be combined with autoPauseMemory false: a filesystem-only snapshot is resumed explicitly")
	}
	return w.Network.check()
}

func invalid(format string, args ...any) error {
	return fault.Newf(fault.Invalid, "e2b.invalid", "", format, args...)
}

// Create creates a running sandbox. It blocks until the sandbox's jail runs.
func (s *Sandboxes) Create(ctx context.Context, team id.Token, w CreateOptions) (Sandbox, error) {
	if err := w.check(); err != nil {
		return Sandbox{}, err
	}
	if err := w.Network.reachable(s.cfg.Reach); err != nil {
		return Sandbox{}, err
	}
	t, err := s.template(ctx, team, w.Template)
	if err != nil {
		return Sandbox{}, err
	}
	if len(w.Volumes) > 0 && t.Files != "" {
		t.Snapshot, t.Start = t.Files, t.Begin
	}
	b := Sandbox{
		ID: newID(), Team: team, State: Creating, Template: t.ID, Alias: t.Alias, Metadata: w.Metadata,
		Env: merged(t.Env, w.Env), Dir: t.Dir, User: t.User,
		CPU: t.CPU, MemoryMB: t.MemoryMB, DiskMB: t.DiskMB,
		Timeout: w.Timeout, AutoPause: w.AutoPause, FilesOnly: w.FilesOnly, AutoResume: w.AutoResume,
		Internet: w.Internet, Network: w.Network,
	}
	if w.Secure {
		b.Token = newToken()
	}
	b.addTrafficToken()
	b.Volumes, err = s.volumes(team, t, w.Volumes)
	if err != nil {
		return Sandbox{}, err
	}
	mounts, granted := s.cfg.Volumes.jailMounts(b.Volumes)
	return s.launch(ctx, b, func(ctx context.Context, b Sandbox) (jail.Jail, error) {
		if t.Snapshot != "" {
			return s.fromTemplate(ctx, t, b, mounts)
		}
		govern, err := s.cfg.Govern(nil, b.rules(s.cfg.Reach))
		if err != nil {
			return jail.Jail{}, fmt.Errorf("apply the network rules to the policy of the sandbox: %w", err)
		}
		j, err := s.cfg.Jails.Create(ctx, jail.Spec{
			Name: b.ID, Labels: b.labels(), Backend: s.cfg.Backend, Rootfs: t.Rootfs, Limits: t.limits(),
			Network: jail.Proxied, Policy: govern, Start: true, Mounts: mounts, GrantedMounts: granted, Creator: b.Team,
		})
		return j, HideBaseError(s.cfg.Log, err)
	})
}

// HideBaseError replaces an error about the default root filesystem, which the operator
// configured, by one that is suitable for clients, and logs the original. It returns other
// errors unchanged.
func HideBaseError(log *slog.Logger, err error) error {
	if err == nil || fault.KindOf(err) != fault.Invalid || !strings.HasPrefix(fault.FieldOf(err), "rootfs") {
		return err
	}
	log.Error("the default root filesystem cannot be used for sandboxes", "remedy", "add a user named "+User+" to it, or set rootfs.default to another", "err", err)
	return fault.Newf(fault.Unavailable, "e2b.HideBaseError", "", "the daemon's default root filesystem cannot be used for sandboxes: the daemon's log contains the reason")
}

// volumes returns the volumes of a new sandbox. A sandbox created from a snapshot has the
// volumes of the snapshot, because its processes may have files open there.
func (s *Sandboxes) volumes(team id.Token, t Template, wanted []VolumeMount) ([]VolumeMount, error) {
	found, err := s.cfg.Volumes.find(team, wanted)
	if err != nil || t.Snapshot == "" || t.Files != "" {
		return found, err
	}
	has := s.cfg.Volumes.mountsOf(jail.Spec{Mounts: t.Mounts})
	for _, m := range has {
		if m.Name == "" {
			return nil, fault.Newf(fault.Conflict, "e2b.volumes", t.ID, "the snapshot's volume at %s no longer exists", m.Path)
		}
	}
	for _, m := range found {
		if !slices.Contains(has, m) {
			return nil, invalid("a sandbox created from a snapshot has the volumes of the snapshot: %s was not at %s", m.Name, m.Path)
		}
	}
	return has, nil
}

func (b *Sandbox) labels() map[string]string { return map[string]string{LabelSandbox: b.ID} }

// addTrafficToken gives a sandbox with private ports a token for them.
func (b *Sandbox) addTrafficToken() {
	b.Traffic = ""
	if !b.public() {
		b.Traffic = newToken()
	}
}

func merged(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, b)
	return all
}

// launch records a sandbox, calls make to create its jail, and makes the sandbox visible. If the
// daemon is killed in between, the next daemon finds either a record without a jail, which it
// removes, or both, and keeps the sandbox.
func (s *Sandboxes) launch(ctx context.Context, b Sandbox, make func(context.Context, Sandbox) (jail.Jail, error)) (Sandbox, error) {
	ctx = context.WithoutCancel(ctx)
	release, err := s.cfg.Volumes.acquire(ctx, b.Team, b.Volumes)
	if err != nil {
		return Sandbox{}, err
	}
	b.Started = time.Now().UTC().Truncate(time.Microsecond)
	b.End = b.Started.Add(b.Timeout)
	if err := s.cfg.Store.Put(ctx, b); err != nil {
		release()
		return Sandbox{}, err
	}
	j, err := make(ctx, b)
	if err == nil && j.State == jail.Created { // from a files-only snapshot
		j, err = s.cfg.Jails.Start(ctx, j.ID)
	}
	if err != nil {
		if j.ID != "" {
			err = errors.Join(err, s.cfg.Jails.Delete(ctx, j.ID))
		}
		release()
		return Sandbox{}, errors.Join(err, s.cfg.Store.Delete(ctx, b.ID))
	}
	b.Jail, b.State = j.ID, Running             // need not be recorded: the next daemon finds the jail by its label
	if err := s.writeInfo(ctx, b); err != nil { // such as a full disk, which the owner can see from inside
		s.cfg.Log.Warn("cannot write the metadata files of a sandbox", "sandbox", b.ID, "err", err)
	}
	c := newHandle(b)
	c.release = release
	c.lock <- struct{}{}
	s.add(c)
	s.arm(c)
	<-c.lock
	return b, nil
}

// fromSnapshot creates a sandbox's jail from a snapshot of another sandbox.
func (s *Sandboxes) fromSnapshot(ctx context.Context, sid id.Snapshot, b Sandbox) (jail.Jail, error) {
	return s.cfg.Snapshots.Restore(ctx, sid, snapshot.Overrides{Name: b.ID, Labels: b.labels(), Network: jail.Proxied, Creator: &b.Team, Govern: s.withEgressRules(b)})
}

// fromTemplate creates a sandbox's jail from a template's snapshot, with the processor, memory
// and disk limits of the template: templates with different limits can share layers.
func (s *Sandboxes) fromTemplate(ctx context.Context, t Template, b Sandbox, mounts []jail.Mount) (jail.Jail, error) {
	limits := t.limits()
	o := snapshot.Overrides{Name: b.ID, Labels: b.labels(), Limits: &limits, Network: jail.Proxied, Creator: &b.Team, Govern: s.withEgressRules(b)}
	if t.Files != "" {
		o.Mounts = mounts // the other mounts are the snapshot's
	}
	j, err := s.cfg.Snapshots.Restore(ctx, t.Snapshot, o)
	if err != nil || t.Start == "" {
		return j, err
	}
	if j.State == jail.Created {
		started, err := s.cfg.Jails.Start(ctx, j.ID)
		if err != nil {
			return j, fmt.Errorf("start the jail of the template: %w", err)
		}
		j = started
	}
	_, _, err = s.cfg.Jails.Exec(ctx, j.ID, jail.ExecRequest{
		Argv: []string{"/bin/bash", "-l", "-c", t.Start}, Env: b.Env, Cwd: cmp.Or(b.Dir, "~"), User: cmp.Or(b.User, User),
	}, nil)
	return j, err
}

// Kill removes a sandbox permanently.
func (s *Sandboxes) Kill(ctx context.Context, team id.Token, sandbox string) error {
	c, err := s.find(team, sandbox)
	if err != nil {
		return err
	}
	return s.change(ctx, c, func(ctx context.Context, _ Sandbox) error { return s.kill(ctx, c) })
}

// kill records that a sandbox will be removed, and removes it. If the removal fails, it is
// retried later: clients no longer see the sandbox, and cannot retry it. The caller holds
// h.lock.
func (s *Sandboxes) kill(ctx context.Context, c *handle) error {
	if c.box.Load().State != Killing {
		if err := s.setState(ctx, c, Killing, nil); err != nil {
			return err
		}
	}
	err := s.remove(ctx, c)
	if err != nil {
		s.retryLater(c, err)
	}
	return err
}

// remove removes the resources of a sandbox, the record last.
func (s *Sandboxes) remove(ctx context.Context, c *handle) error {
	b := c.box.Load()
	if b.Jail != "" {
		if err := s.cfg.Jails.Delete(ctx, b.Jail); err != nil && !errors.Is(err, fault.NotFound) {
			return err
		}
	}
	if err := s.dropImage(ctx, b.Image); err != nil {
		return fmt.Errorf("delete the snapshot of the last pause: %w", err)
	}
	if err := s.cfg.Snapshots.JailDeleted(ctx, b.Jail); err != nil {
		return fmt.Errorf("delete the automatic snapshots of jail %s: %w", b.Jail, err)
	}
	if err := s.cfg.Store.Delete(ctx, b.ID); err != nil {
		return err
	}
	c.gone = true
	c.stopTimer()
	c.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.handles, b.ID)
	return nil
}

// SetTimeout sets the timeout of a running sandbox to d from now. If longer is set, it never shortens
// the timeout.
func (s *Sandboxes) SetTimeout(ctx context.Context, team id.Token, sandbox string, d time.Duration, longer bool) error {
	if err := (CreateOptions{Timeout: d}).check(); err != nil {
		return err
	}
	c, err := s.find(team, sandbox)
	if err != nil {
		return err
	}
	return s.change(ctx, c, func(ctx context.Context, b Sandbox) error {
		if b.State != Running {
			return missing(sandbox)
		}
		return s.stay(ctx, c, d, longer)
	})
}

func (s *Sandboxes) stay(ctx context.Context, c *handle, d time.Duration, longer bool) error {
	b := *c.box.Load()
	end := time.Now().UTC().Add(d)
	if longer && end.Before(b.End) {
		return nil
	}
	b.End = end
	return s.save(ctx, c, b)
}
