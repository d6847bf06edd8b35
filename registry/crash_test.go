package registry_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"glasshouse/approval"
	"glasshouse/registry"
)

// A dying store is that of a daemon that is killed at one of its writes: before it, or
// when it is done and nobody has heard of it yet.
type dying struct {
	registry.Store
	after bool

	mu sync.Mutex
	// +checklocks:mu
	left int // writes until it dies
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

func (d *dying) ChangeBundle(ctx context.Context, c registry.Change) error {
	return d.write(func() error { return d.Store.ChangeBundle(ctx, c) })
}

func (d *dying) PutCapability(ctx context.Context, r registry.Record) error {
	return d.write(func() error { return d.Store.PutCapability(ctx, r) })
}

func (d *dying) DeleteCapability(ctx context.Context, cid, version string) error {
	return d.write(func() error { return d.Store.DeleteCapability(ctx, cid, version) })
}

func (d *dying) PutSkill(ctx context.Context, s registry.Skill) error {
	return d.write(func() error { return d.Store.PutSkill(ctx, s) })
}

func (d *dying) DeleteSkill(ctx context.Context, name string) error {
	return d.write(func() error { return d.Store.DeleteSkill(ctx, name) })
}

// whole fails the test unless a version of the bundle is there as it should be, or none.
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
			s.t.Errorf("%s is there, and is not called: %v", r.ID, err)
		}
	}
	if !slices.Equal(has, listed) {
		s.t.Errorf("of version %q there are %v, and it has %v", version, listed, has)
	}
	if skills := s.Skills(); len(skills) > 1 || (len(skills) == 1) != (version != "") {
		s.t.Errorf("version %q has the skills %v", version, skills)
	} else if version != "" && skills[0].Bundle != "local-places@"+version {
		s.t.Errorf("the skill of version %s is that of %s", version, skills[0].Bundle)
	}
	return version
}

// soon waits until something is so.
func (s *shop) soon(is func() bool) {
	s.t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatal("it still waits")
		}
	}
}

// What is killed at any write of an update leaves the one version whole or the other,
// and the next daemon goes on without asking anybody again.
func TestADaemonKilledDuringAnUpdateLeavesOneVersionWhole(t *testing.T) {
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
					t.Error("what was installed is gone")
				}
				s.soon(func() bool {
					if asked := s.queue.Pending(); len(asked) > 0 {
						if answered {
							t.Error("a person is asked again")
						}
						s.says(registry.Bundle{Next: &registry.Install{Approval: asked[0].ID}}, approval.Allow)
					}
					b, _ := s.find("local-places")
					return b.Next == nil || b.Next.State != registry.Pending
				})
				if version := s.whole(); answered && version != "2.0.0" {
					t.Errorf("what was allowed is not installed: %q is", version)
				}
			})
			if !d.dead() {
				break // it has lived to the end
			}
		}
	}
}
