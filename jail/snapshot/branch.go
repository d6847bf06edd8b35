package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/observe/event"
)

// Overrides change the specification of a jail that is created from a snapshot. Nil and empty
// fields keep the value of the snapshot.
type Overrides struct {
	Name     string
	First    int // number of the first jail, which its name has then; 0 is 1, and a single jail has no number in its name
	Labels   map[string]string
	Hostname string
	Limits   *jail.Limits
	Network  jail.Network
	Creator  *id.Token // token whose quota the new jail counts towards; nil: that of the snapshot's jail

	// Mounts are added to those of the snapshot. The caller vouches for the ownership of their
	// sources. A snapshot with memory accepts none, because its processes are already running.
	Mounts []jail.Mount

	// Govern returns the policy of the new jail, given that of the snapshot. If it is nil,
	// Config.InheritPolicy applies.
	Govern func(json.RawMessage) (json.RawMessage, error)
}

// apply returns the spec of the nth of count jails made from s.
func (o Overrides) apply(s jail.Spec, n, count int) (jail.Spec, error) {
	s.Name, s.Labels, s.Hostname = o.Name, o.Labels, o.Hostname
	// The original jail was already permitted to use the workspace and the mounts.
	s.Trusted, s.GrantedMounts = true, nil
	s.Mounts = append(slices.Clone(s.Mounts), o.Mounts...)
	for _, m := range s.Mounts {
		s.GrantedMounts = append(s.GrantedMounts, m.Source)
	}
	if o.Name != "" && (count > 1 || o.First > 0) {
		s.Name = fmt.Sprintf("%s-%d", o.Name, n)
	}
	if o.Limits != nil {
		s.Limits = *o.Limits
	}
	if o.Creator != nil {
		s.Creator = *o.Creator
	}
	if o.Network != "" {
		s.Network = o.Network
		switch {
		case s.Network != jail.Bridged:
			s.Group = ""
		case s.Group == "":
			s.Group = jail.DefaultGroup
		}
	}
	if o.Govern == nil {
		return s, nil
	}
	var err error
	s.Policy, err = o.Govern(s.Policy)
	return s, err
}

// A BranchResult is the result of creating one branch: a jail or an error.
type BranchResult struct {
	Jail jail.Jail
	Err  error
}

// MaxBranches is the maximum number of branches of one call.
const MaxBranches = 256

// Branch creates count jails from a snapshot, each with the state of the original jail at that
// time. The creation of single jails may fail; Branch itself returns an error only if the
// snapshot cannot be used.
func (ss *snapshots) Branch(ctx context.Context, sid id.Snapshot, count int, o Overrides) ([]BranchResult, error) {
	return ss.branch(ctx, sid, count, o, event.OpBranch)
}

// Restore creates one jail from a snapshot.
func (ss *snapshots) Restore(ctx context.Context, sid id.Snapshot, o Overrides) (jail.Jail, error) {
	children, err := ss.branch(ctx, sid, 1, o, event.OpRestore)
	if err != nil {
		return jail.Jail{}, err
	}
	return children[0].Jail, children[0].Err
}

func (ss *snapshots) branch(ctx context.Context, sid id.Snapshot, count int, o Overrides, op string) ([]BranchResult, error) {
	if count < 1 || count > MaxBranches {
		return nil, fault.Fieldf("snapshot.Branch", "count", "%d is not between 1 and %d", count, MaxBranches)
	}
	img, done, err := ss.image(ctx, sid)
	if err != nil {
		return nil, err
	}
	defer done()
	if img.Images != "" && len(o.Mounts) > 0 {
		return nil, fault.Newf(fault.Invalid, "snapshot.Branch", string(sid), "mounts cannot be added to a snapshot with running processes")
	}
	if o.Govern == nil {
		o.Govern = ss.cfg.InheritPolicy
	}
	first := max(o.First, 1)
	specs := make([]jail.Spec, count)
	for i := range specs {
		spec, err := o.apply(img.Jail.Spec, first+i, count)
		if err != nil {
			return nil, err
		}
		if err := ss.cfg.Jails.CheckName(spec.Name); err != nil {
			return nil, err
		}
		specs[i], err = ss.cfg.Jails.Check(spec)
		if err != nil {
			return nil, err
		}
	}
	began := time.Now()
	children := make([]BranchResult, count)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 2*runtime.NumCPU())
	for i := range children {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			defer fault.Recover(&children[i].Err) // one jail's panic must not end the daemon
			children[i].Jail, children[i].Err = ss.cfg.Jails.Branch(ctx, img, jail.BranchOptions{
				Spec: specs[i], Number: first + i, Op: op,
				At: began.Add(time.Duration(i)), // creation times in the order of the numbers, independent of scheduling
			})
		})
	}
	wg.Wait()
	ss.mu.Lock()
	for _, c := range children {
		if c.Err == nil {
			ss.last[c.Jail.ID] = sid
		}
	}
	of, _ := ss.lookup(sid)
	ss.mu.Unlock()
	for i, c := range children {
		if c.Err == nil {
			ss.notify(Notification{Op: OpBranched, Snapshot: of, Jail: c.Jail.ID, Number: first + i})
		}
	}
	ss.refill(sid)
	return children, nil
}

