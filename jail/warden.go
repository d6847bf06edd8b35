package jail

import (
	"context"
	"fmt"

	"glasshouse/id"
)

// A Warden governs what leaves jails. The Manager calls it for one jail at a
// time, and beside the Observer: what is governed is watched first.
type Warden interface {
	// Guard begins to govern a jail that has come to life or is found alive, or
	// goes on with one that has got another body. Of a new jail nothing but init
	// has run yet, and of one made from a snapshot nothing at all. After an
	// error the jail does not run.
	Guard(ctx context.Context, j Jail, s Sight) error

	// Adapt follows a change of the jail's Spec: a spare has become somebody's.
	Adapt(ctx context.Context, j Jail) error

	// Release ends it, when the jail's processes have ended. It may be called
	// for a jail that is not governed.
	Release(jid id.Jail)
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
