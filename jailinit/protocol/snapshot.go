package protocol

import (
	"errors"
	"strings"

	"glasshouse/fault"
	"glasshouse/id"
)

// Parked is the last that init says on a connection that it gives up so that
// the jail can be dumped. If nothing came before it, the request was not begun.
type Parked struct {
	Taken int64 `json:"taken,omitempty"` // stdin: of this connection's bytes, those the command was given
	Given int64 `json:"given,omitempty"` // stdin: all that the command was ever given
}

// Err says that what a Parked frame holds cannot be.
func (p Parked) Err() error {
	if p.Taken < 0 || p.Given < p.Taken {
		return errors.New("counts of stdin that cannot be")
	}
	return nil
}

// Branched tells the init of a restored jail what the jail is a branch of.
type Branched struct {
	Jail     id.Jail     `json:"jail"`
	Snapshot id.Snapshot `json:"snapshot"` // what the jail was made of
	Hostname string      `json:"hostname,omitempty"`
	Branch   int         `json:"branch"` // which of the snapshot's branches it is
	Seed     []byte      `json:"seed"`   // SeedSize bytes that no other branch has
}

// SeedSize is the bytes of a branch's seed.
const SeedSize = 32

// NotifyDir has a file for each process of the jail that wants a signal in a branch,
// named after its process id.
const NotifyDir = "/run/glasshouse/notify"

// Check refuses what no daemon of ours would send.
func (b *Branched) Check() error {
	switch {
	case b == nil:
		return fault.Fieldf("init.Branched", "branched", "missing")
	case !id.Valid('j', string(b.Jail)):
		return fault.Fieldf("init.Branched", "jail", "%.40q is not the identifier of a jail", string(b.Jail))
	case !id.Valid('s', string(b.Snapshot)):
		return fault.Fieldf("init.Branched", "snapshot", "%.40q is not the identifier of a snapshot", string(b.Snapshot))
	case len(b.Seed) != SeedSize:
		return fault.Fieldf("init.Branched", "seed", "%d bytes instead of %d", len(b.Seed), SeedSize)
	case b.Branch < 0:
		return fault.Fieldf("init.Branched", "branch", "%d is negative", b.Branch)
	case len(b.Hostname) > 64:
		return fault.Fieldf("init.Branched", "hostname", "%.40q… is too long", b.Hostname)
	}
	return nil
}

// BranchedReply is what went wrong with hooks and signals. The jail is a branch all
// the same.
type BranchedReply struct {
	Problems []string `json:"problems,omitempty"`
}

// MaxProblems bounds a BranchedReply.
const MaxProblems = 32

// Err is the problems as one error, or nil.
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