// BranchJail takes a snapshot of a jail and creates count jails from it.
func (ss *snapshots) BranchJail(ctx context.Context, jid id.Jail, count int, o Overrides) (Snapshot, []BranchResult, error) {
	s, done, err := ss.take(ctx, jid, TakeOptions{Reason: Branched})
	if err != nil {
		return Snapshot{}, nil, err
	}
	defer done()
	children, err := ss.Branch(ctx, s.ID, count, o)
	return s, children, err
}

// Rewind resets a jail to a snapshot of the jail or of one of its ancestors.
func (ss *snapshots) Rewind(ctx context.Context, jid id.Jail, sid id.Snapshot, o jail.RewindOptions) (jail.Jail, error) {
	img, done, err := ss.image(ctx, sid)
	if err != nil {
		return jail.Jail{}, err
	}
	defer done()
	j, err := ss.cfg.Jails.Rewind(ctx, jid, img, o)
	if err != nil {
		return jail.Jail{}, err
	}
	ss.mu.Lock()
	ss.last[jid] = sid
	of, _ := ss.lookup(sid)
	ss.mu.Unlock()
	ss.notify(Notification{Op: OpRewound, Snapshot: of, Jail: jid})
	ss.refill(sid)
	return j, ss.sweep(ctx)
}

// Arrive continues a jail that was moved to this host with a snapshot. See jail.Manager.Arrive.
func (ss *snapshots) Arrive(ctx context.Context, sid id.Snapshot, a jail.Arrival, commit func(ctx context.Context) error) (jail.Jail, error) {
	img, done, err := ss.image(ctx, sid)
	if err != nil {
		return jail.Jail{}, err
	}
	defer done()
	return ss.cfg.Jails.Arrive(ctx, img, a, commit)
}

// image prepares a snapshot for restoring. It stays usable until done is called.
func (ss *snapshots) image(ctx context.Context, sid id.Snapshot) (jail.Image, func(), error) {
	s, free, err := ss.acquire(sid)
	if err != nil {
		return jail.Image{}, nil, err
	}
	img := jail.Image{Snapshot: sid, Jail: s.Jail, Seq: s.Seq}
	if !s.Memory {
		return img, free, nil
	}
	at, cool, err := ss.warm(ctx, s)
	if err != nil {
		free()
		return jail.Image{}, nil, fmt.Errorf("branch snapshot %s: %w", sid, err)
	}
	img.Images = at
	return img, func() { cool(); free() }, nil
}

// warm loads the images of a snapshot into the memory cache, or into a temporary directory on
// disk if they do not fit. They stay there until cool is called.
func (ss *snapshots) warm(ctx context.Context, s *Snapshot) (at string, cool func(), err error) {
	ss.warmMu.Lock()
	defer ss.warmMu.Unlock()
	if at, ok := ss.cache.get(s.ID); ok {
		return at, func() { ss.cache.put(s.ID) }, nil
	}
	kept := filepath.Join(ss.dir(s.Jail.ID, s.ID), imagesDir)
	u, err := ss.images.Size(kept)
	if err != nil {
		return "", nil, err
	}
	err = ss.cache.make(s.ID, u.Raw)
	if errors.Is(err, fault.Exhausted) {
		at, done, err := ss.tempDir(ss.dir(s.Jail.ID, s.ID), "images")
		if err != nil {
			return "", nil, err
		}
		err = os.Chmod(at, 0o755)
		if err == nil {
			_, err = ss.images.Get(ctx, kept, at)
		}
		if err != nil {
			os.RemoveAll(at)
			done()
			return "", nil, err
		}
		return at, func() {
			os.RemoveAll(at)
			done()
		}, nil
	}
	if err != nil {
		return "", nil, err
	}
	if _, err := ss.images.Get(ctx, kept, ss.cache.path(s.ID)); err != nil {
		ss.cache.drop(s.ID)
		ss.cache.put(s.ID)
		return "", nil, err
	}
	return ss.cache.path(s.ID), func() { ss.cache.put(s.ID) }, nil
}
