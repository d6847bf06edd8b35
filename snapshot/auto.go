package snapshot

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"glasshouse/event"
	"glasshouse/fault"
	"glasshouse/id"
	safetext "glasshouse/internal/text"
	"glasshouse/jail"
)

var _ jail.Commands = (*Keeper)(nil)

// auto is what is known of a jail whose snapshots are taken unasked.
type auto struct {
	turn sync.Mutex // held while one is being taken

	// guarded by Keeper.mu
	due     time.Time // of the next by time; zero is not known yet
	waiting bool      // a process is held for one
	told    []string  // the command that Before was called with last
	toldAt  time.Time
	failed  int       // times in a row
	rest    time.Time // none is tried before
}

const (
	// clockTime is how often it is looked for jails whose time has come.
	clockTime = 5 * time.Second

	// After a failure the next snapshot is not tried at once: what keeps a jail
	// from being written down stays for a while, and it waits for every try.
	firstRest = time.Minute
	longRest  = time.Hour

	// toldTime is how long after Before the same command is the one it was called
	// with.
	toldTime = 5 * time.Second

	// lateTime is the age at which the record of a program says nothing about
	// what is about to happen.
	lateTime = time.Second

	maxTrigger = 256
)

func (r Reason) automatic() bool { return r == Every || r == Before || r == After }

// auto returns what is known of a jail.
func (k *Keeper) auto(jid id.Jail) *auto {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := k.autos[jid]
	if a == nil {
		a = &auto{}
		k.autos[jid] = a
	}
	return a
}

// unasked takes a snapshot of a running jail if it may have changed since the
// last. What goes wrong is said once, and harms nobody.
func (k *Keeper) unasked(ctx context.Context, jid id.Jail, o TakeOptions) {
	a := k.auto(jid)
	a.turn.Lock()
	defer a.turn.Unlock()
	k.mu.Lock()
	resting := time.Now().Before(a.rest)
	k.mu.Unlock()
	if resting || k.ctx.Err() != nil {
		return
	}
	j, err := k.cfg.Jails.Get(ctx, jid)
	if err != nil || j.State != jail.Running && j.State != jail.Paused {
		return
	}
	if changed, err := k.cfg.Jails.Changed(ctx, jid); err == nil && !changed {
		return
	}
	_, done, err := k.take(ctx, jid, o)
	if err != nil {
		k.failed(ctx, a, jid, o, err)
		return
	}
	done()
	k.mu.Lock()
	a.failed, a.rest = 0, time.Time{}
	k.mu.Unlock()
	k.retainSoon(jid)
}

// failed notes that a snapshot was not taken. Of a jail that has ended meanwhile
// there is nothing to say.
func (k *Keeper) failed(ctx context.Context, a *auto, jid id.Jail, o TakeOptions, err error) {
	if j, gone := k.cfg.Jails.Get(ctx, jid); gone != nil || j.State != jail.Running && j.State != jail.Paused || ctx.Err() != nil {
		return
	}
	k.mu.Lock()
	rest := min(firstRest<<min(a.failed, 10), longRest)
	a.failed++
	a.rest = time.Now().Add(rest)
	first := a.failed == 1
	k.mu.Unlock()
	if first {
		k.cfg.Log.Warn("no automatic snapshot was taken; it is tried again, and this is not said again until one is",
			"jail", jid, "reason", o.Reason, "trigger", o.Trigger, "err", err, "remedy", fault.RemedyOf(err), "again", rest)
	}
}

