package jail

import (
	"fmt"
	"strings"
	"time"

	"glasshouse/fault"
)

// Snapshots says when snapshots of a jail are taken unasked, and which of those
// stay. The zero value takes none.
type Snapshots struct {
	Every  time.Duration `json:"every,omitempty"`
	Before []string      `json:"before,omitempty"` // exec:PROGRAM WORD...
	After  string        `json:"after,omitempty"`  // exec: each command that was asked for
	Keep   Keep          `json:"keep,omitzero"`

	// KeepConnections is what RewindOptions says if it says nothing.
	KeepConnections bool `json:"keep_connections,omitempty"`
}

// Keep says which of a jail's automatic snapshots stay: the last so many, and the
// last of each of so many hours and days in which there is one.
type Keep struct {
	Last   int `json:"last,omitempty"`
	Hourly int `json:"hourly,omitempty"`
	Daily  int `json:"daily,omitempty"`
}

// AfterExec is what Snapshots.After may say.
const AfterExec = "exec"

const (
	minEvery = 10 * time.Second
	maxEvery = 31 * 24 * time.Hour

	maxBefore     = 32
	maxBeforeSize = 256
	maxKeep       = 10_000
)

// defaultKeep is that of a policy which does not say.
var defaultKeep = Keep{Last: 5, Hourly: 24, Daily: 7}

// Any reports whether there is anything to be done.
func (s Snapshots) Any() bool { return s.Every > 0 || len(s.Before) > 0 || s.After != "" }

// check fills in defaults and returns an Invalid error that names the first field
// at fault.
func (s Snapshots) check(op string) (Snapshots, error) {
	if s.Every != 0 && (s.Every < minEvery || s.Every > maxEvery) {
		return s, fault.Fieldf(op, "snapshots.every", "%v is not between %v and %v", s.Every, minEvery, maxEvery)
	}
	if len(s.Before) > maxBefore {
		return s, fault.Fieldf(op, "snapshots.before", "%d are over the maximum of %d", len(s.Before), maxBefore)
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
		return s, fault.Fieldf(op, "snapshots.keep", "none is taken: say every, before or after")
	}
	if s.Any() && s.Keep == (Keep{}) {
		s.Keep = defaultKeep
	}
	return s, nil
}
