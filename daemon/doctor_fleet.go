package daemon

import (
	"context"
	"fmt"
	"time"

	"glasshouse/api/wire"
	"glasshouse/fleet/pki"
	"glasshouse/store"
)

const (
	healthTimeout = 5 * time.Second
	slowDatabase  = 50 * time.Millisecond
	clockLimit    = 5 * time.Second
)

// probeFleet reports to doctor what this daemon shares with others.
func (d *Daemon) probeFleet(ctx context.Context) []wire.Probe {
	if d.Config.Gateway.DB == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	h, err := d.work.Health(ctx)
	list := []wire.Probe{databaseProbe(h, err)}
	if err == nil {
		list = append(list, clockProbe(h))
	}
	if d.identity != nil {
		list = append(list, certificateProbe(d.identity.Certificate().NotAfter, time.Now()))
	}
	return list
}

func databaseProbe(h store.Health, err error) wire.Probe {
	p := wire.Probe{Name: "shared database", Status: "ok", Need: Recommended, Purpose: "runs and the fleet"}
	if err != nil {
		p.Status, p.Reason, p.Remedy = "unsupported", err.Error(), "check gateway.db, and whether the server runs"
		return p
	}
	p.Detail = fmt.Sprintf("answers in %.1f ms", float64(h.Latency.Microseconds())/1000)
	switch {
	case h.Lossy != "":
		p.Status, p.Reason, p.Remedy = "warning", h.Lossy, "change this setting of PostgreSQL: a run whose steps are lost repeats them"
	case h.Latency > slowDatabase:
		p.Status, p.Reason, p.Remedy = "warning", "each step of a run waits for it", "use a server that is closer to the hosts"
	}
	return p
}

func clockProbe(h store.Health) wire.Probe {
	p := wire.Probe{Name: "clock", Status: "ok", Need: Recommended, Purpose: "certificates, and dates of expiry", Detail: "as the database, within 1 s"}
	if off := h.Ahead.Abs(); off > time.Second+h.Latency {
		side := map[bool]string{true: "behind", false: "ahead of"}[h.Ahead > 0]
		p.Detail = fmt.Sprintf("%s %s the database", off.Round(time.Second), side)
		if off > clockLimit+h.Latency {
			p.Status, p.Reason, p.Remedy = "warning", "certificates and tokens are valid for too long or too short a time", "synchronize the clocks of this host and the database, for example with chrony"
		}
	}
	return p
}

func certificateProbe(until, now time.Time) wire.Probe {
	p := wire.Probe{Name: "fleet certificate", Status: "ok", Need: Recommended, Purpose: "requests between nodes", Detail: "valid until " + until.UTC().Format(time.RFC3339)}
	const remedy = "the node with the authority renews it: check with glasshouse node ls whether that node is up, and the daemon's log"
	switch left := until.Sub(now); {
	case left <= 0:
		p.Status, p.Reason, p.Remedy = "unsupported", "it has expired", remedy
	case left < pki.Lifetime/2:
		p.Status, p.Reason, p.Remedy = "warning", "it should have been renewed", remedy
	}
	return p
}
