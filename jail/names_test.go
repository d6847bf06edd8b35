package jail_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"glasshouse/fault"
	"glasshouse/jail"
)

func TestNamesOfJailsAreUnique(t *testing.T) {
	for _, size := range []int{0, 2} { // without and with a warm pool
		h := newHarness(t)
		h.pool.Size = size
		h.configure = func(cfg *jail.Config) { cfg.Rootfs = someRootfs{cfg.Rootfs} }
		m := h.manager()
		create := func(name string) (jail.Jail, error) { return m.Create(t.Context(), jail.Spec{Name: name}) }
		first, err := create("web")
		if err != nil {
			t.Fatal(err)
		}
		_, err = create("web")
		if !errors.Is(err, fault.Conflict) || fault.FieldOf(err) != "name" || !strings.Contains(fault.RemedyOf(err), "jail rm "+string(first.ID)) {
			t.Errorf("the second jail with a name: %v, remedy %q; want a conflict about the first", err, fault.RemedyOf(err))
		}
		for range 2 {
			if _, err := create(""); err != nil {
				t.Errorf("a jail without a name: %v", err)
			}
		}

		// Of simultaneous requests one succeeds.
		const n = 8
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { _, errs[i] = create("race") })
		}
		wg.Wait()
		created := 0
		for _, err := range errs {
			switch {
			case err == nil:
				created++
			case !errors.Is(err, fault.Conflict):
				t.Errorf("create simultaneously: %v, want a conflict", err)
			}
		}
		if created != 1 {
			t.Errorf("%d of %d simultaneous requests created a jail, want 1", created, n)
		}

		// The name of a removed jail, and of one that could not be created, is free.
		if err := m.Delete(t.Context(), first.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Create(t.Context(), jail.Spec{Name: "web", Rootfs: jail.Rootfs{Dir: "/missing"}}); !errors.Is(err, fault.NotFound) {
			t.Errorf("a jail with a missing root filesystem: %v, want not found", err)
		}
		if _, err := create("web"); err != nil {
			t.Errorf("the name is free again: %v", err)
		}
	}
}

// someRootfs is a provider without the root filesystem /missing.
type someRootfs struct{ jail.RootfsProvider }

func (s someRootfs) Resolve(ctx context.Context, r jail.Rootfs) (jail.Layers, error) {
	if r.Dir == "/missing" {
		return jail.Layers{}, fault.Newf(fault.NotFound, "test", r.Dir, "no such directory")
	}
	return s.RootfsProvider.Resolve(ctx, r)
}

func TestNamesOfJailsAreUniqueAfterRestart(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	if _, err := m.Create(t.Context(), jail.Spec{Name: "web"}); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	m = h.manager()
	if _, err := m.Create(t.Context(), jail.Spec{Name: "web"}); !errors.Is(err, fault.Conflict) {
		t.Errorf("create with a name of before the restart: %v, want a conflict", err)
	}
}
