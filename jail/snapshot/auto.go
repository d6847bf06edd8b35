package snapshot

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"glasshouse/fault"
	"glasshouse/id"
	safetext "glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/observe/event"
)

var _ jail.Commands = (*automatic)(nil)

// auto is the state of a jail with automatic snapshots.
type auto struct {
	takeMu sync.Mutex // serializes automatic snapshots of the jail

	// The following fields are guarded by automatic.mu.
	due         time.Time // time of the next periodic snapshot; zero if unknown
	pending     bool      // a process is stopped for a snapshot
	announced   []string  // the command of the last call of Before
	announcedAt time.Time
	failed      int       // number of consecutive failures
	retryAfter  time.Time // no attempt before this time
}

const (
	// clockInterval is the maximum interval between checks for due snapshots.
	clockInterval = 5 * time.Second

	// After a failure the next attempt is delayed: the cause usually persists for a while, and
	// each attempt pauses the jail.
	minBackoff = time.Minute
	maxBackoff = time.Hour

	// announcedTTL is how long after a call of Before a started program with the same arguments is
	// taken for the command of that call.
	announcedTTL = 5 * time.Second

	// maxEventAge is the maximum age of a program's exec event for which a snapshot before the
	// program is still useful.
	maxEventAge = time.Second

	maxTrigger = 256
)

// Automatic reports whether a snapshot was taken without a request.
func (r Reason) Automatic() bool { return r == Periodic || r == Before || r == After }

// automatic takes the automatic snapshots of jails.
type automatic struct {
	*snapshots

	mu sync.Mutex
	// +checklocks:mu
	byJail map[id.Jail]*auto // jails with automatic snapshots
}

// auto returns the state of a jail and creates it if necessary.
func (au *automatic) auto(jid id.Jail) *auto {
	au.mu.Lock()
	defer au.mu.Unlock()
	a := au.byJail[jid]
	if a == nil {
		a = &auto{}
		au.byJail[jid] = a
	}
	return a
}

// takeAutomatic takes a snapshot of a running jail if the jail may have changed since the last
// one. The first of consecutive failures is logged. Failures do not affect the jail.
func (au *automatic) takeAutomatic(ctx context.Context, jid id.Jail, o TakeOptions) {
	a := au.auto(jid)
	a.takeMu.Lock()
	defer a.takeMu.Unlock()
	au.mu.Lock()
	resting := time.Now().Before(a.retryAfter)
	au.mu.Unlock()
	if resting || au.ctx.Err() != nil {
		return
	}
	j, err := au.cfg.Jails.Get(ctx, jid)
	if err != nil || j.State != jail.Running && j.State != jail.Paused {
		return
	}
	if changed, err := au.cfg.Jails.Changed(ctx, jid); err == nil && !changed {
		return
	}
	_, done, err := au.take(ctx, jid, o)
	if err != nil {
		au.recordFailure(ctx, a, jid, o, err)
		return
	}
	done()
	au.mu.Lock()
	a.failed, a.retryAfter = 0, time.Time{}
	au.mu.Unlock()
	au.retainSoon(jid)
}

// recordFailure records a failed attempt and sets the time of the next one. It ignores
// failures of a jail that has ended meanwhile.
func (au *automatic) recordFailure(ctx context.Context, a *auto, jid id.Jail, o TakeOptions, err error) {
	if j, gone := au.cfg.Jails.Get(ctx, jid); gone != nil || j.State != jail.Running && j.State != jail.Paused || ctx.Err() != nil {
		return
	}
	au.mu.Lock()
	rest := min(minBackoff<<min(a.failed, 10), maxBackoff)
	a.failed++
	a.retryAfter = time.Now().Add(rest)
	first := a.failed == 1
	au.mu.Unlock()
	if first {
		au.cfg.Log.Warn("automatic snapshot failed; it will be retried, and further failures are not logged until one succeeds",
			"jail", jid, "reason", o.Reason, "trigger", o.Trigger, "err", err, "remedy", fault.RemedyOf(err), "again", rest)
	}
}

