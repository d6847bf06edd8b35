package jail

import (
	"fmt"
	"strings"
	"time"

	"glasshouse/fault"
)

// Snapshots is the policy for automatic snapshots of a jail and their retention. The zero
// value takes none.
type Snapshots struct {
	Every  time.Duration `json:"every,omitempty"`
	Before []string      `json:"before,omitempty"` // exec:PROGRAM WORD...
	After  string        `json:"after,omitempty"`  // exec: after each command of a client
	Keep   Keep          `json:"keep,omitzero"`

	// KeepConnections is the default of RewindOptions.KeepConnections.
	KeepConnections bool `json:"keep_connections,omitempty"`
}

// Keep is the retention policy for automatic snapshots: the Last most recent snapshots, and the
// last snapshot of each of the Hourly hours and Daily days that have a snapshot.
type Keep struct {
	Last   int `json:"last,omitempty"`
	Hourly int `json:"hourly,omitempty"`
	Daily  int `json:"daily,omitempty"`
}

// AfterExec is the only valid value of Snapshots.After.
const AfterExec = "exec"

const (
	minEvery = 10 * time.Second
	maxEvery = 31 * 24 * time.Hour

	maxBefore     = 32
	maxBeforeSize = 256
	maxKeep       = 10_000
)

// defaultKeep is the retention of a policy without one.
var defaultKeep = Keep{Last: 5, Hourly: 24, Daily: 7}

// Any reports whether the policy takes snapshots.
func (s Snapshots) Any() bool { return s.Every > 0 || len(s.Before) > 0 || s.After != "" }

// check fills in defaults and returns an Invalid error that names the first invalid field.
func (s Snapshots) check(op string) (Snapshots, error) {
	if s.Every != 0 && (s.Every < minEvery || s.Every > maxEvery) {
		return s, fault.Fieldf(op, "snapshots.every", "%v is not between %v and %v", s.Every, minEvery, maxEvery)
	}
	if len(s.Before) > maxBefore {
		return s, fault.Fieldf(op, "snapshots.before", "%d commands exceed the maximum of %d", len(s.Before), maxBefore)
	}
	for i, b := range s.Before {
		what, ok := strings.CutPrefix(b, "exec:")
		if !ok || len(strings.Fields(what)) == 0 || len(b) > maxBeforeSize || strings.Contains(b, "\x00") {
			return s, fault.Fieldf(op, fmt.Sprintf("snapshots.before[%d]", i),
				"%.64q is not exec: and the words of a command, such as exec:git push, in at most %d bytes", b, maxBeforeSize)
		}
	}
	if s.After != "" && s.After != AfterExec {
		return s, fault.Fieldf(op, "snapshots.after", "%.64q is not %q", s.After, AfterExec)
	}
	for _, k := range []struct {
		field string
		n     int
	}{{"last", s.Keep.Last}, {"hourly", s.Keep.Hourly}, {"daily", s.Keep.Daily}} {
		if k.n < 0 || k.n > maxKeep {
			return s, fault.Fieldf(op, "snapshots.keep."+k.field, "%d is not between 0 and %d", k.n, maxKeep)
		}
	}
	if !s.Any() && s.Keep != (Keep{}) {
		return s, fault.Fieldf(op, "snapshots.keep", "no snapshots are taken: set every, before or after")
	}
	if s.Any() && s.Keep == (Keep{}) {
		s.Keep = defaultKeep
	}
	return s, nil
}
