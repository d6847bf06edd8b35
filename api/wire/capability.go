package wire

import (
	"encoding/json"
	"time"

	"glasshouse/id"
)

// Register registers the capabilities of a manifest.
type Register struct {
	Manifest string `json:"manifest" required:"true" description:"(capability …) forms, or their JSON twin."`
	File     string `json:"file,omitempty" description:"What the manifest is called where something is wrong in it."`
	Dir      string `json:"dir,omitempty" description:"A directory of the host that the manifest's paths are relative to. What it names there is copied."`
	Again    bool   `json:"again,omitempty" description:"Ask again about a version that was refused or revoked."`
}

// Capability is a version of a capability that is registered.
type Capability struct {
	ID           string          `json:"id" required:"true"`
	Version      string          `json:"version" required:"true"`
	Digest       string          `json:"digest" required:"true" description:"Of the manifest and the files that belong to it."`
	State        string          `json:"state" required:"true" enum:"pending,approved,refused,revoked"`
	Approval     id.Approval     `json:"approval,omitempty" description:"That it waits for, or had."`
	New          []string        `json:"new,omitempty" description:"What a person has to allow, or has."`
	Why          string          `json:"why,omitempty"`
	Description  string          `json:"description,omitempty"`
	Runtime      string          `json:"runtime" required:"true"`
	Effects      []string        `json:"effects" required:"true"`
	Hosts        []string        `json:"hosts,omitempty"`
	Secrets      []string        `json:"secrets,omitempty"`
	Tier         string          `json:"tier" required:"true"`
	PerUse       bool            `json:"per_use,omitempty" description:"A person is asked each time."`
	Trust        bool            `json:"trust,omitempty" description:"An operator trusts this digest to run on the host itself."`
	Bundle       string          `json:"bundle,omitempty"`
	By           string          `json:"by,omitempty"`
	Created      time.Time       `json:"created" required:"true"`
	Settled      *time.Time      `json:"settled,omitempty"`
	Limits       *CallLimits     `json:"limits,omitempty" description:"Of one call, as the manifest has them; of one capability only."`
	InputSchema  json.RawMessage `json:"input_schema,omitempty" description:"JSON Schema 2020-12."`
	OutputSchema json.RawMessage `json:"output_schema,omitempty" description:"JSON Schema 2020-12."`
	Manifest     string          `json:"manifest,omitempty" description:"As it was given; of one capability only."`
}

// CallLimits are what one call may use. What is left out is up to the engine.
type CallLimits struct {
	CPUShares    int   `json:"cpu_shares,omitempty"`
	MemoryMB     int   `json:"memory_mb,omitempty" description:"MiB."`
	TimeoutMS    int64 `json:"timeout_ms,omitempty"`
	NetworkBytes int64 `json:"network_bytes,omitempty" description:"Both ways together."`
	MaxPIDs      int   `json:"max_pids,omitempty"`
}

// RevokeCapability has a version no longer be called.
type RevokeCapability struct {
	Version string `json:"version,omitempty" description:"Without it the one that calls are for."`
	Reason  string `json:"reason,omitempty"`
}

// TrustCapability says whether a version may run on the host itself.
type TrustCapability struct {
	Version string `json:"version,omitempty"`
	Digest  string `json:"digest" required:"true" description:"Of what is trusted: as it is shown."`
	Trust   bool   `json:"trust"`
}

// Call is one call of a capability.
type Call struct {
	Input     json.RawMessage  `json:"input,omitempty" description:"As the input schema wants it. Without it, null."`
	Jail      id.Jail          `json:"jail,omitempty" description:"Call as this jail: its rules decide."`
	Session   string           `json:"session,omitempty" description:"Whose files a capability of mode session sees."`
	Run       string           `json:"run,omitempty" description:"Whose budget it draws from."`
	Labels    []string         `json:"labels,omitempty" description:"Of what is in the input: public, redacted, pii, secret, and with dots what of it."`
	Budget    map[string]int64 `json:"budget,omitempty" description:"What the run may spend, by dimension: steps, wall-clock-ms, sandbox-cpu-ms, network-bytes, storage-bytes. It counts from the run's first call on."`
	TimeoutMS int64            `json:"timeout_ms,omitempty" minimum:"0" description:"At most the capability's own."`
}

// Called is what became of a call.
type Called struct {
	ID         id.Call         `json:"id" required:"true"`
	Capability string          `json:"capability" required:"true"`
	Version    string          `json:"version,omitempty"`
	Digest     string          `json:"digest,omitempty"`
	State      string          `json:"state" required:"true" enum:"done,failed,refused"`
	Output     json.RawMessage `json:"output,omitempty"`
	Label      string          `json:"label,omitempty" description:"Of the output."`
	Error      *CallError      `json:"error,omitempty"`
	Usage      CallUsage       `json:"usage" required:"true"`
	Warm       bool            `json:"warm,omitempty"`
	Sandbox    string          `json:"sandbox,omitempty" description:"The jail that served it. The chain has under its name what left it, and which secrets it used."`
	Warning    string          `json:"warning,omitempty" description:"Why the version that was called is not the newest one: a newer one is revoked."`
	Log        string          `json:"log,omitempty" description:"The end of what it wrote to its standard error."`
	Budget     *CallBudget     `json:"budget,omitempty"`
	Began      time.Time       `json:"began" required:"true"`
	Entry      int64           `json:"entry,omitempty" description:"Of the chain, in which it is recorded."`
}

// CallError says why a call has no output.
type CallError struct {
	Kind    string `json:"kind" required:"true"`
	Reason  string `json:"reason" required:"true"`
	Message string `json:"message,omitempty" description:"The same, for agents."`
	Remedy  string `json:"remedy,omitempty"`
}

// CallUsage is what a call took.
type CallUsage struct {
	WallMS       float64          `json:"wall_ms" required:"true"`
	CPUMS        float64          `json:"sandbox_cpu_ms" required:"true"`
	MemoryPeak   int64            `json:"memory_peak_bytes,omitempty"`
	NetworkOut   int64            `json:"network_egress_bytes" required:"true"`
	NetworkIn    int64            `json:"network_ingress_bytes,omitempty"`
	StorageWrite int64            `json:"storage_write_bytes" required:"true"`
	Steps        int64            `json:"steps,omitempty"`
	StepsUS      map[string]int64 `json:"steps_us" required:"true" description:"Where the time went, in microseconds."`
}

// CallBudget is how the run's budget stands after a call.
type CallBudget struct {
	Consumed  map[string]int64 `json:"run-budget-consumed" required:"true"`
	Remaining map[string]int64 `json:"run-budget-remaining" required:"true"`
}

// Replayed is what came of a call that was made again.
type Replayed struct {
	Same   bool            `json:"same" required:"true"`
	Output json.RawMessage `json:"output" required:"true" description:"This time."`
}

// ImportServer is a server of the Model Context Protocol that tools are taken from.
type ImportServer struct {
	Manifest string `json:"manifest" required:"true" description:"A capability that says how the server runs: its id is the beginning of those of its tools."`
	File     string `json:"file,omitempty"`
	Dir      string `json:"dir,omitempty" description:"A directory of the host that the manifest's paths are relative to."`
}

// ImportedServer is what a server's tools are as capabilities.
type ImportedServer struct {
	Server    string   `json:"server" required:"true" description:"What it calls itself."`
	Manifests []string `json:"manifests" required:"true" description:"Of the tools: what to register."`
	Lost      []string `json:"lost,omitempty" description:"What the server says of its tools and no manifest can."`
	Refused   []string `json:"refused,omitempty" description:"Tools that are none, and why."`
}
