package registry_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/capability/registry"
	"glasshouse/policy/approval"
)

// A dying store simulates a daemon that is killed at one of its writes, before the write or
// after it but before its result was seen.
type dying struct {
	registry.Store
	after bool

	mu sync.Mutex
	// +checklocks:mu
	left int // remaining writes
}

var errKilled = errors.New("killed")

func (d *dying) write(do func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left--; d.left < 0 {
		return errKilled
	}
	if d.left == 0 && !d.after {
		return errKilled
	}
	if err := do(); err != nil || d.left > 0 {
		return err
	}
	return errKilled
}

func (d *dying) dead() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.left <= 0
}

func (d *dying) Change(ctx context.Context, version int64, c registry.Change) error {
	return d.write(func() error { return d.Store.Change(ctx, version, c) })
}

// whole fails the test unless one version of the bundle is completely installed, or none.
func (s *shop) whole() string {
	s.t.Helper()
	version := ""
	var has []string
	for _, b := range s.Bundles() {
		if b.Now != nil {
			version, has = b.Now.Version, b.Capabilities
		}
	}
	var listed []string
	for _, r := range s.List() {
		listed = append(listed, r.ID+"@"+r.Version)
		if _, err := s.Resolve(r.ID + "@" + r.Version); err != nil {
			s.t.Errorf("%s is registered but not callable: %v", r.ID, err)
		}
	}
	if !slices.Equal(has, listed) {
		s.t.Errorf("version %q has the capabilities %v, want %v", version, listed, has)
	}
	if skills := s.Skills(); len(skills) > 1 || (len(skills) == 1) != (version != "") {
		s.t.Errorf("version %q has the skills %v", version, skills)
	} else if version != "" && skills[0].Bundle != "local-places@"+version {
		s.t.Errorf("the skill of version %s belongs to %s", version, skills[0].Bundle)
	}
	return version
}

// soon waits until a condition holds.
func (s *shop) soon(is func() bool) {
	s.t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatal("the condition does not hold after the timeout")
		}
	}
}

// A daemon that is killed at any write of an update leaves either the old or the new version
// completely installed, and the next daemon continues without a new approval.
func TestCrashDuringUpdateLeavesOneCompleteVersion(t *testing.T) {
	for _, after := range []bool{false, true} {
		for writes := 1; ; writes++ {
			var d *dying
			t.Run(fmt.Sprintf("write %d, done %t", writes, after), func(t *testing.T) {
				s := newShop(t)
				p := newPress(s)
				s.says(s.install(p.places("1.0.0", "places.search", "a.example.com")), approval.Allow)
				s.installed("local-places")
				s.close()

				d = &dying{left: writes, after: after}
				s.openOn(func(real registry.Store) registry.Store { d.Store = real; return d })
				b, err := s.Install(t.Context(), p.places("2.0.0", "places.find", "b.example.com"), "anna")
				answered := err == nil
				if answered {
					s.says(b, approval.Allow)
					s.soon(func() bool { b, _ := s.find("local-places"); return d.dead() || b.Now.Version == "2.0.0" })
				}
				s.close()

				s.open()
				if s.whole() == "" {
					t.Error("the installed version is lost")
				}
				s.soon(func() bool {
					if asked := s.queue.Pending(); len(asked) > 0 {
						if answered {
							t.Error("the approval was requested again")
						}
						s.says(registry.Bundle{Next: &registry.Install{Approval: asked[0].ID}}, approval.Allow)
					}
					b, _ := s.find("local-places")
					return b.Next == nil || b.Next.State != registry.Pending
				})
				if version := s.whole(); answered && version != "2.0.0" {
					t.Errorf("the approved version is not installed: %q is", version)
				}
			})
			if !d.dead() {
				break // it survived until the end
			}
		}
	}
}

// A forgetful store reports its next change as failed, after it was stored.
type forgetful struct {
	registry.Store
	fail bool
}

func (f *forgetful) Change(ctx context.Context, version int64, c registry.Change) error {
	err := f.Store.Change(ctx, version, c)
	if f.fail && err == nil {
		f.fail = false
		err = errKilled
	}
	return err
}

func TestChangeAfterAFailedOneThatWasStored(t *testing.T) {
	s := newShop(t)
	s.close()
	f := &forgetful{fail: true}
	s.openOn(func(real registry.Store) registry.Store { f.Store = real; return f })
	if _, err := s.Register(t.Context(), registry.Request{File: "m.rtfs", Text: []byte(double)}); !errors.Is(err, errKilled) {
		t.Fatalf("Register = %v, want the error of the store", err)
	}
	s.register(strings.Replace(double, "math.double", "math.other", 1))
	if n := len(s.List()); n != 2 {
		t.Errorf("%d capabilities, want the two that were stored", n)
	}
}
