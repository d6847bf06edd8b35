package jail

import (
	"encoding/json"
	"strings"
	"time"

	"glasshouse/event"
	"glasshouse/id"
)

// A Spec says what jail somebody wants. Its zero value, after Defaults, is a
// small isolated jail on the default root filesystem.
type Spec struct {
	Name      string            `json:"name,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Backend   string            `json:"backend"` // oci, bwrap
	Runtime   string            `json:"runtime"` // of oci: runc, crun, runsc
	Rootfs    Rootfs            `json:"rootfs"`
	Limits    Limits            `json:"limits"`
	Network   Network           `json:"network"`
	Group     string            `json:"network_group,omitempty"` // of bridged: whom it sees
	Govern    json.RawMessage   `json:"govern,omitempty"`        // what the Warden is to go by, in its own words
	Hostname  string            `json:"hostname,omitempty"`      // default: the jail's id
	Env       map[string]string `json:"env,omitempty"`           // of every exec
	Cwd       string            `json:"cwd,omitempty"`
	User      string            `json:"user,omitempty"`
	Command   []string          `json:"command,omitempty"` // run at start; its end does not end the jail
	Mounts    []Mount           `json:"mounts,omitempty"`
	Workspace *Workspace        `json:"workspace,omitempty"`
	Observe   event.Selection   `json:"observe"`
	Snapshots Snapshots         `json:"snapshots,omitzero"` // taken unasked

	// Enforce has a policy decide, below whoever runs in the jail, which programs
	// are started, files changed and connections made.
	Enforce bool `json:"enforce,omitempty"`

	// SecretFiles says that the jail will be given secrets as files. A jail of gVisor
	// is only given any if that was said when it was made; it is then not snapshotted
	// with its memory. Never from a request body.
	SecretFiles bool `json:"secret_files,omitempty"`

	// Start has Create start the jail as well, at the price of the creation alone.
	Start bool `json:"-"`

	// Trusted says the caller could read any host directory anyway, so that its
	// workspace needs no leave from the configuration. Never from a request body.
	Trusted bool `json:"-"`

	// Granted are directories of the host of which the jail may mount what it asks
	// for, whatever the configuration says. Never from a request body.
	Granted []string `json:"-"`
}

// Rootfs names the read-only lower layer. At most one field but User is set; none
// means the daemon's default.
type Rootfs struct {
	Debian string `json:"debian,omitempty"` // suite of the default tree: bookworm, trixie
	Dir    string `json:"dir,omitempty"`    // a directory of the host
	OCI    string `json:"oci,omitempty"`    // image reference, OCI layout directory or tar
	Nix    string `json:"nix,omitempty"`    // profile of the flake: base, python, node, build
	Host   bool   `json:"host,omitempty"`   // the host's own /usr and /etc, read-only; bwrap only

	User string `json:"user,omitempty"` // whom the tree is to have beside its own: uid 1000, with a home
}

// Limits bound what a jail may use.
type Limits struct {
	CPUShares int64 `json:"cpu_shares"`
	MemoryMB  int64 `json:"memory_mb"`
	DiskMB    int64 `json:"disk_mb"`
	MaxPIDs   int64 `json:"max_pids"` // processes and threads, without those of init
}

// InitThreads is what a backend adds to Limits.MaxPIDs where the kernel counts init's
// threads too, which belong to Glasshouse. Idle, init has up to 20: the Go
// runtime makes one for each blocked system call and keeps it. Threads that init
// does not have are the jail's to use.
const InitThreads = 24

// InitOOMScore is the oom_score_adj of a jail's init. If the host is out of memory, the
// kernel ends processes of jails before the daemon (0). If a jail is, the kernel ends a
// command before init: init raises the value of its commands to 500.
const InitOOMScore = 250

// DefaultLimits and MaxLimits are the seed's table.
var (
	DefaultLimits = Limits{CPUShares: 256, MemoryMB: 512, DiskMB: 1024, MaxPIDs: 128}
	MaxLimits     = Limits{CPUShares: 1024, MemoryMB: 8192, DiskMB: 16384, MaxPIDs: 4096}
)

// Network is how far a jail reaches.
type Network string

const (
	Isolated Network = "isolated" // its own loopback and nothing else
	Proxied  Network = "proxy"    // what the egress proxy carries, and nothing else
	Bridged  Network = "bridged"  // jails of the same group, and nothing else
	Full     Network = "full"     // outward through the host, by address translation
)

// Mount shows a host path inside the jail. The daemon's configuration must
// allow the source; it is read-only unless Write is set.
type Mount struct {
	Source string `json:"source"`
	Target string `json:"target"`
	Write  bool   `json:"write,omitempty"`

	// Owners says that what is there belongs to jails, whose ids are on disk: who is
	// 1000 in one jail is 1000 in every other that mounts it. The filesystem must be one
	// that nobody of the host works on. Never from a request body.
	Owners bool `json:"owners,omitempty"`
}

// Workspace shows a host directory inside the jail copy-on-write: the jail
// writes to a layer of its own and the host's files do not change.
type Workspace struct {
	Source string `json:"source"`
	Target string `json:"target"` // default: the same path as Source
}

// Project is the directory that relative paths in a jail are in.
func (s Spec) Project() string {
	if s.Workspace != nil {
		return s.Workspace.At()
	}
	return s.Cwd
}

// IDRange is the block of host user and group ids a jail's ids map to: id n in
// the jail is First+n outside, for n < Count.
type IDRange struct {
	First uint32 `json:"first"`
	Count uint32 `json:"count"`
}

// Stats is what a jail uses now.
type Stats struct {
	CPU          time.Duration `json:"cpu"` // since the jail was started, as are MemoryPeak, OOMKills, RxBytes and TxBytes
	MemoryBytes  int64         `json:"memory_bytes"`
	CacheBytes   int64         `json:"cache_bytes,omitempty"` // of that: of files, which can be read again
	MemoryPeak   int64         `json:"memory_peak"`
	PIDs         int64         `json:"pids"`
	DiskBytes    int64         `json:"disk_bytes"` // written by the jail
	DiskLimit    int64         `json:"disk_limit"`
	OOMKills     int64         `json:"oom_kills"`
	RxBytes      int64         `json:"rx_bytes"`
	TxBytes      int64         `json:"tx_bytes"`
	NotMeasured  []string      `json:"not_measured,omitempty"` // fields this backend cannot tell
	ProcessesMax int64         `json:"processes_max"`
	DiskFailed   bool          `json:"disk_failed,omitempty"` // see DiskReadOnly
}

// Jail is a jail as the daemon records it.
type Jail struct {
	ID      id.Jail    `json:"id"`
	Spec    Spec       `json:"spec"` // with defaults filled in
	State   State      `json:"state"`
	Reason  string     `json:"reason,omitempty"` // of failed, or of an unasked-for stop
	IDs     IDRange    `json:"ids"`
	Lower   []string   `json:"lower"`              // layers under the writable one, topmost first
	Digest  string     `json:"digest"`             // of the root filesystem
	BaseEnv []string   `json:"base_env,omitempty"` // what the root filesystem's image sets
	Created time.Time  `json:"created"`
	Started *time.Time `json:"started,omitempty"`
	Stopped *time.Time `json:"stopped,omitempty"`
	Boot    string     `json:"boot,omitempty"` // the host's boot id it was last running under

	Body   id.Jail  `json:"body,omitempty"`   // the name it has on the host and in the data directory, if that is not its id: it was rewound, or went on over a new layer
	Sealed []string `json:"sealed,omitempty"` // layers of snapshots, between Lower and the writable one, topmost first
	Origin *Origin  `json:"origin,omitempty"` // of a jail made from a snapshot

	Wire *Wire `json:"wire,omitempty"` // to the outside, if it has that of a body that it has left

	Used Used `json:"used,omitzero"`      // by bodies that it has left
	Last Used `json:"last_used,omitzero"` // by the one that it has or had last, when that was about to end

	Carried Carried `json:"carried,omitzero"` // used since Started, by instances that it has left without stopping

	Base *Limits `json:"base_limits,omitempty"` // its own, while it is lent others, which are in Spec

	Conditions []Condition `json:"-"` // at the moment; not recorded
}

// OutOfMemory reports whether a failed jail ended when its memory did.
func (j *Jail) OutOfMemory() bool { return strings.HasSuffix(j.Reason, outOfMemory) }

// outOfMemory ends the reason of such a jail.
const outOfMemory = "; the jail ran out of memory"

// body is the name a jail has on the host.
func (j *Jail) body() id.Jail {
	if j.Body != "" {
		return j.Body
	}
	return j.ID
}

// Origin is what a jail was made from.
type Origin struct {
	Snapshot id.Snapshot `json:"snapshot"`
	Jail     id.Jail     `json:"jail"`   // of which that is
	Number   int         `json:"number"` // among those made with it, from 1
}
