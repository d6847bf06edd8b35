package autonomy

import (
	"fmt"
	"slices"
	"time"

	"glasshouse/id"
	"glasshouse/policy"
)

// A Grant holds the resources lent to a jail.
type Grant struct {
	Jail  id.Jail `json:"jail"`
	Group string  `json:"group,omitempty"`
	Host  string  `json:"host,omitempty"` // host of the jail

	Base    Limits    `json:"base"` // limits before the first request, to which the jail returns
	Held    Limits    `json:"held"` // current limits
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until"`             // end of the lease
	Applied bool      `json:"applied,omitempty"` // Held was recorded and is in force
}

// A Verdict is the outcome of a resource request.
type Verdict string

const (
	Applied     Verdict = "applied"
	Denied      Verdict = "refused"
	ApplyFailed Verdict = "failed" // allowed, but applying the limits failed
)

// A Change is an entry in the history of a jail's limits.
type Change struct {
	N       int64     `json:"n"`
	Jail    id.Jail   `json:"jail"`
	Group   string    `json:"group,omitempty"`
	At      time.Time `json:"at"`
	Verdict Verdict   `json:"verdict"`
	Why     string    `json:"why"`
	By      string    `json:"by,omitempty"`   // the approver
	Want    Limits    `json:"want,omitzero"`  // requested limits
	From    Limits    `json:"from"`           // limits before
	To      Limits    `json:"to"`             // limits after
	Until   time.Time `json:"until,omitzero"` // end of the lease
	Refusal *Refusal  `json:"refusal,omitempty"`
	Entry   int64     `json:"entry,omitempty"` // audit log entry
}

// Ceilings limit grants.
type Ceilings struct {
	WithoutApproval Limits // maximum for a jail without approval
	Capacity        Limits // capacity of the host; never exceeded
	Host            Limits // maximum lent to all jails of this host together
	Group           Limits // maximum lent to all jails of a group
}

// An assessment is the result of assess.
type assessment struct {
	lower    bool // the request only returns resources
	approval bool // approval is required
	reason   string
	refusal  *Refusal
}

// assess checks a request want of a jail with current limits held and initial limits base.
func (c Ceilings) assess(level policy.Level, base, held, want Limits) assessment {
	target := held.override(want)
	if target.excess(c.Capacity) != (Limits{}) {
		return assessment{refusal: &Refusal{Code: "capacity", Reason: fmt.Sprintf("this host has %s, and the request is for %s", c.Capacity, want), Remedy: "request less"}}
	}
	if target.excess(held) == (Limits{}) && target != held {
		return assessment{lower: true}
	}
	top, known := c.WithoutApproval, true
	switch level {
	case policy.Full:
	case policy.Intelligent:
		half := combine(base, Limits{}, func(n, _ int64) int64 { return n + n/2 })
		top = combine(half, c.WithoutApproval, func(a, b int64) int64 { return min(a, b) })
	default:
		top, known = base, false
	}
	// Only requested fields are checked, against the initial limits: a request for the current
	// amount renews it.
	asked := combine(want, target, func(w, t int64) int64 {
		if w == 0 {
			return 0
		}
		return t
	})
	over := asked.excess(combine(top, base, func(a, b int64) int64 { return max(a, b) }))
	switch {
	case over == (Limits{}):
		return assessment{}
	case !known:
		return assessment{approval: true, reason: fmt.Sprintf("%s requires approval at this autonomy level", level)}
	}
	return assessment{approval: true, reason: fmt.Sprintf("%s exceeds %s, the maximum without approval at level %s", want, top, level)}
}

// checkPools refuses a grant that exceeds a pool. live are all current grants; g replaces the
// one of its jail.
func (c Ceilings) checkPools(live []Grant, g Grant, now time.Time) *Refusal {
	var host, group Limits
	first := g.Until
	others := slices.DeleteFunc(slices.Clone(live), func(o Grant) bool { return o.Jail == g.Jail })
	for _, o := range append(others, g) {
		more := o.Held.excess(o.Base)
		if o.Host == g.Host {
			host = host.plus(more)
		}
		if o.Group == g.Group && g.Group != "" {
			group = group.plus(more)
		}
		if o.Until.Before(first) {
			first = o.Until
		}
	}
	pool := ""
	switch {
	case g.Held.excess(g.Base) == (Limits{}):
		return nil
	case host.excess(c.Host) != (Limits{}):
		pool = "host"
	case group.excess(c.Group) != (Limits{}):
		pool = "group"
	default:
		return nil
	}
	return &Refusal{Code: "pool", Reason: "the resource pool of this " + pool + " is exhausted",
		Remedy: "ask again later, or request less", RetryAfter: max(first.Sub(now), 10*time.Second)}
}

// StepDown returns the limits to which a grant is reduced now, and the reason; g.Held and ""
// if it is not reduced. used is the current usage, and busy the last time at which usage
// exceeded g.Base.
//
// Memory and processes in use are not taken away, since that would kill processes. They are
// reduced once they are free. Disks never shrink.
func StepDown(g Grant, used Limits, busy, now time.Time, idle time.Duration) (to Limits, why string) {
	switch {
	case !now.Before(g.Until):
		why = "the lease is over"
	case now.Sub(busy) >= idle:
		why = "it was not needed"
	default:
		return g.Held, ""
	}
	floor := Limits{CPU: g.Base.CPU, Memory: max(g.Base.Memory, used.Memory+used.Memory/8), Disk: g.Held.Disk, PIDs: max(g.Base.PIDs, used.PIDs+used.PIDs/8)}
	to = combine(g.Held, floor, func(held, floor int64) int64 { return min(held, floor) })
	if to == g.Held {
		return g.Held, ""
	}
	return to, why
}

// exceedsBase reports whether usage exceeds the initial limits.
func (g Grant) exceedsBase(used Limits) bool {
	used.Disk = 0 // disks are not returned
	return used.excess(g.Base) != (Limits{})
}
