package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy"
)

// ResourceLimiter reads and sets the resource limits of jails. It implements autonomy.Applier and
// autonomy.Sampler.
type ResourceLimiter struct {
	Jails Jails

	mu sync.Mutex
	// +checklocks:mu
	last map[id.Jail]sample
}

// A sample is the CPU time of a jail at a point in time.
type sample struct {
	at  time.Time
	cpu time.Duration
}

// sharesPerCPU is the weight that corresponds to one processor. On a busy host, a jail gets
// its share of the processors that exist.
const sharesPerCPU = 1024

func milliCPU(shares int64) int64 { return (shares*1000 + sharesPerCPU/2) / sharesPerCPU }

// sharesOf converts thousandths of a processor to CPU shares. It returns the current or
// original shares of the jail unchanged if they round to the same value.
func sharesOf(milli int64, j *jail.Jail) int64 {
	for _, s := range []int64{j.Spec.Limits.CPUShares, j.Own().CPUShares} {
		if milliCPU(s) == milli {
			return s
		}
	}
	return max(2, (milli*sharesPerCPU+500)/1000)
}

func limitsOf(l jail.Limits) autonomy.Limits {
	return autonomy.Limits{CPU: milliCPU(l.CPUShares), Memory: l.MemoryMB, Disk: l.DiskMB, PIDs: l.MaxPIDs}
}

// Limits implements autonomy.Applier.
func (b *ResourceLimiter) Limits(ctx context.Context, jid id.Jail) (autonomy.Limits, error) {
	j, err := b.Jails.Get(ctx, jid)
	return limitsOf(j.Spec.Limits), err
}

// Apply implements autonomy.Applier. It applies the limits as lent, and keeps the jail's own
// ones.
func (b *ResourceLimiter) Apply(ctx context.Context, jid id.Jail, l autonomy.Limits) error {
	j, err := b.Jails.Get(ctx, jid)
	if err != nil {
		return err
	}
	_, err = b.Jails.Limit(ctx, jid, jail.LimitChange{Temporary: true, Limits: jail.Limits{
		CPUShares: sharesOf(l.CPU, &j), MemoryMB: l.Memory, DiskMB: l.Disk, MaxPIDs: l.PIDs,
	}})
	return err
}

// Usage implements autonomy.Sampler. Memory excludes the page cache, which can be reclaimed.
// CPU is the average since the previous call, and 0 in the first call.
func (b *ResourceLimiter) Usage(ctx context.Context, jid id.Jail) (autonomy.Limits, error) {
	st, err := b.Jails.Stats(ctx, jid)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		if errors.Is(err, fault.NotFound) {
			delete(b.last, jid)
		}
		return autonomy.Limits{}, err
	}
	now := sample{time.Now(), st.CPU}
	prev, known := b.last[jid]
	if b.last == nil {
		b.last = map[id.Jail]sample{}
	}
	b.last[jid] = now
	used := autonomy.Limits{Memory: (max(0, st.MemoryBytes-st.CacheBytes) + 1<<20 - 1) >> 20, Disk: st.DiskBytes >> 20, PIDs: st.PIDs}
	if elapsed := now.at.Sub(prev.at); known && elapsed > 0 && now.cpu > prev.cpu {
		used.CPU = int64((now.cpu - prev.cpu) * 1000 / elapsed)
	}
	return used, nil
}

