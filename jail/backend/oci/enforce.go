package oci

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"glasshouse/host/seccomp"
	"glasshouse/internal/notify"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
)

var _ jail.EnforcedInstance = (*instance)(nil)

// enforce installs the notification filter in init of a jail that has run no command yet.
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

// Listener implements jail.EnforcedInstance. After a restart of the daemon it gets the listener from
// init.
func (i *instance) Listener() (*notify.Listener, error) {
	i.listening.Lock()
	defer i.listening.Unlock()
	if !i.plan.Enforce {
		return nil, os.ErrNotExist
	}
	if i.listener == nil {
		l, err := notify.ListenerOf(i.pid)
		if err != nil {
			return nil, err
		}
		i.listener = l
	}
	return i.listener.Clone()
}

// closeListener closes the listener.
func (i *instance) closeListener() {
	i.listening.Lock()
	defer i.listening.Unlock()
	if i.listener != nil {
		i.listener.Close()
		i.listener = nil
	}
}
