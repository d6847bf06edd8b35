package protocol

import (
	"errors"
	"strings"

	"glasshouse/fault"
	"glasshouse/id"
)

// Parked is the last frame on a connection that init closes because the jail is being parked
// for a dump. As the first frame it means that the request was not started.
type Parked struct {
	Acknowledged int64 `json:"taken,omitempty"` // stdin: bytes of this connection that were written to the command
	Written      int64 `json:"given,omitempty"` // stdin: all bytes that were written to the command
}

// Err returns an error if the counts are inconsistent.
func (p Parked) Err() error {
	if p.Acknowledged < 0 || p.Written < p.Acknowledged {
		return errors.New("inconsistent counts of stdin bytes")
	}
	return nil
}

// Branched describes the branch to the init of a restored jail.
type Branched struct {
	Jail     id.Jail     `json:"jail"`
	Snapshot id.Snapshot `json:"snapshot"` // snapshot that the jail was made from
	Hostname string      `json:"hostname,omitempty"`
	Branch   int         `json:"branch"` // number among the snapshot's branches
	Seed     []byte      `json:"seed"`   // SeedSize bytes, different in each branch
}

// SeedSize is the size of a branch's seed in bytes.
const SeedSize = 32

// NotifyDir has a file for each process of the jail that wants a signal in a branch. Its name
// is the pid of the process.
const NotifyDir = "/run/glasshouse/notify"

// Check returns an error if the request is invalid.
func (b *Branched) Check() error {
	switch {
	case b == nil:
		return fault.Fieldf("init.Branched", "branched", "missing")
	case !id.Valid('j', string(b.Jail)):
		return fault.Fieldf("init.Branched", "jail", "%.40q is not the identifier of a jail", string(b.Jail))
	case !id.Valid('s', string(b.Snapshot)):
		return fault.Fieldf("init.Branched", "snapshot", "%.40q is not the identifier of a snapshot", string(b.Snapshot))
	case len(b.Seed) != SeedSize:
		return fault.Fieldf("init.Branched", "seed", "got %d bytes, want %d", len(b.Seed), SeedSize)
	case b.Branch < 0:
		return fault.Fieldf("init.Branched", "branch", "%d is negative", b.Branch)
	case len(b.Hostname) > 64:
		return fault.Fieldf("init.Branched", "hostname", "%.40q… is too long", b.Hostname)
	}
	return nil
}

// BranchedReply has the errors of hooks and signals. They do not make the branch invalid.
type BranchedReply struct {
	Problems []string `json:"problems,omitempty"`
}

// MaxProblems bounds a BranchedReply.
const MaxProblems = 32

// Err returns the problems as one error, or nil.
func (r BranchedReply) Err() error {
	if len(r.Problems) == 0 {
		return nil
	}
	problems := make([]string, min(len(r.Problems), MaxProblems))
	for i := range problems {
		problems[i] = plain(r.Problems[i])
	}
	return errors.New(strings.Join(problems, "; "))
}
