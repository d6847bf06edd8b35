package wire

import (
	"encoding/json"
	"time"

	"glasshouse/id"
)

// Register registers the capabilities of a manifest.
type Register struct {
	Manifest string `json:"manifest" required:"true" description:"The manifest: (capability …) forms, or the equivalent JSON."`
	File     string `json:"file,omitempty" description:"File name of the manifest, for error messages."`
	Dir      string `json:"dir,omitempty" description:"A host directory against which the manifest's relative paths are resolved. The named files are copied."`
	Again    bool   `json:"again,omitempty" description:"Request approval again for a version that was refused or revoked."`
}

// Capability is a registered version of a capability.
type Capability struct {
	ID           string          `json:"id" required:"true"`
	Version      string          `json:"version" required:"true"`
	Digest       string          `json:"digest" required:"true" description:"Digest of the manifest and its files."`
	State        string          `json:"state" required:"true" enum:"pending,approved,refused,revoked"`
	Approval     id.Approval     `json:"approval,omitempty" description:"The approval request of this version, pending or answered."`
	New          []string        `json:"new,omitempty" description:"Permissions that require approval, or that were approved."`
	Why          string          `json:"why,omitempty" description:"Why the version has its state."`
	Description  string          `json:"description,omitempty"`
	Runtime      string          `json:"runtime" required:"true"`
	Effects      []string        `json:"effects" required:"true" description:"Declared side effects."`
	Hosts        []string        `json:"hosts,omitempty" description:"Hosts that the capability may connect to."`
	Secrets      []string        `json:"secrets,omitempty" description:"Names of the secrets that the capability uses."`
	Tier         string          `json:"tier" required:"true" description:"The approval tier."`
	PerUse       bool            `json:"per_use,omitempty" description:"Each call requires approval."`
	Trust        bool            `json:"trust,omitempty" description:"An operator allowed this digest to run directly on the host."`
	Bundle       string          `json:"bundle,omitempty" description:"The bundle that contains the capability."`
	By           string          `json:"by,omitempty" description:"Who registered the version."`
	Created      time.Time       `json:"created" required:"true"`
	Settled      *time.Time      `json:"settled,omitempty" description:"When the registration was approved, refused or revoked."`
	Limits       *CallLimits     `json:"limits,omitempty" description:"Resource limits of one call, from the manifest. Only in the response for a single capability."`
	InputSchema  json.RawMessage `json:"input_schema,omitempty" description:"JSON Schema 2020-12."`
	OutputSchema json.RawMessage `json:"output_schema,omitempty" description:"JSON Schema 2020-12."`
	Manifest     string          `json:"manifest,omitempty" description:"The manifest as submitted. Only in the response for a single capability."`
}

// CallLimits are the resource limits of one call. The engine chooses a default for each
// omitted limit.
type CallLimits struct {
	CPUShares    int   `json:"cpu_shares,omitempty" description:"CPU weight."`
	MemoryMB     int   `json:"memory_mb,omitempty" description:"Memory, in MiB."`
	TimeoutMS    int64 `json:"timeout_ms,omitempty" description:"Run time, in milliseconds."`
	NetworkBytes int64 `json:"network_bytes,omitempty" description:"Network bytes, sent and received together."`
	MaxPIDs      int   `json:"max_pids,omitempty" description:"Number of processes and threads."`
}

// RevokeCapability revokes a version, so that it cannot be called.
type RevokeCapability struct {
	Version string `json:"version,omitempty" description:"Version to revoke. Default: the version that calls use."`
	Reason  string `json:"reason,omitempty"`
}

// TrustCapability sets whether a version may run directly on the host.
type TrustCapability struct {
	Version string `json:"version,omitempty"`
	Digest  string `json:"digest" required:"true" description:"Digest of the version to trust, as GET /capabilities/{id} returns it."`
	Trust   bool   `json:"trust" description:"true to trust the version, false to revoke the trust."`
}

// Call is one call of a capability.
type Call struct {
	Input     json.RawMessage  `json:"input,omitempty" description:"Input that conforms to the input schema. Default: null."`
	Jail      id.Jail          `json:"jail,omitempty" description:"Call on behalf of this jail. The jail's policy applies."`
	Session   string           `json:"session,omitempty" description:"Session whose files a capability with session scope can access."`
	Run       string           `json:"run,omitempty" description:"Run whose budget the call consumes."`
	Labels    []string         `json:"labels,omitempty" description:"Data classes of the input: public, redacted, pii or secret, optionally with a subclass after a dot."`
	Budget    map[string]int64 `json:"budget,omitempty" description:"Budget of the run, by dimension: steps, wall-clock-ms, sandbox-cpu-ms, network-bytes, storage-bytes. It applies from the run's first call."`
	TimeoutMS int64            `json:"timeout_ms,omitempty" minimum:"0" description:"Timeout in milliseconds, up to the capability's own timeout."`
}

