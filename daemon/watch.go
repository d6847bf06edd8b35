package daemon

import (
	"context"
	"time"

	"glasshouse/store"
)

const (
	watchInterval = time.Second
	watchTimeout  = 5 * time.Second

	// idleScan is how often the components that watch wakes look for work without it.
	idleScan = 30 * time.Second

	rereadRetry = 2 * time.Second // after an error
)

// watch looks for work and for changes of other daemons, and wakes the components that they concern.
// All look in one statement: that of an idle daemon is the load of a large fleet on its database.
func (d *Daemon) watch() {
	rereadSecrets, rereadCapabilities := func() {}, func() {} // without a fleet, no other daemon changes them
	if d.router != nil {
		rereadSecrets = d.reread("secrets", d.secrets.Refresh)
		rereadCapabilities = d.reread("capabilities", d.registry.Refresh)
	}
	var last store.Signals
	failing := false
	d.every(watchInterval, func(ctx context.Context) {
		read, cancel := context.WithTimeout(ctx, watchTimeout)
		defer cancel()
		now, err := d.work.Signals(read, d.runs.Holder(), d.runs.Now())
		if err != nil && !failing && ctx.Err() == nil {
			d.log.Warn("could not look for work; it is repeated", "err", err)
		}
		failing = err != nil
		if err != nil {
			return
		}
		if now.Runs {
			d.gateway.Wake()
		}
		if now.Requests {
			d.broker.Wake()
		}
		if now.Secrets != last.Secrets {
			rereadSecrets()
		}
		if now.Capabilities != last.Capabilities {
			rereadCapabilities()
		}
		last = now
	})
}

// reread calls refresh, which reads what other daemons have changed, each time that wake is called
// and now and then. It repeats it soon after an error.
func (d *Daemon) reread(what string, refresh func(ctx context.Context) error) (wake func()) {
	signal := make(chan struct{}, 1)
	wake = func() {
		select {
		case signal <- struct{}{}:
		default:
		}
	}
	failing := false
	d.everyOrWhen(idleScan, signal, func(ctx context.Context) {
		err := refresh(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			d.log.Warn("could not read the changes of "+what+" by other daemons; it is repeated", "err", err)
		}
		failing = err != nil
		if failing {
			time.AfterFunc(rereadRetry, wake)
		}
	})
	return wake
}