// clock takes snapshots of jails whose time has come.
func (k *Keeper) clock() {
	for {
		wait := k.strike(time.Now())
		select {
		case <-k.ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// strike takes the snapshots that are due, and returns how long there is until
// the next may be.
func (k *Keeper) strike(now time.Time) time.Duration {
	jails, err := k.cfg.Jails.List(k.ctx, jail.ListOptions{})
	if err != nil {
		return clockTime
	}
	k.forget(jails)
	wait := clockTime
	var work errgroup.Group
	work.SetLimit(2)
	for _, j := range jails {
		every := j.Spec.Snapshots.Every
		if every == 0 || j.State != jail.Running && j.State != jail.Paused {
			continue
		}
		a := k.auto(j.ID)
		due := k.due(a, j)
		if left := due.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		work.Go(func() error {
			k.unasked(k.ctx, j.ID, TakeOptions{Reason: Every, Trigger: every.String()})
			k.mu.Lock()
			a.due = time.Now().Add(every)
			k.mu.Unlock()
			return nil
		})
	}
	work.Wait()
	return wait
}

// due returns when the next snapshot of a jail is, by time: as long after the last
// one of any kind as the policy says, also of an earlier daemon's.
func (k *Keeper) due(a *auto, j jail.Jail) time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	last := j.Created
	if j.Started != nil {
		last = *j.Started
	}
	for _, s := range k.all {
		if s.Jail.ID == j.ID && s.Created.After(last) {
			last = s.Created
		}
	}
	if due := last.Add(j.Spec.Snapshots.Every); due.After(a.due) {
		a.due = due
	}
	return a.due
}

// forget lets go of what is known of jails that are gone.
func (k *Keeper) forget(jails []jail.Jail) {
	there := map[id.Jail]bool{}
	for _, j := range jails {
		there[j.ID] = true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for jid := range k.autos {
		if !there[jid] {
			delete(k.autos, jid)
		}
	}
}

// Before implements jail.Commands: a command that was asked for waits for the
// snapshot.
func (k *Keeper) Before(ctx context.Context, jid id.Jail, argv []string) {
	j, err := k.cfg.Jails.Get(ctx, jid)
	if err != nil {
		return
	}
	rule := matching(j.Spec.Snapshots.Before, func(words []string) bool { return inCommand(words, argv) })
	if rule == "" {
		return
	}
	k.unasked(ctx, jid, TakeOptions{Reason: Before, Trigger: rule})
	a := k.auto(jid)
	k.mu.Lock()
	defer k.mu.Unlock()
	a.told, a.toldAt = slices.Clone(argv), time.Now()
}

// After implements jail.Commands.
func (k *Keeper) After(ctx context.Context, jid id.Jail, argv []string) {
	if k.ctx.Err() != nil {
		return
	}
	k.unasked(ctx, jid, TakeOptions{Reason: After, Trigger: trigger(argv)})
}

// trigger is a command in words.
func trigger(argv []string) string {
	s := strings.ToValidUTF8("exec:"+strings.Join(argv, " "), "\uFFFD")
	return safetext.Clip(s, maxTrigger)
}

// Began is told of each program that a process in a jail has begun: it has begun
// already, and it is held where it is as soon as it can be. It returns at once,
// and does not keep e.
func (k *Keeper) Began(jid id.Jail, e *event.Event) {
	if k.ctx == nil || k.ctx.Err() != nil || time.Since(time.UnixMilli(e.TS)) > lateTime {
		return
	}
	j, err := k.cfg.Jails.Get(k.ctx, jid)
	if err != nil || len(j.Spec.Snapshots.Before) == 0 {
		return
	}
	rule := matching(j.Spec.Snapshots.Before, func(words []string) bool { return inProgram(words, e.Argv) })
	if rule == "" || !k.await(jid, e.Argv) {
		return
	}
	pid := int(e.HostPID)
	k.wg.Go(func() {
		held, err := k.cfg.Jails.Hold(jid, pid)
		defer held.Release()
		if err != nil { // it has ended, or a tracer holds it already
			k.cfg.Log.Debug("a process was not held for a snapshot", "jail", jid, "pid", pid, "err", err)
		}
		k.unasked(k.ctx, jid, TakeOptions{Reason: Before, Trigger: rule, held: held})
		a := k.auto(jid)
		k.mu.Lock()
		defer k.mu.Unlock()
		a.waiting = false
	})
}

// await reports whether a program that has begun is to wait for a snapshot: not
// the one that Before was called with, nor one while another waits.
func (k *Keeper) await(jid id.Jail, argv []string) bool {
	a := k.auto(jid)
	k.mu.Lock()
	defer k.mu.Unlock()
	if a.told != nil && slices.Equal(a.told, argv) && time.Since(a.toldAt) < toldTime {
		a.told = nil
		return false
	}
	if a.waiting || time.Now().Before(a.rest) {
		return false
	}
	a.waiting = true
	return true
}

// retainSoon removes in the background the snapshots that a jail's policy does not
// keep.
func (k *Keeper) retainSoon(jid id.Jail) {
	if k.ctx.Err() != nil {
		return
	}
	k.wg.Go(func() {
		if err := k.retain(k.ctx, jid); err != nil && k.ctx.Err() == nil && !errors.Is(err, fault.NotFound) {
			k.cfg.Log.Warn("automatic snapshots were not removed", "jail", jid, "err", err)
		}
	})
}
