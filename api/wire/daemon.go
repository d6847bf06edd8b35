package wire

import (
	"time"

	"glasshouse/id"
)

// CreateToken creates a bearer token.
type CreateToken struct {
	Name      string     `json:"name" required:"true" description:"Name of the token's user."`
	Role      string     `json:"role" required:"true" enum:"admin,operator,viewer,agent"`
	ExpiresAt *time.Time `json:"expires_at,omitempty" description:"Default: never."`
	Quota     Quota      `json:"quota,omitzero" description:"What the jails that are created with the token may demand together. Default: no limits."`
}

// Quota limits what the jails that are created with a token may demand together.
type Quota struct {
	Jails  int   `json:"jails,omitempty" minimum:"0" description:"Number of jails. 0 is no limit."`
	Memory int64 `json:"memory_bytes,omitempty" minimum:"0" description:"Sum of the memory limits of the jails that are not stopped, in bytes. 0 is no limit."`
	Disk   int64 `json:"disk_bytes,omitempty" minimum:"0" description:"Sum of the disk limits of the jails, in bytes. 0 is no limit. Snapshots do not count."`
}

// EditToken changes a token.
type EditToken struct {
	Quota EditQuota `json:"quota" required:"true"`
}

// EditQuota changes limits of a quota. Those that are not set stay as they are.
type EditQuota struct {
	Jails  *int   `json:"jails,omitempty" minimum:"0" description:"Number of jails. 0 removes the limit."`
	Memory *int64 `json:"memory_bytes,omitempty" minimum:"0" description:"Memory in bytes. 0 removes the limit."`
	Disk   *int64 `json:"disk_bytes,omitempty" minimum:"0" description:"Disk space in bytes. 0 removes the limit."`
}

// Demand is what the jails of a token demand according to their limits.
type Demand struct {
	Jails  int   `json:"jails" required:"true"`
	Memory int64 `json:"memory_bytes" required:"true" description:"Stopped jails have no memory."`
	Disk   int64 `json:"disk_bytes" required:"true"`
}

// CreateE2BKey creates a key for clients of the E2B protocol.
type CreateE2BKey struct {
	Name  string `json:"name,omitempty" maxLength:"64" description:"Name of the key's user. Default: the caller's name."`
	Quota Quota  `json:"quota,omitzero" description:"What the sandboxes and template builds of the key may demand together. Default: no limits."`
}

// E2BKey is a key for clients of the E2B protocol, with the settings that they need.
type E2BKey struct {
	ID  id.Token `json:"id" required:"true" description:"Id of the token. Use it to revoke the key."`
	Key string   `json:"key" required:"true" description:"Value for E2B_API_KEY. It is returned only once."`
	URL string   `json:"url" required:"true" description:"Value for E2B_API_URL and E2B_SANDBOX_URL."`

	Domain string   `json:"domain" required:"true" description:"Value for E2B_DOMAIN. Sandbox ports are served on subdomains of it."`
	Reach  []string `json:"reach" required:"true" description:"Hosts that sandboxes can reach, as set by e2b.reach. * is every host on the Internet."`
	CA     string   `json:"ca,omitempty" description:"PEM certificate of the certificate authority that clients must trust, if the daemon created one."`
}

