package wire

import (
	"time"

	"glasshouse/id"
)

// CreateJail creates a jail (a sandbox). Omitted fields take the daemon's defaults.
type CreateJail struct {
	Name      string            `json:"name,omitempty" description:"Name of the jail, which no other jail has."`
	Labels    map[string]string `json:"labels,omitempty" description:"Labels by which the jail can be found."`
	Backend   string            `json:"backend,omitempty" description:"Isolation backend: oci, microvm (a virtual machine) or bwrap."`
	Runtime   string            `json:"runtime,omitempty" description:"The OCI runtime: runc, crun or runsc."`
	Rootfs    Rootfs            `json:"rootfs,omitzero"`
	Limits    Limits            `json:"limits,omitzero"`
	Network   string            `json:"network,omitempty" enum:"isolated,proxy,bridged,full,Isolated,FullAccess" description:"isolated (the default): only a loopback interface. proxy: network access through the egress proxy, as the egress rules allow. bridged: access to the jails of the network group. full: unrestricted network access."`
	Group     string            `json:"network_group,omitempty" maxLength:"64" description:"For a bridged jail: the group of jails that it can reach. Default: the group named default."`
	Egress    *Egress           `json:"egress,omitempty" description:"Egress rules of a jail in network mode proxy."`
	Policy    *Policy           `json:"policy,omitempty" description:"Which actions are allowed, denied or require approval."`
	Enforce   bool              `json:"enforce,omitempty" description:"Enforce the policy in the Linux kernel for the execution of programs, file access and connections of the jail's processes."`
	Hostname  string            `json:"hostname,omitempty" description:"Default: the jail's id."`
	Env       map[string]string `json:"env,omitempty" description:"Environment variables of every command."`
	Cwd       string            `json:"cwd,omitempty" description:"Working directory of every command."`
	User      string            `json:"user,omitempty" description:"User of every command: a name, a uid, name:group or uid:gid."`
	Command   []string          `json:"command,omitempty" description:"Command to run when the jail starts. The jail continues to run when it exits."`
	Mounts    []Mount           `json:"mounts,omitempty" description:"Host paths to make available in the jail."`
	Workspace *Workspace        `json:"workspace,omitempty" description:"A host directory to make available copy-on-write."`
	Observe   Observe           `json:"observe,omitzero" description:"What is recorded of the jail."`
	Snapshots Snapshots         `json:"snapshots,omitzero" description:"When automatic snapshots are taken."`
	Session   string            `json:"session_id,omitempty" description:"The session of the jail. Its programs reach the gateway at http://localhost:4097."`
	Start     bool              `json:"start,omitempty" description:"Start the jail after creating it. If it cannot be started, it is deleted."`
}

// Rootfs names the read-only root filesystem. At most one source may be set.
type Rootfs struct {
	Debian string `json:"debian,omitempty" description:"A Debian suite: bookworm or trixie."`
	Dir    string `json:"dir,omitempty" description:"A directory of the host."`
	OCI    string `json:"oci,omitempty" description:"An image reference, an OCI layout directory or an image tar."`
	Nix    string `json:"nix,omitempty" description:"A profile of the flake: base, python, node or build."`
	Host   bool   `json:"host,omitempty" description:"The host's own system directories, read-only. Backend bwrap only."`

	User string `json:"user,omitempty" description:"A user to add to the tree, with uid 1000 and a home directory. Not available with dir."`
}

// Limits are the resource limits of a jail. Zero selects the default.
type Limits struct {
	CPUShares int64 `json:"cpu_shares,omitempty" description:"CPU weight. Default 256, at most 1024."`
	MemoryMB  int64 `json:"memory_mb,omitempty" description:"Memory in MiB. Default 512, at most 8192."`
	DiskMB    int64 `json:"disk_mb,omitempty" description:"Disk space in MiB. Default 1024, at most 16384."`
	MaxPIDs   int64 `json:"max_pids,omitempty" description:"Number of processes and threads, excluding those of the jail's init. Default 128, at most 4096."`
}

// Mount makes a host path available in the jail.
type Mount struct {
	Source string `json:"source" required:"true" description:"A host path that the configuration allows to be mounted."`
	Target string `json:"target" required:"true" description:"A path in the jail."`
	Write  bool   `json:"write,omitempty" description:"Mount writable. Default: read-only."`
}

// Workspace makes a host directory available in the jail, copy-on-write.
type Workspace struct {
	Source string `json:"source" required:"true" description:"A host directory."`
	Target string `json:"target,omitempty" description:"Default: the same path as source."`
}