// Called is the result of a call.
type Called struct {
	ID         id.Call         `json:"id" required:"true"`
	Capability string          `json:"capability" required:"true"`
	Version    string          `json:"version,omitempty"`
	Digest     string          `json:"digest,omitempty"`
	State      string          `json:"state" required:"true" enum:"done,failed,refused" description:"failed: the capability was called and returned an error. refused: it was not called."`
	Output     json.RawMessage `json:"output,omitempty"`
	Label      string          `json:"label,omitempty" description:"Data class of the output."`
	Error      *CallError      `json:"error,omitempty"`
	Usage      CallUsage       `json:"usage" required:"true"`
	Warm       bool            `json:"warm,omitempty" description:"A sandbox from the warm pool served the call."`
	Sandbox    string          `json:"sandbox,omitempty" description:"The sandbox that served the call. The audit log contains its egress and its use of secrets under this name."`
	Isolation  string          `json:"isolation,omitempty" description:"What isolated that sandbox: runc, crun, runsc (gVisor) or bwrap."`
	Warning    string          `json:"warning,omitempty" description:"Why an older version was called: a newer one is revoked."`
	Log        string          `json:"log,omitempty" description:"The end of the capability's standard error output."`
	Budget     *CallBudget     `json:"budget,omitempty"`
	Began      time.Time       `json:"began" required:"true"`
	Entry      int64           `json:"entry,omitempty" description:"Number of the audit log entry that records the call."`
}

// CallError is the reason why a call has no output.
type CallError struct {
	Kind    string `json:"kind" required:"true"`
	Reason  string `json:"reason" required:"true" description:"Why the call failed."`
	Message string `json:"message,omitempty" description:"The reason, phrased for agents."`
	Remedy  string `json:"remedy,omitempty"`
}

// CallUsage is the resource usage of a call.
type CallUsage struct {
	WallMS       float64          `json:"wall_ms" required:"true" description:"Elapsed time in milliseconds."`
	CPUMS        float64          `json:"sandbox_cpu_ms" required:"true" description:"CPU time in milliseconds."`
	MemoryPeak   int64            `json:"memory_peak_bytes,omitempty" description:"Peak memory usage in bytes."`
	NetworkOut   int64            `json:"network_egress_bytes" required:"true" description:"Bytes sent."`
	NetworkIn    int64            `json:"network_ingress_bytes,omitempty" description:"Bytes received."`
	StorageWrite int64            `json:"storage_write_bytes" required:"true" description:"Bytes written to storage."`
	Steps        int64            `json:"steps,omitempty"`
	StepsUS      map[string]int64 `json:"steps_us" required:"true" description:"Duration of each phase of the call, in microseconds."`
}

// CallBudget is the state of the run's budget after a call.
type CallBudget struct {
	Consumed  map[string]int64 `json:"run-budget-consumed" required:"true" description:"Consumption by dimension."`
	Remaining map[string]int64 `json:"run-budget-remaining" required:"true" description:"Remaining budget by dimension."`
}

// Replayed is the result of a repeated call.
type Replayed struct {
	Same   bool            `json:"same" required:"true" description:"The output equals the recorded output."`
	Output json.RawMessage `json:"output" required:"true" description:"Output of the repeated call."`
}

// ImportServer imports the tools of an MCP (Model Context Protocol) server as
// capabilities.
type ImportServer struct {
	Manifest string `json:"manifest" required:"true" description:"Manifest of a capability that starts the server. Its id is the prefix of the ids of the imported tools."`
	File     string `json:"file,omitempty" description:"File name of the manifest, for error messages."`
	Dir      string `json:"dir,omitempty" description:"A host directory against which the manifest's relative paths are resolved."`
}

// ImportedServer contains the capability manifests for the tools of an MCP server.
type ImportedServer struct {
	Server    string   `json:"server" required:"true" description:"Name that the server reports."`
	Manifests []string `json:"manifests" required:"true" description:"Manifests of the tools. Register them with POST /capabilities."`
	Lost      []string `json:"lost,omitempty" description:"Properties of the tools that a manifest cannot express."`
	Refused   []string `json:"refused,omitempty" description:"Tools that cannot be imported, with the reason."`
}
