package wire

import (
	"time"

	"glasshouse/id"
)

// CreateJail asks for a jail. What is left out takes the daemon's default.
type CreateJail struct {
	Name      string            `json:"name,omitempty" description:"A name for people. Need not be unique."`
	Labels    map[string]string `json:"labels,omitempty" description:"Words to find the jail by."`
	Backend   string            `json:"backend,omitempty" description:"What isolates: oci or bwrap."`
	Runtime   string            `json:"runtime,omitempty" description:"The OCI runtime: runc, crun or runsc."`
	Rootfs    Rootfs            `json:"rootfs,omitzero"`
	Limits    Limits            `json:"limits,omitzero"`
	Network   string            `json:"network,omitempty" enum:"isolated,proxy,bridged,full,Isolated,FullAccess" description:"isolated (the default) has only its own loopback; proxy reaches what the egress rules let through; bridged reaches jails of its group; full reaches outward."`
	Group     string            `json:"network_group,omitempty" maxLength:"64" description:"Of a bridged jail: which jails it sees. The default is the group default."`
	Egress    *Egress           `json:"egress,omitempty" description:"Of a jail in network mode proxy: what leaves it."`
	Policy    *Policy           `json:"policy,omitempty" description:"What it may do, and about what a person is asked."`
	Enforce   bool              `json:"enforce,omitempty" description:"The policy decides what the jail's processes do as the kernel of the machine sees it: programs, files, connections."`
	Hostname  string            `json:"hostname,omitempty" description:"Default: the jail's id."`
	Env       map[string]string `json:"env,omitempty" description:"Environment of every command."`
	Cwd       string            `json:"cwd,omitempty" description:"Working directory of every command."`
	User      string            `json:"user,omitempty" description:"User of every command: a name, a uid, name:group or uid:gid."`
	Command   []string          `json:"command,omitempty" description:"Run at start. Its end does not end the jail."`
	Mounts    []Mount           `json:"mounts,omitempty"`
	Workspace *Workspace        `json:"workspace,omitempty"`
	Observe   Observe           `json:"observe,omitzero" description:"What of it is recorded."`
	Snapshots Snapshots         `json:"snapshots,omitzero" description:"When snapshots of it are taken unasked."`
	Session   string            `json:"session_id,omitempty" description:"The session that it belongs to: its programs find the gateway at http://localhost:4097."`
	Start     bool              `json:"start,omitempty" description:"Start it as well. A jail that cannot be started is not kept."`
}

// Rootfs names the read-only root filesystem. At most one field may be set.
type Rootfs struct {
	Debian string `json:"debian,omitempty" description:"A Debian suite: bookworm or trixie."`
	Dir    string `json:"dir,omitempty" description:"A directory of the host."`
	OCI    string `json:"oci,omitempty" description:"An image reference, an OCI layout directory or an image tar."`
	Nix    string `json:"nix,omitempty" description:"A profile of the flake: base, python, node or build."`
	Host   bool   `json:"host,omitempty" description:"The host's own system directories, read-only. Backend bwrap only."`

	User string `json:"user,omitempty" description:"A user whom the tree is to have beside its own, with uid 1000 and a home; not of a directory of the host."`
}

// Limits bound a jail. A zero is the default.
type Limits struct {
	CPUShares int64 `json:"cpu_shares,omitempty" description:"Default 256, at most 1024."`
	MemoryMB  int64 `json:"memory_mb,omitempty" description:"MiB. Default 512, at most 8192."`
	DiskMB    int64 `json:"disk_mb,omitempty" description:"MiB. Default 1024, at most 16384."`
	MaxPIDs   int64 `json:"max_pids,omitempty" description:"Processes and threads, without those of the jail's init. Default 128, at most 4096."`
}

// Mount shows a host path in the jail.
type Mount struct {
	Source string `json:"source" required:"true" description:"A path of the host, which the configuration must allow."`
	Target string `json:"target" required:"true" description:"A path in the jail."`
	Write  bool   `json:"write,omitempty" description:"Otherwise read-only."`
}

// Workspace shows a host directory in the jail, copy-on-write.
type Workspace struct {
	Source string `json:"source" required:"true"`
	Target string `json:"target,omitempty" description:"Default: the same path as source."`
}

