package wire

import (
	"time"

	"glasshouse/id"
)

// CreateToken asks for a bearer token.
type CreateToken struct {
	Name      string     `json:"name" required:"true" description:"Whose it is."`
	Role      string     `json:"role" required:"true" enum:"admin,operator,viewer,agent"`
	ExpiresAt *time.Time `json:"expires_at,omitempty" description:"Default: never."`
}

// CreateE2BKey asks for a key for clients of the E2B protocol.
type CreateE2BKey struct {
	Name string `json:"name,omitempty" maxLength:"64" description:"Whose it is. Default: the caller's."`
}

// E2BKey is a key for clients of the E2B protocol, and where they find the daemon.
type E2BKey struct {
	ID  id.Token `json:"id" required:"true" description:"The token's, by which it is revoked."`
	Key string   `json:"key" required:"true" description:"For E2B_API_KEY. It is shown once."`
	URL string   `json:"url" required:"true" description:"For E2B_API_URL and E2B_SANDBOX_URL."`

	Domain string `json:"domain" required:"true" description:"For E2B_DOMAIN: the ports of sandboxes are hosts below it."`
	CA     string `json:"ca,omitempty" description:"The certificate, PEM, of the authority that clients have to trust, if the daemon has made one."`
}

// Token is a bearer token. The secret is shown once, when it is made.
type Token struct {
	ID        id.Token   `json:"id" required:"true"`
	Name      string     `json:"name" required:"true"`
	Role      string     `json:"role" required:"true" enum:"admin,operator,viewer,agent"`
	Token     string     `json:"token,omitempty" description:"The secret itself; only in the answer to its creation."`
	CreatedAt time.Time  `json:"created_at" required:"true"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

// Health is whether the daemon lives, or can serve.
type Health struct {
	Status string `json:"status" required:"true" enum:"ok"`
}

// Version is what runs.
type Version struct {
	Version   string    `json:"version" required:"true"`
	Commit    string    `json:"commit,omitempty"`
	Go        string    `json:"go" required:"true"`
	StartedAt time.Time `json:"started_at" required:"true"`
}

// Backend is what can isolate on this host, or why it cannot.
type Backend struct {
	Name    string            `json:"name" required:"true"`
	Runtime string            `json:"runtime,omitempty"`
	Usable  bool              `json:"usable" required:"true"`
	Reason  string            `json:"reason,omitempty" description:"Why it is not usable."`
	Remedy  string            `json:"remedy,omitempty"`
	Lacks   map[string]string `json:"lacks,omitempty" description:"What it cannot hold or do on this host, each with the reason."`
}

// Probe is one mechanism of the host, as the doctor found it.
type Probe struct {
	Name   string `json:"name" required:"true"`
	Status string `json:"status" required:"true" enum:"ok,unsupported,unknown" description:"unknown: the probe could not tell."`
	Detail string `json:"detail,omitempty" description:"What was found."`
	Reason string `json:"reason,omitempty" description:"Why it is not ok."`
	Remedy string `json:"remedy,omitempty"`
}

// Image is a root filesystem that is unpacked and ready to be a jail's.
type Image struct {
	Digest    string    `json:"digest" required:"true"`
	Sources   []string  `json:"sources" required:"true" description:"What was asked for and led to it."`
	Size      int64     `json:"size" required:"true" description:"Bytes of its files."`
	Files     int64     `json:"files" required:"true"`
	CreatedAt time.Time `json:"created_at" required:"true"`
	Skipped   []string  `json:"skipped,omitempty" description:"What the archive held and the image does not, with the reason."`
}

// Prepared is a root filesystem that has been made ready.
type Prepared struct {
	Digest string `json:"digest" required:"true"`
	Source string `json:"source" required:"true" description:"What was asked for, with what it was resolved to."`
}

// Storage is what the daemon keeps on the disk, by what it is for, and the jails
// that it has made ahead of need.
type Storage struct {
	At       time.Time     `json:"at" required:"true" description:"When it was counted: it is not counted anew each time that somebody asks."`
	Total    int64         `json:"total_bytes" required:"true" description:"Of the file system that the data directory is on."`
	Free     int64         `json:"free_bytes" required:"true" description:"Of it, for the daemon."`
	Parts    []StoragePart `json:"parts" required:"true" description:"Of the data directory, the largest first."`
	Pool     []Spares      `json:"pool" required:"true" description:"Jails that are made ahead of need."`
	PoolSize int           `json:"pool_size" required:"true" description:"How many of a shape are to be ready; 0 means that none are made."`
}

// StoragePart is a part of the data directory.
type StoragePart struct {
	Name  string `json:"name" required:"true" enum:"events,jails,snapshots,images,database,capabilities,agents,other"`
	Bytes int64  `json:"bytes" required:"true" description:"That it takes on the disk."`
	Files int64  `json:"files" required:"true"`
}

// Spares are the jails of one shape that are made ahead of need.
type Spares struct {
	Backend string    `json:"backend" required:"true"`
	Runtime string    `json:"runtime,omitempty"`
	Network string    `json:"network" required:"true"`
	Digest  string    `json:"digest,omitempty" description:"Of the root filesystem."`
	Ready   int       `json:"ready" required:"true"`
	Making  int       `json:"making" required:"true"`
	Used    time.Time `json:"used_at" required:"true" description:"When one was last asked for."`
}
