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
)

// watch looks for work and for changes of other daemons, and wakes the components that they concern.
// All look in one statement: that of an idle daemon is the load of a large fleet on its database.
func (d *Daemon) watch() {
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
			d.secrets.Wake()
		}
		if now.Capabilities != last.Capabilities {
			d.wakeCapabilities()
		}
		last = now
	})
}