// Jail is a jail as it is now.
type Jail struct {
	ID     id.Jail           `json:"id" required:"true"`
	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	State  string            `json:"state" required:"true" enum:"created,starting,running,paused,stopped,failed"`
	Reason string            `json:"reason,omitempty" description:"Why it failed, or stopped unasked."`

	Conditions []Condition `json:"conditions,omitempty" description:"Lasting problems that the state does not show."`

	Backend   string            `json:"backend" required:"true"`
	Runtime   string            `json:"runtime,omitempty"`
	Rootfs    Rootfs            `json:"rootfs"`
	Digest    string            `json:"digest,omitempty" description:"Of the root filesystem."`
	Limits    Limits            `json:"limits"`
	Network   string            `json:"network" required:"true" enum:"isolated,proxy,bridged,full"`
	Group     string            `json:"network_group,omitempty"`
	Hostname  string            `json:"hostname,omitempty"`
	Env       map[string]string `json:"env,omitempty" description:"Not shown to viewers."`
	Cwd       string            `json:"cwd,omitempty"`
	User      string            `json:"user,omitempty"`
	Command   []string          `json:"command,omitempty"`
	Mounts    []Mount           `json:"mounts,omitempty"`
	Workspace *Workspace        `json:"workspace,omitempty"`
	Observe   Observe           `json:"observe"`
	Snapshots Snapshots         `json:"snapshots,omitzero"`
	Origin    *Origin           `json:"origin,omitempty" description:"The snapshot it was made from, if it was."`
	Nearest   id.Snapshot       `json:"nearest,omitempty" description:"The snapshot it is nearest to: taken of it, made from or rewound to last."`
	CreatedAt time.Time         `json:"created_at" required:"true"`
	StartedAt *time.Time        `json:"started_at,omitempty"`
	StoppedAt *time.Time        `json:"stopped_at,omitempty"`
	Usage     *Usage            `json:"usage,omitempty" description:"What it uses now. Only when one jail is asked for, and it has processes."`
	Links     map[string]string `json:"links,omitempty"`

	Observation *Observation `json:"observation,omitempty" description:"How it is being recorded. Only when one jail is asked for."`
}

// Condition is a lasting problem of a jail.
type Condition struct {
	Type   string `json:"type" required:"true" enum:"disk_read_only,events_not_written" description:"disk_read_only: its filesystem had an error, and refuses writes until the jail was stopped and started. events_not_written: it is held because its events cannot be written, and continues when they can be."`
	Detail string `json:"detail" required:"true"`
	Remedy string `json:"remedy,omitempty"`
}

// Usage is what a jail uses now.
type Usage struct {
	CPUMS       int64    `json:"cpu_ms" description:"Processor time since the start."`
	MemoryBytes int64    `json:"memory_bytes"`
	MemoryPeak  int64    `json:"memory_peak_bytes"`
	PIDs        int64    `json:"pids" description:"Processes and threads, without those of the jail's init."`
	MaxPIDs     int64    `json:"max_pids"`
	DiskBytes   int64    `json:"disk_bytes" description:"Written by the jail."`
	DiskLimit   int64    `json:"disk_limit_bytes"`
	OOMKills    int64    `json:"oom_kills"`
	RxBytes     int64    `json:"rx_bytes"`
	TxBytes     int64    `json:"tx_bytes"`
	NotMeasured []string `json:"not_measured,omitempty" description:"Fields that this backend cannot tell."`
}

// StopJail says how a jail is stopped. Its body may be left out.
type StopJail struct {
	GraceMS int64 `json:"grace_ms,omitempty" minimum:"0" description:"How long its processes have after SIGTERM. A zero is the default."`
}

// Change is one difference between a jail's files and its root filesystem.
type Change struct {
	Path string `json:"path" required:"true"`
	Kind string `json:"kind" required:"true" enum:"added,modified,deleted,metadata,renamed"`
	Type string `json:"type,omitempty" description:"file, dir, symlink, fifo, socket, char or block."`
	Size int64  `json:"size,omitempty"`
	Mode string `json:"mode,omitempty" description:"Permission bits, octal."`

	From string   `json:"from,omitempty" description:"Of a renamed file: where it was."`
	What []string `json:"what,omitempty" description:"What differs, where both sides are there: content, mode, owner, times, xattrs."`

	Diff   string `json:"diff,omitempty" description:"With content=unified: the difference, as diff -u writes it."`
	NoDiff string `json:"no_diff,omitempty" description:"With content=unified: why a file has no difference here: binary, too large, moving."`
}
