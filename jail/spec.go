package jail

import (
	"encoding/json"
	"strings"
	"time"

	"glasshouse/id"
	"glasshouse/observe/event"
)

// A Spec specifies a jail. Its zero value, with defaults filled in, is a small isolated jail
// on the default root filesystem.
type Spec struct {
	Name      string            `json:"name,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Backend   string            `json:"backend"` // oci, microvm, bwrap
	Runtime   string            `json:"runtime"` // for the backend oci: runc, crun, runsc
	Rootfs    Rootfs            `json:"rootfs"`
	Limits    Limits            `json:"limits"`
	Network   Network           `json:"network"`
	Group     string            `json:"network_group,omitempty"` // group in network mode bridged
	Policy    json.RawMessage   `json:"govern,omitempty"`        // configuration of the Enforcer, in its own format
	Hostname  string            `json:"hostname,omitempty"`      // default: the jail's id
	Env       map[string]string `json:"env,omitempty"`           // for every command
	Cwd       string            `json:"cwd,omitempty"`
	User      string            `json:"user,omitempty"`
	Command   []string          `json:"command,omitempty"` // run at start; its end does not end the jail
	Mounts    []Mount           `json:"mounts,omitempty"`
	Workspace *Workspace        `json:"workspace,omitempty"`
	Observe   event.Selection   `json:"observe"`
	Snapshots Snapshots         `json:"snapshots,omitzero"` // policy for automatic snapshots

	// Enforce makes a policy decide which programs are started, files changed and connections
	// made, in the kernel and independent of the programs in the jail.
	Enforce bool `json:"enforce,omitempty"`

	// SecretFiles means that the jail will have secrets as files. A jail of gVisor can only
	// have secrets if this was set at its creation, and snapshots of it then have no memory.
	// It is never set from a request body.
	SecretFiles bool `json:"secret_files,omitempty"`

	// Creator is the token with which the jail was created, and whose quota it counts towards. "":
	// none. It is never set from a request body.
	Creator id.Token `json:"creator,omitempty"`

	// Start makes Create start the jail too, without an additional write of its record.
	Start bool `json:"-"`

	// Trusted means that the caller can read any host directory anyway, so that its workspace
	// does not need permission by the configuration. It is never set from a request body.
	Trusted bool `json:"-"`

	// GrantedMounts are host directories that the jail may mount, independent of the configuration.
	// It is never set from a request body.
	GrantedMounts []string `json:"-"`
}

// Rootfs names the read-only lower layer. At most one field is set, not counting User. If none
// is set, the daemon's default is used.
type Rootfs struct {
	Debian string `json:"debian,omitempty"` // suite of the default tree: bookworm, trixie
	Dir    string `json:"dir,omitempty"`    // a directory of the host
	OCI    string `json:"oci,omitempty"`    // image reference, OCI layout directory or tar
	Nix    string `json:"nix,omitempty"`    // profile of the flake: base, python, node, build
	Host   bool   `json:"host,omitempty"`   // the host's own /usr and /etc, read-only; bwrap only

	User string `json:"user,omitempty"` // additional user in the tree: uid 1000, with a home directory
}

// Limits are the resource limits of a jail.
type Limits struct {
	CPUShares int64 `json:"cpu_shares"`
	MemoryMB  int64 `json:"memory_mb"`
	DiskMB    int64 `json:"disk_mb"`
	MaxPIDs   int64 `json:"max_pids"` // processes and threads, without those of init
}

// InitThreads is what a backend adds to Limits.MaxPIDs if the kernel also counts init's threads,
// which belong to Glasshouse. Idle, init has up to 20: the Go runtime makes one for each blocked
// system call and keeps it. The jail can use the threads that init does not use.
const InitThreads = 24

// InitOOMScore is the oom_score_adj of a jail's init. If the host is out of memory, the
// kernel ends processes of jails before the daemon (0). If a jail is, the kernel ends a
// command before init: init raises the value of its commands to 500.
const InitOOMScore = 250

// DefaultLimits are the limits of a Spec without any. MaxLimits are the highest limits in a
// request.
var (
	DefaultLimits = Limits{CPUShares: 256, MemoryMB: 512, DiskMB: 1024, MaxPIDs: 128}
	MaxLimits     = Limits{CPUShares: 1024, MemoryMB: 8192, DiskMB: 16384, MaxPIDs: 4096}
)

// Network is the network mode of a jail.
type Network string

const (
	Isolated Network = "isolated" // loopback only
	Proxied  Network = "proxy"    // egress proxy only
	Bridged  Network = "bridged"  // jails of the same group only
	Full     Network = "full"     // outbound through the host, with NAT
)

// Mount mounts a host path in the jail. The daemon's configuration must allow the source. The
// mount is read-only unless Write is set.
type Mount struct {
	Source string `json:"source"`
	Target string `json:"target"`
	Write  bool   `json:"write,omitempty"`

	// Owners means that the files belong to jails and have the ids of jails on disk: uid 1000
	// in one jail is uid 1000 in every other jail that mounts the source. Users of the host
	// must not use the filesystem. It is never set from a request body.
	Owners bool `json:"owners,omitempty"`
}

// Workspace mounts a host directory in the jail copy-on-write: the jail writes to a layer of
// its own, and the host's files do not change.
type Workspace struct {
	Source string `json:"source"`
	Target string `json:"target"` // default: the same path as Source
}

// Project is the directory to which relative paths in a jail refer.
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

// Stats is the resource usage of a jail.
type Stats struct {
	CPU          time.Duration `json:"cpu"` // CPU, MemoryPeak, OOMKills, RxBytes and TxBytes are counted since the start of the jail
	MemoryBytes  int64         `json:"memory_bytes"`
	CacheBytes   int64         `json:"cache_bytes,omitempty"` // part of MemoryBytes: page cache, which is reclaimable
	MemoryPeak   int64         `json:"memory_peak"`
	PIDs         int64         `json:"pids"`
	DiskBytes    int64         `json:"disk_bytes"` // written by the jail
	DiskLimit    int64         `json:"disk_limit"`
	OOMKills     int64         `json:"oom_kills"`
	RxBytes      int64         `json:"rx_bytes"`
	TxBytes      int64         `json:"tx_bytes"`
	NotMeasured  []string      `json:"not_measured,omitempty"` // fields that this backend cannot measure
	ProcessesMax int64         `json:"processes_max"`
	DiskFailed   bool          `json:"disk_failed,omitempty"` // see DiskReadOnly
}

// Jail is the record of a jail.
type Jail struct {
	ID      id.Jail    `json:"id"`
	Spec    Spec       `json:"spec"` // with defaults filled in
	State   State      `json:"state"`
	Reason  string     `json:"reason,omitempty"` // reason of a failure or an unexpected stop
	IDs     IDRange    `json:"ids"`
	Lower   []string   `json:"lower"`              // read-only layers, topmost first
	Digest  string     `json:"digest"`             // digest of the root filesystem
	BaseEnv []string   `json:"base_env,omitempty"` // environment that the image sets
	Created time.Time  `json:"created"`
	Started *time.Time `json:"started,omitempty"`
	Stopped *time.Time `json:"stopped,omitempty"`
	Boot    string     `json:"boot,omitempty"` // host boot id of its last run

	InstanceID id.Jail  `json:"body,omitempty"`   // id of its instance on the host and in the data directory, if that differs from ID: after a rewind or a stacked snapshot
	Sealed     []string `json:"sealed,omitempty"` // layers of snapshots, between Lower and the writable one, topmost first
	Origin     *Origin  `json:"origin,omitempty"` // snapshot from which it was created

	Link *Link `json:"wire,omitempty"` // network link, if it was created for a previous instance

	Used      Used `json:"used,omitzero"`      // by previous instances
	LastUsage Used `json:"last_used,omitzero"` // by the present or last instance, when it was about to end

	PriorUsage PriorUsage `json:"carried,omitzero"` // used since Started by previous instances

	OwnLimits *Limits `json:"base_limits,omitempty"` // its own limits while Spec has temporary ones

	Departure *Departure `json:"departure,omitempty"` // if it is moving to another node

	PausedBy string `json:"paused_by,omitempty"` // the person who has paused it; "": it is not paused, or by the daemon itself

	Conditions []Condition `json:"-"` // current conditions; not recorded
}

// OutOfMemory reports whether a failed jail ended because it ran out of memory.
func (j *Jail) OutOfMemory() bool { return strings.HasSuffix(j.Reason, outOfMemory) }

// outOfMemory is the suffix of Jail.Reason in that case.
const outOfMemory = "; the jail ran out of memory"

// instanceID returns the id of the jail's instance on the host.
func (j *Jail) instanceID() id.Jail {
	if j.InstanceID != "" {
		return j.InstanceID
	}
	return j.ID
}

// Origin is the snapshot that a jail was made from.
type Origin struct {
	Snapshot id.Snapshot `json:"snapshot"`
	Jail     id.Jail     `json:"jail"`   // source of the snapshot
	Number   int         `json:"number"` // among the jails of one request, from 1
}