// Jail is the current state of a jail.
type Jail struct {
	ID     id.Jail           `json:"id" required:"true"`
	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	State  string            `json:"state" required:"true" enum:"created,starting,running,paused,stopped,failed"`
	Reason string            `json:"reason,omitempty" description:"Why the jail failed, or stopped without a request."`
	Node   string            `json:"node,omitempty" description:"Name of its node, in lists of all nodes."`

	Creator id.Token `json:"creator,omitempty" description:"The token or E2B key with which the jail was created, and whose quota it counts towards."`

	Conditions []Condition `json:"conditions,omitempty" description:"Persistent problems that the state does not show."`

	Backend   string            `json:"backend" required:"true"`
	Runtime   string            `json:"runtime,omitempty"`
	Rootfs    Rootfs            `json:"rootfs"`
	Digest    string            `json:"digest,omitempty" description:"Digest of the root filesystem."`
	Limits    Limits            `json:"limits"`
	Network   string            `json:"network" required:"true" enum:"isolated,proxy,bridged,full"`
	Group     string            `json:"network_group,omitempty"`
	Hostname  string            `json:"hostname,omitempty"`
	Env       map[string]string `json:"env,omitempty" description:"Environment variables. Hidden from viewers."`
	Cwd       string            `json:"cwd,omitempty"`
	User      string            `json:"user,omitempty"`
	Command   []string          `json:"command,omitempty"`
	Mounts    []Mount           `json:"mounts,omitempty"`
	Workspace *Workspace        `json:"workspace,omitempty"`
	Observe   Observe           `json:"observe"`
	Snapshots Snapshots         `json:"snapshots,omitzero"`
	Origin    *Origin           `json:"origin,omitempty" description:"The snapshot that the jail was made from."`
	Nearest   id.Snapshot       `json:"nearest,omitempty" description:"The snapshot that was last taken of the jail, that it was made from, or that it was last rewound to."`
	CreatedAt time.Time         `json:"created_at" required:"true"`
	StartedAt *time.Time        `json:"started_at,omitempty"`
	StoppedAt *time.Time        `json:"stopped_at,omitempty"`
	Usage     *Usage            `json:"usage,omitempty" description:"Current resource usage. Only in the response for a single jail that has processes."`
	Links     map[string]string `json:"links,omitempty"`

	Observation *Observation `json:"observation,omitempty" description:"State of the recording. Only in the response for a single jail."`
}

// Condition is a persistent problem of a jail.
type Condition struct {
	Type   string `json:"type" required:"true" enum:"disk_read_only,events_not_written" description:"disk_read_only: the filesystem had an error and is read-only until the jail is stopped and started. events_not_written: the jail is frozen because its events cannot be written, and continues when they can."`
	Detail string `json:"detail" required:"true" description:"Description of the problem."`
	Remedy string `json:"remedy,omitempty" description:"How to resolve the problem."`
}

// Usage is the current resource usage of a jail.
type Usage struct {
	CPUMS       int64    `json:"cpu_ms" description:"CPU time since the start, in milliseconds."`
	MemoryBytes int64    `json:"memory_bytes" description:"Memory usage in bytes."`
	MemoryPeak  int64    `json:"memory_peak_bytes" description:"Peak memory usage in bytes."`
	PIDs        int64    `json:"pids" description:"Number of processes and threads, excluding those of the jail's init."`
	MaxPIDs     int64    `json:"max_pids"`
	DiskBytes   int64    `json:"disk_bytes" description:"Bytes written by the jail."`
	DiskLimit   int64    `json:"disk_limit_bytes"`
	OOMKills    int64    `json:"oom_kills" description:"Number of processes that the kernel's OOM killer ended."`
	RxBytes     int64    `json:"rx_bytes" description:"Bytes received."`
	TxBytes     int64    `json:"tx_bytes" description:"Bytes sent."`
	NotMeasured []string `json:"not_measured,omitempty" description:"Fields that this backend cannot measure."`
}

// StopJail configures how a jail is stopped. The request body is optional.
type StopJail struct {
	GraceMS *int64 `json:"grace_ms,omitempty" minimum:"0" description:"Milliseconds between SIGTERM and SIGKILL. Default: 10000. 0: SIGKILL at once."`
}

// Change is a difference between a jail's files and its root filesystem.
type Change struct {
	Path string `json:"path" required:"true"`
	Kind string `json:"kind" required:"true" enum:"added,modified,deleted,metadata,renamed" description:"metadata: only attributes of the file changed, not its content."`
	Type string `json:"type,omitempty" description:"file, dir, symlink, fifo, socket, char or block."`
	Size int64  `json:"size,omitempty" description:"Size in bytes."`
	Mode string `json:"mode,omitempty" description:"Permission bits, in octal."`

	From string   `json:"from,omitempty" description:"For a renamed file: its former path."`
	What []string `json:"what,omitempty" description:"What differs, if the file is on both sides: content, mode, owner, times, xattrs."`

	Diff   string `json:"diff,omitempty" description:"With content=unified: the unified diff (diff -u)."`
	NoDiff string `json:"no_diff,omitempty" description:"With content=unified: why there is no diff: binary, too large, or modified during the comparison."`
}