// Token is a bearer token. Its secret is returned only when the token is created.
type Token struct {
	ID        id.Token   `json:"id" required:"true"`
	Name      string     `json:"name" required:"true"`
	Role      string     `json:"role" required:"true" enum:"admin,operator,viewer,agent"`
	Token     string     `json:"token,omitempty" description:"The secret. Only in the response to the token's creation."`
	CreatedAt time.Time  `json:"created_at" required:"true"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	Quota     Quota      `json:"quota,omitzero"`
	Used      *Demand    `json:"used,omitempty" description:"What the jails that were created with the token demand now, on all nodes of the fleet. Only in lists."`
}

// Health reports that the daemon is alive, or ready to serve requests.
type Health struct {
	Status string `json:"status" required:"true" enum:"ok"`
}

// Version identifies the running daemon.
type Version struct {
	Version   string    `json:"version" required:"true"`
	Commit    string    `json:"commit,omitempty"`
	Go        string    `json:"go" required:"true"`
	Kernel    string    `json:"kernel,omitempty" description:"Release of the host's kernel."`
	StartedAt time.Time `json:"started_at" required:"true"`
}

// Node is one of the daemons that share a database of runs.
type Node struct {
	ID       string `json:"id" required:"true" description:"Instance ID of the daemon's data directory."`
	Name     string `json:"name,omitempty" description:"Name of its host."`
	Version  string `json:"version,omitempty"`
	Address  string `json:"address,omitempty" description:"Where the daemons of the fleet reach it, as host:port. Empty: they do not."`
	Front    bool   `json:"front,omitempty" description:"It has no jails of its own, and passes requests to the other daemons."`
	Draining bool   `json:"draining,omitempty" description:"It gets no new jails and sessions."`
	Jails    int    `json:"jails" description:"Number of its jails, up to a second ago."`
	State    string `json:"state" required:"true" enum:"up,lost" description:"lost: its lease expired, and its sessions were distributed among the other daemons."`
	Self     bool   `json:"self" required:"true" description:"Whether it is the daemon that answers."`
	LeaseMS  int64  `json:"lease_ms" required:"true" description:"Rest of its lease in milliseconds, by the clock of the database. Negative: the lease has expired."`
	Epoch    int64  `json:"epoch" required:"true" description:"Rises when another process may have its sessions. Writes with an earlier epoch are rejected."`
	Sessions int    `json:"sessions" required:"true" description:"Number of sessions whose runs it executes."`
	Runs     int    `json:"runs" required:"true" description:"Number of active runs in these sessions."`

	Arch       string `json:"arch,omitempty" description:"Architecture of its host, as in Go: amd64, arm64."`
	CPU        string `json:"cpu,omitempty" description:"Model of the processor. Snapshots with processes can be used on hosts with the same one."`
	Kernel     string `json:"kernel,omitempty" description:"Release of the kernel."`
	CPUs       int    `json:"cpus,omitempty"`
	Memory     int64  `json:"memory_bytes,omitempty"`
	FreeMemory int64  `json:"free_memory_bytes,omitempty" description:"Memory that can be used without swapping, some seconds ago."`
	Disk       int64  `json:"disk_bytes,omitempty" description:"Size of the file system with its data directory."`
	FreeDisk   int64  `json:"free_disk_bytes,omitempty" description:"Free space there, some seconds ago."`

	UnshippedBytes int64 `json:"unshipped_bytes,omitempty" description:"Size of the newest snapshots of its runs that are not in the object store yet. If the node is lost, these runs continue with earlier files."`
}

// UpdateNode changes a daemon of the fleet.
type UpdateNode struct {
	Draining *bool `json:"draining,omitempty" description:"Whether it gets no new jails and sessions. Those that it has stay."`
}

// NodeToken lets a daemon join the fleet.
type NodeToken struct {
	Token     string `json:"token" required:"true" description:"Valid once, for ten minutes."`
	Address   string `json:"address" required:"true" description:"Address of the daemon that issues the certificate."`
	Authority string `json:"authority" required:"true" description:"SHA-256 of the certificate of the fleet's authority, by which the daemon that joins recognizes the fleet."`
}

// MoveJail moves a jail to another node of the fleet.
type MoveJail struct {
	Node string `json:"node,omitempty" description:"Name or ID of the node. Default: the node with the fewest jails."`
}

// MovedJail is a jail that has moved.
type MovedJail struct {
	ID   id.Jail `json:"id" required:"true"`
	Node string  `json:"node" required:"true" description:"ID of the node that has the jail now."`
	Name string  `json:"name" required:"true" description:"Name of the node."`
}

// Backend is an isolation backend and whether it is usable on this host.
type Backend struct {
	Name    string            `json:"name" required:"true"`
	Runtime string            `json:"runtime,omitempty"`
	Usable  bool              `json:"usable" required:"true"`
	Reason  string            `json:"reason,omitempty" description:"Why it is not usable."`
	Remedy  string            `json:"remedy,omitempty" description:"How to make the backend usable."`
	Lacks   map[string]string `json:"lacks,omitempty" description:"Limits and features that are unavailable on this host, each with the reason."`
}

// Probe is the result of checking one host mechanism.
type Probe struct {
	Name    string `json:"name" required:"true"`
	Status  string `json:"status" required:"true" enum:"ok,unsupported,unknown,warning" description:"unknown: the probe was inconclusive. warning: the operator should act."`
	Need    string `json:"need,omitempty" enum:"required,recommended,optional" description:"required: no jail runs on this host without it. recommended: jails run without it, but Glasshouse lacks a function or is weaker. optional: for special uses, or an alternative."`
	Purpose string `json:"purpose,omitempty" description:"What Glasshouse uses the mechanism for."`
	Detail  string `json:"detail,omitempty" description:"What the probe found."`
	Reason  string `json:"reason,omitempty" description:"Why it is not ok."`
	Remedy  string `json:"remedy,omitempty" description:"How to enable the mechanism."`
}

// Image is an unpacked root filesystem.
type Image struct {
	Digest    string    `json:"digest" required:"true"`
	Sources   []string  `json:"sources" required:"true" description:"References that resolved to this image."`
	Size      int64     `json:"size" required:"true" description:"Total size of its files, in bytes."`
	Files     int64     `json:"files" required:"true"`
	CreatedAt time.Time `json:"created_at" required:"true"`
	Skipped   []string  `json:"skipped,omitempty" description:"Archive entries that were not unpacked, with the reason."`
}

// Prepared is the result of preparing a root filesystem.
type Prepared struct {
	Digest string `json:"digest" required:"true"`
	Source string `json:"source" required:"true" description:"The requested reference and the reference to which it was resolved."`
}

// Storage is the disk usage of the daemon by category, and the state of the warm pool.
type Storage struct {
	At       time.Time     `json:"at" required:"true" description:"When the usage was measured. The result is cached."`
	Total    int64         `json:"total_bytes" required:"true" description:"Size of the file system that contains the data directory."`
	Free     int64         `json:"free_bytes" required:"true" description:"Free space of that file system available to the daemon."`
	Parts    []StoragePart `json:"parts" required:"true" description:"Parts of the data directory, largest first."`
	Pool     []Spares      `json:"pool" required:"true" description:"The warm pool: jails created in advance."`
	Warnings []string      `json:"warnings,omitempty" description:"Limits that are exceeded, and low free space, each with a remedy."`
	PoolSize int           `json:"pool_size" required:"true" description:"Target number of spare jails for each configuration. 0 disables the pool."`
}

// StoragePart is the disk usage of a part of the data directory.
type StoragePart struct {
	Name  string `json:"name" required:"true" enum:"events,jails,snapshots,images,database,capabilities,agents,other"`
	Bytes int64  `json:"bytes" required:"true" description:"Disk usage in bytes."`
	Files int64  `json:"files" required:"true"`
}

// Spares describes the jails of one configuration in the warm pool.
type Spares struct {
	Backend string    `json:"backend" required:"true"`
	Runtime string    `json:"runtime,omitempty"`
	Network string    `json:"network" required:"true"`
	Digest  string    `json:"digest,omitempty" description:"Digest of the root filesystem."`
	Ready   int       `json:"ready" required:"true" description:"Number of jails ready for use."`
	Making  int       `json:"making" required:"true" description:"Number of jails being created."`
	Used    time.Time `json:"used_at" required:"true" description:"When a jail of this configuration was last requested."`
}
