package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"glasshouse/agents/run"
	"glasshouse/capability/budget"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

const (
	// meterInterval is the interval between readings of a run's resource use, and
	// limitedMeterInterval the one for runs with resource limits.
	meterInterval        = 10 * time.Second
	limitedMeterInterval = 2 * time.Second

	// meterTimeout limits the duration of the last reading.
	meterTimeout = 10 * time.Second
)

// meter charges a run for its resource use until stop is called. stop takes a last reading.
func (sv *supervisor) meter(ctx context.Context, rid id.Run) (stop func()) {
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
			wait.Reset(nextReading(sv.measure(metered, rid)))
		}
	}()
	return func() {
		end()
		<-done
		if errors.Is(context.Cause(ctx), run.ErrLost) { // another daemon has the claim and charges the run
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), meterTimeout)
		defer cancel()
		sv.measure(ctx, rid)
	}
}

// nextReading returns the delay until the next reading of a run, at most until its wall time
// limit.
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

// measure charges a run for its resource use since the last reading.
func (sv *supervisor) measure(ctx context.Context, rid id.Run) run.Run {
	r, err := sv.cfg.Runs.Get(ctx, rid)
	if err == nil {
		var readings []run.Reading
		readings, err = sv.readings(ctx, r)
		if err == nil {
			r, err = sv.cfg.Runs.ChargeReadings(ctx, rid, readings)
		}
	}
	// A conflict means that another daemon charges the run.
	if err != nil && ctx.Err() == nil && !errors.Is(err, fault.Conflict) {
		sv.cfg.Log.Warn("could not charge a run for its resource use; it will be retried", "run", rid, "err", err)
	}
	return r
}

// createdForRun reports whether a jail was created for this run, and not for an earlier one.
func createdForRun(j jail.Jail, r run.Run) bool {
	of := j.Spec.Labels[LabelRun]
	return of == string(r.ID) || of == labelRunBranch
}

// readings returns the counters of a run's jail. Of a jail that was not created for the run,
// all use counts from the time that the run was assigned to it, whichever process caused it.
func (sv *supervisor) readings(ctx context.Context, r run.Run) ([]run.Reading, error) {
	if r.Jail == "" {
		return nil, nil
	}
	j, err := sv.cfg.Jails.Get(ctx, r.Jail)
	if errors.Is(err, fault.NotFound) {
		return nil, nil // the counters were deleted with the jail
	}
	if err != nil {
		return nil, err
	}
	used, err := sv.cfg.Jails.Usage(ctx, r.Jail)
	if err != nil {
		return nil, fmt.Errorf("read the resource use of jail %s: %w", r.Jail, err)
	}
	proxied, kernel := sv.cfg.Policy.ProxyBytes(r.Jail)
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
