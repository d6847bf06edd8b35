// Package engine is what runs capabilities: one Engine for each kind of runtime,
// all under one contract. Who may call, and whether what goes in and comes out is
// as declared, the kernel has settled before, and settles after.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"glasshouse/fault"
	"glasshouse/manifest"
	"glasshouse/rtfs/form"
)

// An Engine runs capabilities of one runtime. It is safe for concurrent use.
type Engine interface {
	// Prepare does what a capability needs once, before it is called the first
	// time: it compiles, unpacks, and finds what is missing.
	Prepare(ctx context.Context, c *Installed) error

	// Call calls it once. When ctx ends, whatever the call has started is killed.
	// An error is a *Failure if the capability failed, and anything else if the
	// engine did.
	Call(ctx context.Context, call *Call) (Result, error)

	// Drop ends all sandboxes of a capability that wait for calls, and with
	// purge removes what it has kept on disk.
	Drop(ctx context.Context, c *Installed, purge bool) error

	// EndSession removes what capabilities of mode session have kept for a session
	// that has ended.
	EndSession(ctx context.Context, session string) error

	// Close kills the calls that run, and ends all sandboxes.
	Close() error
}

// An Installed is a capability where it is installed.
type Installed struct {
	*manifest.Capability
	Dir    string // that its paths are relative to
	Digest string // of manifest and files: another digest is another capability
	Trust  bool   // an operator trusts this digest to run on the host itself

	// Warning is for the caller and the audit log: why this is not the version that the
	// caller expects. Most have none.
	Warning string
}

// A Call is one call.
type Call struct {
	ID         string // "c-…"
	Capability *Installed
	Input      form.Value // of the input type, with keywords for keys

	Jail    string // who calls, if it is a jail
	Session string // whose files a capability of mode session sees
	Run     string
	Agent   string
	Key     string         // the idempotency key; empty: none
	Label   manifest.Label // of the input
	Entry   int64          // of the chain, which says that it began; 0: nothing does

	Host Host // what the capability may call in its turn; nil: nothing
}

// A Host answers calls of a capability: the kernel. It decides as if the caller of
// the capability had asked.
type Host interface {
	Call(ctx context.Context, id string, input form.Value) (form.Value, error)

	// CallJSON is Call for those who speak JSON: the kernel knows what types the
	// one who is called has declared, so it reads and writes them.
	CallJSON(ctx context.Context, id string, input json.RawMessage) (json.RawMessage, error)
}

// MayCall returns nil if the capability may call others at all: who has declared no
// effects has none through others either.
func (c *Installed) MayCall() error {
	if len(c.Effects) == 0 {
		return fault.Newf(fault.Denied, "engine.Call", c.ID, "it declares no effects, and may call nothing")
	}
	return nil
}

// A Result is what came of a call.
type Result struct {
	Output form.Value

	// Label is of the output, where that depends on what came out. It raises what the
	// manifest and the input make of it, and never lowers.
	Label manifest.Label

	Usage  Usage
	Warm   bool                     // a sandbox was there already
	Jail   string                   // the jail that served it, also when it failed; empty: none did
	Times  map[string]time.Duration // "sandbox", "forward": where the time went
	Log    string                   // what it wrote to its standard error, its end
	Replay json.RawMessage          // what it takes to run it again and compare; nil: it cannot be
}

// Usage is what a call took.
type Usage struct {
	Wall         time.Duration
	CPU          time.Duration
	MemoryPeak   int64
	NetworkOut   int64
	NetworkIn    int64
	StorageWrite int64
	Steps        int64
}

// A Kind classifies a failure.
type Kind string

const (
	Failed    Kind = "failed"    // it said so, or ended with an exit code
	TimedOut  Kind = "timeout"   // it took longer than it may
	Memory    Kind = "memory"    // it used more than it may
	Network   Kind = "network"   // it sent more than it may
	Storage   Kind = "storage"   // it wrote more than it may
	Crashed   Kind = "crashed"   // its sandbox ended
	Unstarted Kind = "unstarted" // its sandbox did not come up
	Garbled   Kind = "garbled"   // what it answered cannot be read
	Cancelled Kind = "cancelled" // the caller did not want it any more
)

// A Failure is how a capability failed. What it took until then is in Usage.
type Failure struct {
	Kind   Kind
	Reason string
	Usage  Usage
	Log    string
	Err    error
}

func (f *Failure) Error() string { return string(f.Kind) + ": " + f.Reason }
func (f *Failure) Unwrap() error { return f.Err }

// KindOf returns the kind of the failure in err's tree, or "" if the capability did
// not fail.
func KindOf(err error) Kind {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f.Kind
	}
	return ""
}
