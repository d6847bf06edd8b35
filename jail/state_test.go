package jail

import (
	"errors"
	"testing"

	"glasshouse/fault"
)

func TestStateTableIsComplete(t *testing.T) {
	for s, to := range next {
		for _, n := range to {
			if _, ok := next[n]; !ok {
				t.Errorf("%s has the successor %s, which is not in the table", s, n)
			}
		}
		if (len(to) == 0) != (s == Deleting) {
			t.Errorf("successors of %s = %v, want none only for deleting", s, to)
		}
	}
	for s := range next {
		if s.live() && s != Spare && !s.visible() {
			t.Errorf("%s is live and not visible", s)
		}
	}
}

func TestMoveRejectsIllegalTransition(t *testing.T) {
	j := &Jail{ID: "j-1", State: Stopped}
	if err := j.move(Paused, "jail.Pause"); !errors.Is(err, fault.Conflict) || j.State != Stopped {
		t.Errorf("stopped to paused = %v, state %s; want a conflict and no change", err, j.State)
	}
	if err := j.move(Starting, "jail.Start"); err != nil || j.State != Starting {
		t.Errorf("stopped to starting = %v, state %s; want nil and starting", err, j.State)
	}
}

func TestMadeByDaemon(t *testing.T) {
	s := Spec{Workspace: &Workspace{Target: "/home/u/proj"}, Mounts: []Mount{{Target: "/data"}}}
	for _, c := range []struct {
		change Change
		want   bool
	}{
		{Change{Path: "/home/u", Kind: "added", Type: "dir"}, true},
		{Change{Path: "/home/u/proj", Kind: "added", Type: "dir"}, true},
		{Change{Path: "/data", Kind: "added", Type: "dir"}, true},
		{Change{Path: "/home/u/other", Kind: "added", Type: "dir"}, false},
		{Change{Path: "/home/u/pro", Kind: "added", Type: "dir"}, false},
		{Change{Path: "/home", Kind: "deleted", Type: "dir"}, false},
		{Change{Path: "/data", Kind: "added", Type: "file"}, false},
		{Change{Path: "/run/glasshouse", Kind: "added", Type: "dir"}, true},
		{Change{Path: "/run/glasshouse/branch.json", Kind: "modified", Type: "file", Size: 200}, true},
		{Change{Path: "/run/glasshouse/branch.json", Kind: "modified", Type: "file", Size: 2000}, false},
		{Change{Path: "/run/glasshouse/hidden", Kind: "added", Type: "file"}, false},
	} {
		if got := s.madeByDaemon(c.change, "added"); got != c.want {
			t.Errorf("madePlace(%+v) = %v, want %v", c.change, got, c.want)
		}
	}
}
