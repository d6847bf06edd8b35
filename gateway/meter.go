package gateway

import (
	"context"
	"errors"
	"time"

	"glasshouse/budget"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/run"
)

const (
	// meterInterval is how often it is read what a run uses, and limitedEvery if some of
	// that is limited.
	meterInterval   = 10 * time.Second
	limitedMeterInterval = 2 * time.Second

	// meterTimeout bounds one reading.
	meterTimeout = 10 * time.Second
)

// meter charges a run for what it uses, from now on until stop is called, and then for
// the rest.
func (g *Gateway) meter(ctx context.Context, rid id.Run) (stop func()) {
	metered, end := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait := time.NewTimer(0)
		defer wait.Stop()
		for {
			select {
			case <-metered.Done():
				return
			case <-wait.C:
			}
			wait.Reset(nextReading(g.measure(metered, rid)))
		}
	}()
	return func() {
		end()
		<-done
		if errors.Is(context.Cause(ctx), run.ErrLost) { // it is another's to charge
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), meterTimeout)
		defer cancel()
		g.measure(ctx, rid)
	}
}

// nextReading is when it is to be read again what a run uses: not later than its time is
// over.
func nextReading(r run.Run) time.Duration {
	wait := meterInterval
	for d, limit := range r.Budget.Limits {
		switch d {
		case budget.Wall:
			left := time.Duration(limit-r.Budget.Consumed[d]+1) * time.Millisecond
			wait = min(wait, max(left, limitedMeterInterval/20))
		case budget.CPU, budget.Network, budget.Storage:
			wait = min(wait, limitedMeterInterval)
		}
	}
	return wait
}

// measure charges a run for what it has used since it was measured last.
func (g *Gateway) measure(ctx context.Context, rid id.Run) run.Run {
	r, err := g.cfg.Runs.Get(ctx, rid)
	if err == nil {
		var readings []run.Reading
		if readings, err = g.readings(ctx, r); err == nil {
			r, err = g.cfg.Runs.Measure(ctx, rid, readings)
		}
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, fault.Conflict) { // it is another daemon's
		g.cfg.Log.Warn("a run is not charged for what it used last; it will be", "run", rid, "err", err)
	}
	return r
}

// createdForRun reports whether a jail was made for this run, and not for one before it.
func createdForRun(j jail.Jail, r run.Run) bool {
	of := j.Spec.Labels[LabelRun]
	return of == string(r.ID) || of == labelRunBranch
}

// readings are what the counters of a run's jail say. Of a jail that was not made for it
// counts what is used from when the run came to it, by whomever.
func (g *Gateway) readings(ctx context.Context, r run.Run) ([]run.Reading, error) {
	if r.Jail == "" {
		return nil, nil
	}
	j, err := g.cfg.Jails.Get(ctx, r.Jail)
	if errors.Is(err, fault.NotFound) {
		return nil, nil // its counters went with it
	}
	if err != nil {
		return nil, err
	}
	used, err := g.cfg.Jails.Usage(ctx, r.Jail)
	if err != nil {
		return nil, err
	}
	proxied, kernel := g.cfg.Kernel.Carried(r.Jail)
	all := []run.Reading{
		{Name: "cpu", Dimension: budget.CPU, Total: used.CPU.Milliseconds()},
		{Name: "wire", Dimension: budget.Network, Total: used.RxBytes + used.TxBytes},
		{Name: "proxy", Dimension: budget.Network, Total: proxied, Epoch: kernel, Peak: true},
		{Name: "disk", Dimension: budget.Storage, Total: used.DiskBytes, Peak: true},
	}
	for i := range all {
		all[i].Of, all[i].Shared = string(r.Jail), !createdForRun(j, r)
	}
	return all, nil
}
