package oci

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"glasshouse/host/seccomp"
	"glasshouse/internal/notify"
	"glasshouse/jail"
	"glasshouse/jailinit/control"
)

var _ jail.Enforced = (*instance)(nil)

// enforce has the commands of a jail ask that has run none.
func (i *instance) enforce(ctx context.Context) error {
	filter, err := seccomp.Notify(runtime.GOARCH)
	if err != nil {
		return err
	}
	fd, err := control.Dial(i.layout.socket()).Enforce(ctx, filter)
	if err != nil {
		return fmt.Errorf("enforce: %w", err)
	}
	l, err := notify.Take(i.pid, fd)
	i.listening.Lock()
	i.listener = l
	i.listening.Unlock()
	return err
}

// Listener implements jail.Enforced. After a restart of the daemon init has it.
func (i *instance) Listener() (*notify.Listener, error) {
	i.listening.Lock()
	defer i.listening.Unlock()
	if !i.plan.Enforce {
		return nil, os.ErrNotExist
	}
	if i.listener == nil {
		l, err := notify.Of(i.pid)
		if err != nil {
			return nil, err
		}
		i.listener = l
	}
	return i.listener.Clone()
}

// closeListener lets go of it.
func (i *instance) closeListener() {
	i.listening.Lock()
	defer i.listening.Unlock()
	if i.listener != nil {
		i.listener.Close()
		i.listener = nil
	}
}
