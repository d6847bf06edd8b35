// Package e2b serves sandboxes to clients of the E2B protocol. It creates, pauses, resumes,
// forks and removes sandboxes, and routes requests for their ports and files to e2b/envd.
//
// A sandbox is a jail with the same observation and policy enforcement as any other. Package e2b
// keeps a record of the properties that only the protocol has.
package e2b

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// State is the state of a sandbox.
type State string

const (
	Creating State = "creating" // the jail may exist; after a daemon restart without a jail, the record is removed: no client has seen it
	Running  State = "running"
	Pausing  State = "pausing" // the jail is frozen; it runs again after a daemon restart
	Paused   State = "paused"
	Resuming State = "resuming" // the jail may run; its state decides after a daemon restart
	Killing  State = "killing"  // completed after a daemon restart
)

// next lists the legal state changes. A killed sandbox has no state.
var next = map[State][]State{
	Creating: {Running, Killing},
	Running:  {Pausing, Paused, Killing},
	Pausing:  {Running, Paused, Killing},
	Paused:   {Resuming, Killing},
	Resuming: {Running, Paused, Killing},
}

// A Sandbox is the record of a sandbox.
type Sandbox struct {
	ID       string            `json:"id"`
	Team     id.Token          `json:"team"` // the key that created it
	Jail     id.Jail           `json:"jail,omitempty"`
	State    State             `json:"state"`
	Template string            `json:"template"`
	Alias    string            `json:"alias,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Env      map[string]string `json:"env,omitempty"` // for its commands
	Dir      string            `json:"dir,omitempty"` // working directory of its commands; "" is the user's home
	User     string            `json:"user,omitempty"`
	Volumes  []VolumeMount     `json:"volumes,omitempty"`

	CPU      int   `json:"cpu"`
	MemoryMB int64 `json:"memory_mb"`
	DiskMB   int64 `json:"disk_mb"`

	Started time.Time     `json:"started"`
	End     time.Time     `json:"end"`
	Timeout time.Duration `json:"timeout"` // at creation

	AutoPause  bool `json:"auto_pause,omitempty"`  // pause instead of kill at the timeout
	FilesOnly  bool `json:"files_only,omitempty"`  // pause without memory at the timeout
	AutoResume bool `json:"auto_resume,omitempty"` // resume on a request

	Internet *bool   `json:"internet,omitempty"` // as requested
	Network  Network `json:"network,omitzero"`

	Token   string `json:"token,omitempty"`   // access token for envd; "" means none is required
	Traffic string `json:"traffic,omitempty"` // access token for its ports

	Image id.Snapshot `json:"image,omitempty"` // snapshot to resume from; "" means files only
}

// move changes the state. It returns fault.Conflict if the change is not legal.
func (b *Sandbox) move(to State) error {
	if !slices.Contains(next[b.State], to) {
		return fault.Newf(fault.Conflict, "e2b.move", b.ID, "the sandbox is %s", b.State)
	}
	b.State = to
	return nil
}

// public reports whether the sandbox's ports are accessible without a token.
func (b *Sandbox) public() bool { return b.Network.Public == nil || *b.Network.Public }

// A VolumeMount is a volume mounted in a sandbox.
type VolumeMount struct {
	Name string `json:"name"`
	Path string `json:"path"`
	ID   string `json:"id,omitempty"` // id of the volume, in stored records
}

// A Store stores the records of sandboxes. Put returns after the record is durable (it survives
// a power failure). Delete succeeds if the record does not exist.
type Store interface {
	Put(ctx context.Context, b Sandbox) error
	All(ctx context.Context) ([]Sandbox, error)
	Delete(ctx context.Context, sandbox string) error
}

var letters = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// idLen is the length of an id: one letter and 100 random bits.
const idLen = 21

// newID returns an unguessable name that is valid as a DNS label.
func newID() string {
	var b [13]byte
	rand.Read(b[:]) // never fails
	return "i" + letters.EncodeToString(b[:])[:idLen-1]
}

// validID reports whether s is a valid sandbox id.
func validID(s string) bool {
	return len(s) == idLen && s[0] == 'i' && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// newToken returns 256 random bits.
func newToken() string {
	var b [32]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
