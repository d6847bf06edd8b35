// Package manifest parses and checks the manifests of capabilities: input and output types,
// runtime, effects, resources and required approval. An unknown key is an error.
package manifest

import (
	"time"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
)

// A Runtime is the execution environment of a capability.
type Runtime string

const (
	RTFS      Runtime = "rtfs"      // in this process, without side effects
	WASM      Runtime = "wasm"      // a WASI preview 1 module
	Container Runtime = "container" // a jail with the host's kernel
	GVisor    Runtime = "gvisor"    // a jail with gVisor's kernel
	MicroVM   Runtime = "microvm"   // a virtual machine
	Native    Runtime = "native"    // a process on the host, trusted by an operator

	// Builtin is a part of this program. Manifests cannot name it.
	Builtin Runtime = "builtin"
)

// A Capability is a checked manifest.
type Capability struct {
	ID          string // "places.search"
	Description string
	Version     string // semver

	Input, Output *schema.Type // nil: anything

	Effects []string // without colons: "network", "fs", "state", "secrets", "exec"
	Runtime Spec

	Filesystem Filesystem
	Network    Network
	Secrets    []string // all that it needs; SecretFiles returns those that are mounted as files
	Resources  Resources
	Approval   Approval

	DataClasses DataClasses
	NoEgress    bool // :egress [:none] disables the network regardless of Network
	Estimates   map[string]Estimate

	Metadata map[string]form.Value

	Source string // the original manifest
}

// A Spec is the :runtime of a manifest.
type Spec struct {
	Type           Runtime
	Image          string // for a jail: image
	Rootfs         string // instead of Image: a directory relative to the workspace, or "debian"
	Module         string // for wasm: path of the module, relative to the workspace
	Entrypoint     []string
	Env            map[string]string
	Workdir        string
	Port           int    // 0: not a server; one process per call
	Stdio          Stdio  // protocol of that process
	Tool           Tool   // for MCPStdio
	Path           string // path of the request; empty: "/" and the id with slashes instead of dots
	StartupTimeout time.Duration
	HealthCheck    string     // a path; empty: a connection to Port is sufficient
	Digest         string     // for native: the digest that the operator trusts
	Code           *form.Node // for rtfs: the value of :implementation, (fn [input] …)
	code           string     // source text of Code
	Warm           Warm
}

// Stdio is the protocol between the engine and the process of a call.
type Stdio string

const (
	// JSON on standard input, JSON on standard output.
	JSONStdio Stdio = "json"

	// For scripts that are not written as capabilities: the arguments of the input {:args […]
	// :stdin "…"} are appended to the entrypoint. The output is {:stdout "…" :stderr "…"
	// :exit_code n} for any exit code.
	TextStdio Stdio = "text"

	// The Model Context Protocol: the process is a server of tools, and the call uses one of
	// them. The process may be reused for further calls.
	MCPStdio Stdio = "mcp"
)

// A Tool is a tool of a server that speaks the Model Context Protocol.
type Tool struct {
	Name   string // the server's name of the tool
	Digest string // digest of the server's description of the tool; a change makes it another tool
}

// Warm is the number and lifetime of idle sandboxes in the warm pool.
type Warm struct {
	Max int           // 0: none are kept
	TTL time.Duration // 0: the engine's default
}

// A Mode is the lifetime of files that a capability writes.
type Mode string

const (
	Ephemeral  Mode = "ephemeral"  // until the call ends
	Session    Mode = "session"    // until the session ends
	Persistent Mode = "persistent" // until the capability is removed
)

// A Filesystem is the :filesystem of a manifest.
type Filesystem struct {
	Mode    Mode
	Mounts  []Mount
	QuotaMB int // 0: the engine's default
}

// A Mount mounts a directory of the workspace.
type Mount struct {
	Host  string // relative to the workspace
	Guest string // absolute
	Write bool
}

// A Network is the :network of a manifest.
type Network struct {
	Mode  string // ModeNone or ModeProxy
	Hosts []string
	Ports []uint16
	Rate  int // requests per minute; 0: the default

	Inject []Inject
}

// An Inject makes the proxy add a secret to requests, so that the capability does not have it:
// {:secret :KEY :host "h" :header "X-Goog-Api-Key"}.
type Inject struct {
	Secret string
	Host   string // empty: every allowed host
	As     string // "bearer", "basic", "header", "query"
	Name   string // name of the header or the parameter
}

// Resources are the limits of one call.
type Resources struct {
	CPUShares    int           // relative to 1024; code that runs in this process has no own share
	MemoryMB     int           // 0, here and below: the engine's default
	Timeout      time.Duration // total for one call
	NetworkBytes int64         // sum of both directions
	PIDs         int           // processes and threads
}

// A Tier is the approval that a capability needs.
type Tier string

const (
	Preapproved Tier = "preapproved" // without approval
	Standard    Tier = "standard"    // a person
	Elevated    Tier = "elevated"    // a person with more authority
)

// An Approval is the approval that a manifest requests. EffectiveTier returns the one that is
// required.
type Approval struct {
	Tier   Tier
	PerUse bool // each call needs approval
}

// DataClasses are the data classes of a capability's input and output.
type DataClasses struct {
	Input        []Label // accepted classes; none: public
	Output       []Label // none: as the input
	Declassifies bool    // the output may have a lower class than the input; needs elevated approval
}

// An Estimate is the estimated cost of a call.
type Estimate struct {
	Typical, Worst int64
}
