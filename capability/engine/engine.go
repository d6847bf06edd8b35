// Package engine defines the contract of the engines that run capabilities. There is one
// Engine for each kind of runtime.
//
// An Engine does not authorise calls and does not check types. The policy engine authorises
// a call and checks its input before Engine.Call, and checks the output afterwards.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
)

// An Engine runs capabilities of one runtime. It is safe for concurrent use.
type Engine interface {
	// Prepare does the work that is needed once before the first call of a capability,
	// such as compiling or unpacking. It returns an error if the capability cannot run
	// on this host.
	Prepare(ctx context.Context, c *Installed) error

	// Call calls a capability once. When ctx ends, all processes that the call has
	// started are killed. The error is a *Failure if the capability failed, and of
	// another type if the engine failed.
	Call(ctx context.Context, call *Call) (Result, error)

	// Drop ends the idle sandboxes of a capability. With purge, it also removes the
	// files of the capability.
	Drop(ctx context.Context, c *Installed, purge bool) error

	// EndSession removes the files that capabilities of mode session have stored for a
	// session that has ended.
	EndSession(ctx context.Context, session string) error

	// Close kills the running calls and ends all sandboxes.
	Close() error
}

// An Installed is an installed capability.
type Installed struct {
	*manifest.Capability
	Dir    string // the directory to which its paths are relative
	Digest string // digest of the manifest and the files; identifies the version
	Trust  bool   // an operator trusts this digest to run on the host itself

	// Warning explains to the caller and in the audit log why this is not the version
	// that the caller expects. It is usually empty.
	Warning string
}

// A Call is one call of a capability.
type Call struct {
	ID         string // "c-…"
	Capability *Installed
	Input      form.Value // value of the input type, with keywords as keys

	Jail    string // the calling jail; empty: the caller is not a jail
	Session string // the session whose files a capability of mode session sees
	Run     string
	Agent   string
	Key     string         // the idempotency key; empty: none
	Label   manifest.Label // label of the input
	Entry   int64          // number of the audit log entry that records the start of the call; 0: none

	Host Host // executes nested calls of the capability; nil: nested calls are not supported
}

// A Host executes the nested calls of a capability. It is implemented by the policy
// engine, which authorises a nested call as if the caller of the capability had made it.
type Host interface {
	Call(ctx context.Context, id string, input form.Value) (form.Value, error)

	// CallJSON is like Call for engines that exchange JSON. The Host decodes the input
	// and encodes the output with the declared types of the called capability.
	CallJSON(ctx context.Context, id string, input json.RawMessage) (json.RawMessage, error)
}

// MayCall returns an error if the capability must not call other capabilities: one that
// declares no effects must not cause effects through nested calls.
func (c *Installed) MayCall() error {
	if len(c.Effects) == 0 {
		return fault.Newf(fault.Denied, "engine.Call", c.ID, "the capability declares no effects and cannot call other capabilities")
	}
	return nil
}

// A Result is the result of a call.
type Result struct {
	Output form.Value

	// Label is the data class of the output, if it depends on the output. It can raise the
	// class that follows from the manifest and the input, and never lowers it.
	Label manifest.Label

	Usage Usage
	Warm  bool // the call used an existing sandbox

	// Isolation is the program that isolates the sandbox of the call: runc, crun, runsc (gVisor), microvm or
	// bwrap. "": the call has none.
	Isolation string

	Jail   string                   // the jail that served the call, even if the call failed; empty: none
	Times  map[string]time.Duration // time spent on "sandbox" and "forward"
	Log    string                   // the end of its standard error
	Replay json.RawMessage          // the record for a replay; nil: a replay is not possible
}

// Usage is the resource usage of a call.
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
	Failed    Kind = "failed"    // the program reported a failure or exited with a nonzero code
	TimedOut  Kind = "timeout"   // it exceeded its time limit
	Memory    Kind = "memory"    // it exceeded its memory limit
	Network   Kind = "network"   // it exceeded its network limit
	Storage   Kind = "storage"   // it exceeded its disk quota
	Crashed   Kind = "crashed"   // its program or its sandbox ended during the call
	Unstarted Kind = "unstarted" // its program or its sandbox did not start
	Garbled   Kind = "garbled"   // its output cannot be decoded
	Cancelled Kind = "cancelled" // the caller cancelled the call
)

// A Failure is the error of a capability that failed. Usage is its usage until the failure.
type Failure struct {
	Kind   Kind
	Reason string
	Usage  Usage
	Log    string
	Err    error
}

func (f *Failure) Error() string { return string(f.Kind) + ": " + f.Reason }
func (f *Failure) Unwrap() error { return f.Err }

// KindOf returns the kind of the Failure in err's tree, or "" if there is no Failure.
func KindOf(err error) Kind {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f.Kind
	}
	return ""
}
