package jail_test

import (
	"errors"
	"testing"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// limitCalls has the limits of the last backend call for the harness's only jail, and the
// record at that time.
type recordLimits struct {
	now, recorded jail.Limits
	live          bool
	calls         int
	refuse        error
}

func (h *harness) recordLimits() *recordLimits {
	b := &recordLimits{}
	h.backend.limit = func(_ jail.Plan, live bool, l jail.Limits) error {
		all, err := h.db.Jails().All(h.Context())
		if err != nil {
			return err
		}
		b.calls++
		if b.refuse != nil {
			return b.refuse
		}
		b.now, b.recorded, b.live = l, all[0].Spec.Limits, live
		return nil
	}
	return b
}

func (h *harness) limit(m *jail.Manager, j id.Jail, q jail.LimitChange) jail.Jail {
	h.Helper()
	got, err := m.Limit(h.Context(), j, q)
	if err != nil {
		h.Fatal(err)
	}
	return got
}

func TestLimitRaisesAndLowers(t *testing.T) {
	h := newHarness(t)
	b := h.recordLimits()
	m := h.manager()
	j := h.running(m)

	more := jail.DefaultLimits
	more.MemoryMB, more.MaxPIDs = 2048, 256
	if got := h.limit(m, j.ID, jail.LimitChange{Limits: jail.Limits{MemoryMB: 2048, MaxPIDs: 256}}); got.Spec.Limits != more || got.OwnLimits != nil {
		t.Errorf("recorded limits %+v, base %v; want %+v without base", got.Spec.Limits, got.OwnLimits, more)
	}
	if b.now != more || !b.live || b.recorded != more {
		t.Errorf("applied %+v, live %v, recorded %+v; want %+v, recorded before", b.now, b.live, b.recorded, more)
	}
	less := more
	less.MemoryMB = 64
	h.limit(m, j.ID, jail.LimitChange{Limits: jail.Limits{MemoryMB: 64}})
	if b.now != less || b.recorded != more {
		t.Errorf("applied %+v, recorded %+v; want %+v, recorded afterwards", b.now, b.recorded, less)
	}

	// The next daemon applies the recorded limits.
	m.Close()
	b.now = jail.Limits{}
	m = h.manager()
	if b.now != less {
		t.Errorf("limits after a restart of the daemon = %+v, want %+v", b.now, less)
	}

	// A stopped jail gets changed limits at its start.
	if _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	h.limit(m, j.ID, jail.LimitChange{Limits: jail.Limits{DiskMB: 2048}})
	if got, err := m.Start(t.Context(), j.ID); err != nil || got.Spec.Limits.DiskMB != 2048 || b.live {
		t.Errorf("limits after Start = %+v, %v, live at the change %v; want a disk of 2048 MB and not live", got.Spec.Limits, err, b.live)
	}
}

func TestInvalidLimitsAreRefused(t *testing.T) {
	h := newHarness(t)
	b := h.recordLimits()
	m := h.manager()
	j := h.running(m)
	inUse := fault.Newf(fault.Conflict, "bare", "", "300 MB are in use")
	for _, c := range []struct {
		limits jail.Limits
		by     error // error of the backend
		kind   fault.Kind
		field  string
	}{
		{jail.Limits{}, nil, fault.Invalid, "limits"},
		{jail.Limits{MemoryMB: 8193}, nil, fault.Invalid, "limits.memory_mb"},
		{jail.Limits{MaxPIDs: 8}, nil, fault.Invalid, "limits.max_pids"},
		{jail.Limits{CPUShares: -5}, nil, fault.Invalid, "limits.cpu_shares"},
		{jail.Limits{DiskMB: 512}, nil, fault.Conflict, "limits.disk_mb"},
		{jail.Limits{CPUShares: 1024, MemoryMB: 128}, inUse, fault.Conflict, ""},
	} {
		b.refuse = c.by
		_, err := m.Limit(t.Context(), j.ID, jail.LimitChange{Limits: c.limits})
		if !errors.Is(err, c.kind) || fault.FieldOf(err) != c.field {
			t.Errorf("Limit(%+v) = %v, want %s of %q", c.limits, err, c.kind, c.field)
		}
	}
	if got, err := m.Get(t.Context(), j.ID); err != nil || got.Spec.Limits != jail.DefaultLimits {
		t.Errorf("limits = %+v, %v; want the default", got.Spec.Limits, err)
	}
	if all, err := h.db.Jails().All(t.Context()); err != nil || all[0].Spec.Limits != jail.DefaultLimits {
		t.Errorf("recorded limits = %+v, %v; want the default", all[0].Spec.Limits, err)
	}
	if _, err := m.Limit(t.Context(), "j-none", jail.LimitChange{Limits: jail.Limits{MemoryMB: 64}}); !errors.Is(err, fault.NotFound) {
		t.Errorf("Limit of an unknown jail = %v, want not found", err)
	}
}

func TestTemporaryJailLimits(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	j := h.running(m)
	lent := h.limit(m, j.ID, jail.LimitChange{Limits: jail.Limits{CPUShares: 4096, MemoryMB: 4096}, Temporary: true})
	if lent.Spec.Limits.CPUShares != 4096 || lent.Own() != jail.DefaultLimits {
		t.Errorf("after lending 4096 shares: limits %+v, own %+v; want 4096 shares, default", lent.Spec.Limits, lent.Own())
	}
	lent = h.limit(m, j.ID, jail.LimitChange{Limits: jail.Limits{MemoryMB: 1024}, Temporary: true})
	if lent.Own() != jail.DefaultLimits {
		t.Errorf("after lending other limits: own %+v, want default", lent.Own())
	}
	if back := h.limit(m, j.ID, jail.LimitChange{Limits: jail.DefaultLimits, Temporary: true}); back.OwnLimits != nil || back.Spec.Limits != jail.DefaultLimits {
		t.Errorf("after the end of the lending: limits %+v, base %v; want default without base", back.Spec.Limits, back.OwnLimits)
	}
	h.limit(m, j.ID, jail.LimitChange{Limits: jail.Limits{CPUShares: 4096, MemoryMB: 4096}, Temporary: true})
	if own := h.limit(m, j.ID, jail.LimitChange{Limits: jail.Limits{MemoryMB: 1024}}); own.OwnLimits != nil || own.Own().MemoryMB != 1024 || own.Own().CPUShares != 256 {
		t.Errorf("after a permanent change: limits %+v, base %v; want them as its own", own.Spec.Limits, own.OwnLimits)
	}
}
