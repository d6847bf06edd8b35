package store_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/e2b"
	"glasshouse/fault"
)

// checker returns a function that fails the test on an error.
func checker(t *testing.T) func(error) {
	return func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
}

func sandboxesComeBack(t *testing.T, where string) {
	check := checker(t)
	no, end := false, time.Date(2026, 11, 1, 2, 3, 4, 567_000_000, time.UTC)
	a := e2b.Sandbox{
		ID: "ia", Team: "t-1", Jail: "j-1", State: e2b.Running, Template: "base", Alias: "base",
		Metadata: map[string]string{"ünï": "a\x00b", "quote": `"'`}, Env: map[string]string{"A": "1"}, Dir: "/w", User: "user",
		Volumes: []e2b.VolumeMount{{Name: "v", Path: "/v", ID: "volx"}}, CPU: 2, MemoryMB: 1024, DiskMB: 4096,
		Started: end.Add(-time.Minute), End: end, Timeout: time.Minute, AutoPause: true, AutoResume: true, Internet: &no,
		Network: e2b.Network{AllowOut: []string{"a.example"}, DenyOut: []string{"0.0.0.0/0"}, Rules: map[string][]e2b.Rule{"a.example": {{Transform: &e2b.Transform{Headers: map[string]string{"X": "y"}}}}}},
		Token:   "secret", Traffic: "pass", Image: "s-1",
	}
	b := e2b.Sandbox{ID: "ib", Team: "t-2", State: e2b.Creating}
	s := open(t, where)
	for _, box := range []e2b.Sandbox{b, a, a} { // storing it twice has no effect
		check(s.Sandboxes().Put(t.Context(), box))
	}
	b.State = e2b.Paused
	check(s.Sandboxes().Put(t.Context(), b))
	s = open(t, where)
	got, err := s.Sandboxes().All(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]e2b.Sandbox{a, b}, got); diff != "" {
		t.Error(diff)
	}
	check(s.Sandboxes().Delete(t.Context(), "ia"))
	check(s.Sandboxes().Delete(t.Context(), "ia"))
	if got, err := s.Sandboxes().All(t.Context()); err != nil || len(got) != 1 || got[0].ID != "ib" {
		t.Errorf("left: %v, %v", got, err)
	}
	// Concurrent writes, as from many clients.
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			box := b
			for _, box.State = range []e2b.State{e2b.Creating, e2b.Running, e2b.Pausing, e2b.Paused} {
				box.ID = fmt.Sprintf("i%02d", i)
				if err := s.Sandboxes().Put(t.Context(), box); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got, err = s.Sandboxes().All(t.Context())
	if err != nil || len(got) != 21 || slices.ContainsFunc(got, func(b e2b.Sandbox) bool { return b.State != e2b.Paused }) {
		t.Errorf("%d of 21, %v", len(got), err)
	}
}

func volumesComeBack(t *testing.T, where string) {
	check := checker(t)
	v := e2b.Volume{ID: "vola", Team: "t-1", Name: "data", Token: "secret", SizeMB: 64, Created: time.Date(2026, 11, 1, 2, 3, 4, 0, time.UTC)}
	other := v
	other.ID, other.Team = "volb", "t-2" // another volume of the same name
	s := open(t, where)
	check(s.Volumes().Add(t.Context(), v))
	check(s.Volumes().Add(t.Context(), other))
	twice := v
	twice.ID = "volc"
	if err := s.Volumes().Add(t.Context(), twice); !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "data") {
		t.Errorf("a duplicate name: %v, want conflict", err)
	}
	got, err := open(t, where).Volumes().All(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]e2b.Volume{v, other}, got); diff != "" {
		t.Error(diff)
	}
	check(s.Volumes().Delete(t.Context(), v.ID))
	check(s.Volumes().Delete(t.Context(), v.ID))
	check(s.Volumes().Add(t.Context(), twice))
}
