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

// Token is a bearer token. The secret is shown once, when it is made.
type Token struct {
	ID        id.Token   `json:"id" required:"true"`
	Name      string     `json:"name" required:"true"`
	Role      string     `json:"role" required:"true" enum:"admin,operator,viewer,agent"`
	Token     string     `json:"token,omitempty" description:"The secret itself; only in the answer to its creation."`
	CreatedAt time.Time  `json:"created_at"`
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
	Go        string    `json:"go"`
	StartedAt time.Time `json:"started_at"`
}

// Backend is what can isolate on this host, or why it cannot.
type Backend struct {
	Name    string            `json:"name" required:"true"`
	Runtime string            `json:"runtime,omitempty"`
	Usable  bool              `json:"usable"`
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
	Sources   []string  `json:"sources" description:"What was asked for and led to it."`
	Size      int64     `json:"size" description:"Bytes of its files."`
	Files     int64     `json:"files"`
	CreatedAt time.Time `json:"created_at"`
	Skipped   []string  `json:"skipped,omitempty" description:"What the archive held and the image does not, with the reason."`
}

// Prepared is a root filesystem that has been made ready.
type Prepared struct {
	Digest string `json:"digest" required:"true"`
	Source string `json:"source" description:"What was asked for, with what it was resolved to."`
}