// clock takes periodic snapshots until Close.
func (au *automatic) clock() {
	for {
		wait := au.takeDue(time.Now())
		select {
		case <-au.ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// takeDue takes the snapshots that are due at now, and returns the time until the next check.
func (au *automatic) takeDue(now time.Time) time.Duration {
	jails, err := au.cfg.Jails.List(au.ctx, jail.ListOptions{})
	if err != nil {
		return clockInterval
	}
	au.forgetJails(jails)
	wait := clockInterval
	var work errgroup.Group
	work.SetLimit(2)
	for _, j := range jails {
		every := j.Spec.Snapshots.Every
		if every == 0 || j.State != jail.Running && j.State != jail.Paused {
			continue
		}
		a := au.auto(j.ID)
		due := au.due(a, j)
		if left := due.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		work.Go(func() error {
			au.takeAutomatic(au.ctx, j.ID, TakeOptions{Reason: Periodic, Trigger: every.String()})
			au.mu.Lock()
			a.due = time.Now().Add(every)
			au.mu.Unlock()
			return nil
		})
	}
	work.Wait()
	return wait
}

// due returns the time of the next periodic snapshot of a jail: one period after its last
// snapshot of any kind, including those of earlier daemons.
func (au *automatic) due(a *auto, j jail.Jail) time.Time {
	last := j.Created
	if j.Started != nil {
		last = *j.Started
	}
	if newest := au.newest(j.ID); newest.After(last) {
		last = newest
	}
	au.mu.Lock()
	defer au.mu.Unlock()
	if due := last.Add(j.Spec.Snapshots.Every); due.After(a.due) {
		a.due = due
	}
	return a.due
}

// forgetJails removes the state of jails that no longer exist.
func (au *automatic) forgetJails(jails []jail.Jail) {
	there := map[id.Jail]bool{}
	for _, j := range jails {
		there[j.ID] = true
	}
	au.mu.Lock()
	defer au.mu.Unlock()
	for jid := range au.byJail {
		if !there[jid] {
			delete(au.byJail, jid)
		}
	}
}

// Before implements jail.Commands. The requested command waits for the snapshot.
func (au *automatic) Before(ctx context.Context, jid id.Jail, argv []string) {
	if !au.opened.Load() {
		return
	}
	j, err := au.cfg.Jails.Get(ctx, jid)
	if err != nil {
		return
	}
	rule := matching(j.Spec.Snapshots.Before, func(words []string) bool { return mayRun(words, argv) })
	if rule == "" {
		return
	}
	au.takeAutomatic(ctx, jid, TakeOptions{Reason: Before, Trigger: rule})
	a := au.auto(jid)
	au.mu.Lock()
	defer au.mu.Unlock()
	a.announced, a.announcedAt = slices.Clone(argv), time.Now()
}

// After implements jail.Commands.
func (au *automatic) After(ctx context.Context, jid id.Jail, argv []string) {
	if !au.opened.Load() || au.ctx.Err() != nil {
		return
	}
	au.takeAutomatic(ctx, jid, TakeOptions{Reason: After, Trigger: trigger(argv)})
}

// trigger returns the text of a command for Snapshot.Trigger.
func trigger(argv []string) string {
	s := strings.ToValidUTF8("exec:"+strings.Join(argv, " "), "\uFFFD")
	return safetext.Clip(s, maxTrigger)
}

// ProgramStarted is called for each program that a process in a jail has executed. If the policy
// requires a snapshot, the process is stopped as soon as possible, after the program has
// started. ProgramStarted does not block and does not keep e.
func (au *automatic) ProgramStarted(jid id.Jail, e *event.Event) {
	if !au.opened.Load() || au.ctx.Err() != nil || time.Since(time.UnixMilli(e.TS)) > maxEventAge {
		return
	}
	j, err := au.cfg.Jails.Get(au.ctx, jid)
	if err != nil || len(j.Spec.Snapshots.Before) == 0 {
		return
	}
	rule := matching(j.Spec.Snapshots.Before, func(words []string) bool { return matchesProgram(words, e.Argv) })
	if rule == "" || !au.claimHold(jid, e.Argv) {
		return
	}
	pid := int(e.HostPID)
	au.wg.Go(func() {
		stopped, err := au.cfg.Jails.StopProcess(jid, pid)
		defer stopped.Release()
		if err != nil { // the process has ended, or another tracer is attached
			au.cfg.Log.Debug("cannot stop a process for a snapshot", "jail", jid, "pid", pid, "err", err)
		}
		au.takeAutomatic(au.ctx, jid, TakeOptions{Reason: Before, Trigger: rule, stopped: stopped})
		a := au.auto(jid)
		au.mu.Lock()
		defer au.mu.Unlock()
		a.pending = false
	})
}

// claimHold reports whether a started program has to wait for a snapshot, and if so marks one
// as pending. It returns false for the command of the last call of Before, and while another
// snapshot is pending.
func (au *automatic) claimHold(jid id.Jail, argv []string) bool {
	a := au.auto(jid)
	au.mu.Lock()
	defer au.mu.Unlock()
	if a.announced != nil && slices.Equal(a.announced, argv) && time.Since(a.announcedAt) < announcedTTL {
		a.announced = nil
		return false
	}
	if a.pending || time.Now().Before(a.retryAfter) {
		return false
	}
	a.pending = true
	return true
}

// retainSoon removes in the background the snapshots that exceed a jail's retention policy.
func (au *automatic) retainSoon(jid id.Jail) {
	if au.ctx.Err() != nil {
		return
	}
	au.wg.Go(func() {
		if err := au.retain(au.ctx, jid); err != nil && au.ctx.Err() == nil && !errors.Is(err, fault.NotFound) {
			au.cfg.Log.Warn("cannot remove automatic snapshots", "jail", jid, "err", err)
		}
	})
}
