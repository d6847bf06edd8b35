package jail

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/subscribers"
)

// An Enforcer enforces the policy of jails, such as egress rules. The Manager does not make
// concurrent calls for one jail, and calls the Observer first.
type Enforcer interface {
	// Check validates the Policy of a Spec and returns it in the form to record, or an Invalid
	// error that names the invalid field.
	Check(ctx context.Context, s Spec) (json.RawMessage, error)

	// Env returns default environment variables for the commands of a jail. Its Spec can
	// override them.
	Env(j Jail) map[string]string

	// Apply applies the policy to a jail that has been created or reattached, or to a new
	// instance of a jail. In a new jail only init has run, and in one that was made from a
	// snapshot nothing has. After an error the jail does not run.
	Apply(ctx context.Context, j Jail, s HostInfo) error

	// SpecChanged applies a change of the jail's Spec, for example when a client gets a spare. The
	// processes of a frozen copy may not have run yet.
	SpecChanged(ctx context.Context, j Jail) error

	// Resumed is called when the processes of a jail that was restored from a snapshot run and
	// can be notified. If same is true, the source of the snapshot had the same policy, and
	// there is nothing to notify. After an error a new jail is removed.
	Resumed(ctx context.Context, j Jail, same bool) error

	// Release ends the enforcement when the jail's processes have ended. It may be called for
	// a jail without policy.
	Release(jid id.Jail)

	// StateChanged is called for every state change of a jail after it is recorded. It must not
	// block.
	StateChanged(j Jail, from State)
}

// ReplacePolicy changes the Enforcer's configuration of a jail, with immediate effect.
func (lc *lifecycle) ReplacePolicy(ctx context.Context, jid id.Jail, by func(json.RawMessage) (json.RawMessage, error)) (Jail, error) {
	return lc.registry.withLock(ctx, jid, "jail.ReplacePolicy", func(ctx context.Context, b Backend, e *entry) error {
		was := *e.jail.Load()
		j := was
		var err error
		j.Spec.Policy, err = by(j.Spec.Policy)
		if err != nil {
			return err
		}
		j.Spec.Policy, err = lc.observers.checkGovern(ctx, j.Spec)
		if err != nil {
			return err
		}
		if err := lc.registry.save(ctx, e, j); err != nil {
			return err
		}
		if lc.cfg.Enforcer == nil || e.live.Load() == nil {
			return nil
		}
		if err := lc.cfg.Enforcer.SpecChanged(ctx, j); err != nil {
			return errors.Join(err, lc.registry.save(ctx, e, was))
		}
		return nil
	})
}

// A Listener is notified about the processes of jails. Its methods must not block.
type Listener interface {
	// JailStarted is called when the policy of a jail that starts or was reattached has been
	// applied. If the jail was not yet running or could not be found, JailStarted is called again
	// when it is running and can be found, for example when a client gets a spare.
	JailStarted(j Jail)

	// JailStopped is called when the processes of a jail have ended, and for jails without
	// processes.
	JailStopped(jid id.Jail)
}

// observers notifies the Observer, the Enforcer and the Listeners about jails.
type observers struct {
	*core

	listeners subscribers.List[Listener]
}

// Subscribe notifies l about jails that start and stop until cancel is called.
func (ob *observers) Subscribe(l Listener) (cancel func()) { return ob.listeners.Add(l) }

func (ob *observers) notifyStarted(j Jail) {
	ob.listeners.Each(func(l Listener) { l.JailStarted(j) })
}

func (ob *observers) checkGovern(ctx context.Context, s Spec) (json.RawMessage, error) {
	if ob.cfg.Enforcer == nil {
		if len(s.Policy) > 0 {
			return nil, fault.Fieldf("jail.Create", "govern", "this daemon has no policy enforcement")
		}
		return nil, nil
	}
	return ob.cfg.Enforcer.Check(ctx, s)
}

func (ob *observers) notifyStateChanged(j Jail, from State) {
	if j.State == from {
		return
	}
	// A jail that is created from a snapshot is recorded as running before its policy is applied,
	// and applyPolicy notifies the listeners.
	if j.State == Running && from != Paused && from != Creating {
		ob.notifyStarted(j)
	}
	if ob.cfg.Enforcer != nil {
		ob.cfg.Enforcer.StateChanged(j, from)
	}
}

// notifyResumed notifies the Enforcer that the processes from an image run.
func (ob *observers) notifyResumed(ctx context.Context, j Jail, img Image) error {
	if ob.cfg.Enforcer == nil {
		return nil
	}
	if err := ob.cfg.Enforcer.Resumed(ctx, j, bytes.Equal(j.Spec.Policy, img.Jail.Spec.Policy)); err != nil {
		return fmt.Errorf("govern the resumed jail %s: %w", j.ID, err)
	}
	return nil
}

func (ob *observers) applyPolicy(ctx context.Context, j Jail, s HostInfo) error {
	if ob.cfg.Enforcer != nil {
		if err := ob.cfg.Enforcer.Apply(ctx, j, s); err != nil {
			return fmt.Errorf("govern jail %s: %w", j.ID, err)
		}
	}
	ob.notifyStarted(j)
	return nil
}

// notifySpecChanged notifies the Observer and the Enforcer of a changed Spec.
func (ob *observers) notifySpecChanged(ctx context.Context, j Jail) error {
	if ob.cfg.Observer != nil {
		if err := ob.cfg.Observer.Select(ctx, j); err != nil {
			return fmt.Errorf("select the events of jail %s: %w", j.ID, err)
		}
	}
	if ob.cfg.Enforcer != nil {
		if err := ob.cfg.Enforcer.SpecChanged(ctx, j); err != nil {
			return fmt.Errorf("govern jail %s: %w", j.ID, err)
		}
	}
	return nil
}
