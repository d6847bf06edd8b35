package jail_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/jail"
)

func TestSnapshotPolicyValidation(t *testing.T) {
	m := jail.NewManager(jail.Config{Backend: "oci", Runtime: "runc"})
	good := jail.Snapshots{Every: time.Minute, Before: []string{"exec:git push"}, After: jail.AfterExec}
	s, err := m.Check(jail.Spec{Snapshots: good})
	if err != nil {
		t.Fatal(err)
	}
	if want := (jail.Keep{Last: 5, Hourly: 24, Daily: 7}); s.Snapshots.Keep != want {
		t.Errorf("default Keep = %+v, want %+v", s.Snapshots.Keep, want)
	}
	if s, err := m.Check(jail.Spec{}); err != nil || s.Snapshots.Any() || s.Snapshots.Keep != (jail.Keep{}) {
		t.Errorf("Check without a policy = %+v, %v; want the zero value", s.Snapshots, err)
	}
	for _, c := range []struct {
		p     jail.Snapshots
		field string
	}{
		{jail.Snapshots{Every: time.Second}, "snapshots.every"},
		{jail.Snapshots{Every: -time.Minute}, "snapshots.every"},
		{jail.Snapshots{Every: 1000 * time.Hour}, "snapshots.every"},
		{jail.Snapshots{Before: []string{"exec:git push", "git push"}}, "snapshots.before[1]"},
		{jail.Snapshots{Before: []string{"exec: "}}, "snapshots.before[0]"},
		{jail.Snapshots{Before: []string{"exec:" + strings.Repeat("x", 300)}}, "snapshots.before[0]"},
		{jail.Snapshots{Before: make([]string, 100)}, "snapshots.before"},
		{jail.Snapshots{After: "lunch"}, "snapshots.after"},
		{jail.Snapshots{Keep: jail.Keep{Last: 3}}, "snapshots.keep"},
		{jail.Snapshots{Every: time.Minute, Keep: jail.Keep{Daily: -1}}, "snapshots.keep.daily"},
		{jail.Snapshots{Every: time.Minute, Keep: jail.Keep{Hourly: 1 << 20}}, "snapshots.keep.hourly"},
	} {
		_, err := m.Check(jail.Spec{Snapshots: c.p})
		var e *fault.Error
		if !errors.Is(err, fault.Invalid) || !errors.As(err, &e) || e.Field != c.field {
			t.Errorf("Check(%+v) = %v, want invalid %s", c.p, err, c.field)
		}
	}
}

func TestRestacked(t *testing.T) {
	for _, c := range []struct {
		layers, from, to, want string
		ok                     bool
	}{
		{"a b c", "b c", "x", "a x", true},
		{"a b c", "a b c", "x", "x", true},
		{"a b c", "a b", "x", "a b c", false},
		{"b c", "a b c", "x", "b c", false},
		{"a b", "", "x", "a b", false},
		{"", "", "x", "", false},
	} {
		layers := strings.Fields(c.layers)
		got, ok := jail.ReplaceLayerSuffix(layers, strings.Fields(c.from), strings.Fields(c.to))
		if strings.Join(got, " ") != c.want || ok != c.ok || strings.Join(layers, " ") != c.layers {
			t.Errorf("Restacked(%q, to %q, from %q) = %q, %v; want %q, %v", c.layers, c.to, c.from, got, ok, c.want, c.ok)
		}
	}
}