// ApproveResources requests a person's approval for a change of a jail's limits. The
// requesting run is paused meanwhile. It is an autonomy.ResourceConfig.Approve.
func (sb *siblings) ApproveResources(ctx context.Context, m autonomy.Member, have, want autonomy.Limits, reason string) (allow bool, by, why string, err error) {
	subject, err := sb.subjectOf(ctx, m)
	if err != nil {
		return false, "", "", err
	}
	q := policy.Question{Subject: subject, Action: policy.ActionResources, Resource: changedLimits(have, want).String()}
	about, err := json.Marshal(map[string]string{"has": have.String(), "wants": want.String(), "why": reason})
	if err != nil {
		return false, "", "", fmt.Errorf("encode the context of the approval request: %w", err)
	}
	var v govern.Verdict
	ask := func() (err error) {
		v, err = sb.cfg.Policy.Evaluate(ctx, govern.Ask{Question: q, Context: about, AskReason: reason})
		return err
	}
	if m.Run == "" || sb.cfg.Policy.Decide(q).Effect == policy.Deny {
		err = ask()
	} else {
		r, rerr := sb.cfg.Runs.Get(ctx, m.Run)
		if rerr != nil {
			return false, "", "", rerr
		}
		err = sb.decisions.pausedForApproval(ctx, r, q, ask)
	}
	why = v.Decision.Reason
	if v.Instead != "" {
		why = "a different action was approved instead: " + v.Instead
	}
	return v.Allow && v.Instead == "", v.By, why, err
}

// changedLimits returns the limits of want that differ from have. Equal ones are 0.
func changedLimits(have, want autonomy.Limits) autonomy.Limits {
	for _, f := range []struct{ had, wants *int64 }{
		{&have.CPU, &want.CPU}, {&have.Memory, &want.Memory}, {&have.Disk, &want.Disk}, {&have.PIDs, &want.PIDs},
	} {
		if *f.had == *f.wants {
			*f.wants = 0
		}
	}
	return want
}

// AskResources requests more or fewer resources for the caller's jail.
func (sb *siblings) AskResources(ctx context.Context, c Caller, body []byte) (autonomy.Change, error) {
	if sb.services.Resources == nil || c.Jail == "" {
		return autonomy.Change{}, fault.Cannot("gateway.AskResources", "resource limits of this agent cannot be changed while it runs", "")
	}
	want, err := autonomy.ParseResources(body)
	if err != nil {
		return autonomy.Change{}, err
	}
	m := c.Member()
	m.Level = cmp.Or(m.Level, levelOf(sb.cfg.Default))
	return sb.services.Resources.Ask(ctx, m, want)
}

// LimitJail sets the limits of a jail for a person. It ends all grants to the agent.
func (sb *siblings) LimitJail(ctx context.Context, jid id.Jail, l jail.Limits, by string) (jail.Jail, error) {
	before, err := sb.cfg.Jails.Get(ctx, jid)
	if err != nil {
		return before, err
	}
	var after jail.Jail
	set := func(ctx context.Context) (from, to autonomy.Limits, err error) {
		after, err = sb.cfg.Jails.Limit(ctx, jid, jail.LimitChange{Limits: l})
		return limitsOf(before.Spec.Limits), limitsOf(after.Spec.Limits), err
	}
	if sb.services.Resources == nil {
		_, _, err = set(ctx)
		return after, err
	}
	return after, sb.services.Resources.Set(ctx, autonomy.Member{Jail: jid}, by, set)
}

// A JailResources is the resource limits of a jail and their history.
type JailResources struct {
	Now, Own jail.Limits
	Until    time.Time // when the lent resources are taken back; zero if none are lent
	History  []autonomy.Change
}

// JailLimits returns the limits of a jail, and its resource requests after a sequence number,
// oldest first.
func (sb *siblings) JailLimits(ctx context.Context, jid id.Jail, after int64) (JailResources, error) {
	j, err := sb.cfg.Jails.Get(ctx, jid)
	if err != nil {
		return JailResources{}, err
	}
	l := JailResources{Now: j.Spec.Limits, Own: j.Own()}
	if sb.services.Resources == nil {
		return l, nil
	}
	grants, err := sb.services.Resources.Granted(ctx)
	if err != nil {
		return l, fmt.Errorf("list the resource grants: %w", err)
	}
	for _, grant := range grants {
		if grant.Jail == jid {
			l.Until = grant.Until
		}
	}
	l.History, err = sb.services.Resources.History(ctx, autonomy.ChangeFilter{Jail: jid, After: after})
	if err != nil {
		return l, fmt.Errorf("read the limit changes of jail %s: %w", jid, err)
	}
	return l, nil
}
