package jail

import (
	"context"
	"fmt"

	"glasshouse/fault"
	"glasshouse/id"
)

// A Demand is what jails may use of a host according to their limits.
type Demand struct {
	Jails  int
	Memory int64 // bytes
	Disk   int64 // bytes
}

// Plus returns the sum of two demands.
func (d Demand) Plus(e Demand) Demand {
	return Demand{d.Jails + e.Jails, d.Memory + e.Memory, d.Disk + e.Disk}
}

// within reports whether no value of d exceeds that of e.
func (d Demand) within(e Demand) bool {
	return d.Jails <= e.Jails && d.Memory <= e.Memory && d.Disk <= e.Disk
}

// Quotas limits the demand of the jails that were created with a token, on all daemons that
// accept it.
type Quotas interface {
	// Share calls claim with the quota of a token, in which 0 is no limit, and with the demand of its
	// jails on other daemons. claim returns the demand on this one, which the others then see. Calls
	// for one token are serialized across the daemons if the token has a quota. Share returns
	// claim's error.
	Share(ctx context.Context, token id.Token, claim func(quota, others Demand) (own Demand, err error)) error
}

// demand returns what a jail demands. A jail that does not run keeps its disk and its place, but has
// no memory. Spares belong to the daemon.
func (j *Jail) demand() Demand {
	if j.State == Spare {
		return Demand{}
	}
	d := Demand{Jails: 1, Memory: j.Spec.Limits.MemoryMB << 20, Disk: j.Spec.Limits.DiskMB << 20}
	if j.State == Stopped || j.State == Failed {
		d.Memory = 0
	}
	return d
}

// A reservation is the demand of a jail during an operation that raises it. It counts in place of the
// jail's own.
type reservation struct {
	rg      *registry
	creator id.Token
	demand  Demand
	entry   *entry // nil: the jail has none yet. guarded by registry.mu
}

// reserve reserves the demand of a new jail, or returns fault.Exhausted if it exceeds the quota of
// the jail's creator. Without a creator the reservation is nil, which has no effect.
func (rg *registry) reserve(ctx context.Context, op string, s Spec) (*reservation, error) {
	j := Jail{Spec: s, State: Creating}
	return rg.share(ctx, op, nil, s.Creator, j.demand(), true)
}

// reserveChange reserves what a jail demands after it was changed to next, if that is more than
// before.
func (rg *registry) reserveChange(ctx context.Context, op string, e *entry, next Jail) (*reservation, error) {
	was := e.jail.Load()
	if next.demand().within(was.demand()) {
		return nil, nil
	}
	return rg.share(ctx, op, e, was.Spec.Creator, next.demand(), true)
}

// share makes a reservation, within the quota if limited is set.
func (rg *registry) share(ctx context.Context, op string, e *entry, creator id.Token, d Demand, limited bool) (*reservation, error) {
	if rg.cfg.Quotas == nil || creator == "" {
		return nil, nil
	}
	r := &reservation{rg: rg, creator: creator, demand: d, entry: e}
	err := rg.cfg.Quotas.Share(ctx, creator, func(quota, others Demand) (Demand, error) {
		rg.mu.Lock()
		defer rg.mu.Unlock()
		had := rg.demandOf(creator)
		rg.reservations[r] = true
		own := rg.demandOf(creator)
		if limited {
			return own, checkQuota(op, creator, quota, had.Plus(others), own.Plus(others))
		}
		return own, nil
	})
	if err != nil {
		r.release()
		return nil, err
	}
	return r, nil
}

// attach makes the reservation count in place of the demand of a jail.
func (r *reservation) attach(e *entry) {
	if r == nil {
		return
	}
	r.rg.mu.Lock()
	defer r.rg.mu.Unlock()
	r.entry = e
}

// release ends the reservation. Then the jail's own demand counts, if the jail exists.
func (r *reservation) release() {
	if r == nil {
		return
	}
	r.rg.mu.Lock()
	defer r.rg.mu.Unlock()
	delete(r.rg.reservations, r)
}

// eachDemand calls do with the demand of each jail that was created with a token.
//
// +checklocks:rg.mu
func (rg *registry) eachDemand(do func(creator id.Token, d Demand)) {
	reserved := map[*entry]bool{}
	for r := range rg.reservations {
		do(r.creator, r.demand)
		reserved[r.entry] = true
	}
	for _, e := range rg.entries {
		if j := e.jail.Load(); j.Spec.Creator != "" && !reserved[e] {
			do(j.Spec.Creator, j.demand())
		}
	}
}

// demandOf returns the demand of the jails that were created with a token.
//
// +checklocks:rg.mu
func (rg *registry) demandOf(token id.Token) (sum Demand) {
	rg.eachDemand(func(creator id.Token, d Demand) {
		if creator == token {
			sum = sum.Plus(d)
		}
	})
	return sum
}

// Demand returns the demand of the jails that were created with a token.
func (rg *registry) Demand(token id.Token) Demand {
	rg.mu.Lock()
	defer rg.mu.Unlock()
	return rg.demandOf(token)
}

// Demands returns the demand of the jails of each token.
func (rg *registry) Demands() map[id.Token]Demand {
	rg.mu.Lock()
	defer rg.mu.Unlock()
	all := map[id.Token]Demand{}
	rg.eachDemand(func(creator id.Token, d Demand) { all[creator] = all[creator].Plus(d) })
	return all
}

// checkQuota returns fault.Exhausted if a demand that grows from had to want exceeds a quota.
// A value that does not grow is never refused, because the quota may have been lowered below it.
func checkQuota(op string, token id.Token, quota, had, want Demand) error {
	for _, l := range []struct {
		name             string
		unit             int64
		quota, had, want int64
	}{
		{"jails", 1, int64(quota.Jails), int64(had.Jails), int64(want.Jails)},
		{"memory (MiB)", 1 << 20, quota.Memory, had.Memory, want.Memory},
		{"disk (MiB)", 1 << 20, quota.Disk, had.Disk, want.Disk},
	} {
		if l.quota > 0 && l.want > l.quota && l.want > l.had {
			return &fault.Error{Op: op, On: string(token), Kind: fault.Exhausted,
				Err: fmt.Errorf("the quota of the token for %s is %d: %d are used, and %d more are requested",
					l.name, l.quota/l.unit, l.had/l.unit, (l.want-l.had)/l.unit),
				Remedy: "delete or stop jails that were created with the token, lower the limits of the new jail, or raise the quota with glasshouse token quota"}
		}
	}
	return nil
}
