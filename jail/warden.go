package jail

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"glasshouse/fault"
	"glasshouse/id"
)

// A Warden governs what leaves jails. The Manager calls it for one jail at a
// time, and beside the Observer: what is governed is watched first.
type Warden interface {
	// Check reads the Govern of a Spec and returns it as it is to be kept, or an
	// Invalid error that names the field at fault.
	Check(ctx context.Context, s Spec) (json.RawMessage, error)

	// Env returns what the commands of a jail find in their environment, unless
	// its Spec says otherwise.
	Env(j Jail) map[string]string

	// Guard begins to govern a jail that has come to life or is found alive, or
	// goes on with one that has got another body. Of a new jail nothing but init
	// has run yet, and of one made from a snapshot nothing at all. After an
	// error the jail does not run.
	Guard(ctx context.Context, j Jail, s Sight) error

	// Adapt follows a change of the jail's Spec: a spare has become somebody's. The
	// processes of a copy of a snapshot may not have run yet.
	Adapt(ctx context.Context, j Jail) error

	// Awoke says that the processes of a jail that was guarded with a snapshot's run
	// by now and can be told things. same says that the snapshot was of a jail that
	// was governed by the same: there is nothing to tell. After an error a new jail
	// does not stay.
	Awoke(ctx context.Context, j Jail, same bool) error

	// Release ends it, when the jail's processes have ended. It may be called
	// for a jail that is not governed.
	Release(jid id.Jail)

	// Moved is told of every change of a jail's state, once it is on record.
	// It must not wait for anything.
	Moved(j Jail, from State)
}

// Regovern changes what the Warden is to go by for a jail, at once.
func (m *Manager) Regovern(ctx context.Context, jid id.Jail, by func(json.RawMessage) (json.RawMessage, error)) (Jail, error) {
	return m.change(ctx, jid, "jail.Regovern", func(ctx context.Context, b Backend, c *cell) error {
		was := *c.jail.Load()
		j := was
		var err error
		if j.Spec.Govern, err = by(j.Spec.Govern); err != nil {
			return err
		}
		if j.Spec.Govern, err = m.checkGovern(ctx, j.Spec); err != nil {
			return err
		}
		if err := m.save(ctx, c, j); err != nil {
			return err
		}
		if m.cfg.Warden == nil || c.live.Load() == nil {
			return nil
		}
		if err := m.cfg.Warden.Adapt(ctx, j); err != nil {
			return errors.Join(err, m.save(ctx, c, was))
		}
		return nil
	})
}

func (m *Manager) checkGovern(ctx context.Context, s Spec) (json.RawMessage, error) {
	if m.cfg.Warden == nil {
		if len(s.Govern) > 0 {
			return nil, fault.Fieldf("jail.Create", "govern", "nobody governs jails here")
		}
		return nil, nil
	}
	return m.cfg.Warden.Check(ctx, s)
}

func (m *Manager) moved(j Jail, from State) {
	if m.cfg.Warden != nil && j.State != from {
		m.cfg.Warden.Moved(j, from)
	}
}

// awoke tells who governs a jail that what it was made of runs.
func (m *Manager) awoke(ctx context.Context, j Jail, img Image) error {
	if m.cfg.Warden == nil {
		return nil
	}
	return m.cfg.Warden.Awoke(ctx, j, bytes.Equal(j.Spec.Govern, img.Jail.Spec.Govern))
}

func (m *Manager) guard(ctx context.Context, j Jail, s Sight) error {
	if m.cfg.Warden == nil {
		return nil
	}
	if err := m.cfg.Warden.Guard(ctx, j, s); err != nil {
		return fmt.Errorf("govern jail %s: %w", j.ID, err)
	}
	return nil
}

// adapt tells those who watch and govern a jail that it has another Spec.
func (m *Manager) adapt(ctx context.Context, j Jail) error {
	if m.cfg.Observer != nil {
		if err := m.cfg.Observer.Select(ctx, j); err != nil {
			return err
		}
	}
	if m.cfg.Warden != nil {
		return m.cfg.Warden.Adapt(ctx, j)
	}
	return nil
}
