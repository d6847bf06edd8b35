// Package e2b serves sandboxes to clients of the E2B protocol: makes them, lets them
// rest and go on, forks and ends them, and finds them for the requests that are for
// their insides, which e2b/envd serves.
//
// A sandbox is a jail like any other, watched and governed like any other. What the
// protocol knows of it beside is its record here.
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

// State is where a sandbox is in its life.
type State string

const (
	Creating State = "creating" // its jail may be there; if it is not when the daemon comes back, nobody was told of it
	Running  State = "running"
	Pausing  State = "pausing" // its jail is frozen; it runs again if the daemon comes back
	Paused   State = "paused"
	Resuming State = "resuming" // its jail may run; what it does when the daemon comes back decides
	Killing  State = "killing"  // finished when the daemon comes back
)

// next is every legal move. One that is killed is gone.
var next = map[State][]State{
	Creating: {Running, Killing},
	Running:  {Pausing, Paused, Killing},
	Pausing:  {Running, Paused, Killing},
	Paused:   {Resuming, Killing},
	Resuming: {Running, Paused, Killing},
}

// A Sandbox is what is kept of one.
type Sandbox struct {
	ID       string            `json:"id"`
	Team     id.Token          `json:"team"` // the key that it was made with
	Jail     id.Jail           `json:"jail,omitempty"`
	State    State             `json:"state"`
	Template string            `json:"template"`
	Alias    string            `json:"alias,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Env      map[string]string `json:"env,omitempty"` // of its commands
	Dir      string            `json:"dir,omitempty"` // where they are run; "" is the user's home
	User     string            `json:"user,omitempty"`
	Volumes  []VolumeMount     `json:"volumes,omitempty"`

	CPU      int   `json:"cpu"`
	MemoryMB int64 `json:"memory_mb"`
	DiskMB   int64 `json:"disk_mb"`

	Started time.Time     `json:"started"`
	End     time.Time     `json:"end"`
	Timeout time.Duration `json:"timeout"` // it was made with

	AutoPause  bool `json:"auto_pause,omitempty"`  // at its end, rather than to be killed
	FilesOnly  bool `json:"files_only,omitempty"`  // of that: without its memory
	AutoResume bool `json:"auto_resume,omitempty"` // when somebody comes

	Internet *bool   `json:"internet,omitempty"` // as was asked
	Network  Network `json:"network,omitzero"`

	Token   string `json:"token,omitempty"`   // what its envd asks for; "" is nothing
	Traffic string `json:"traffic,omitempty"` // what its ports ask for

	Image id.Snapshot `json:"image,omitempty"` // what it goes on from; "" is its files alone
}

// move changes the state, or returns a fault.Conflict if that is not a legal move.
func (b *Sandbox) move(to State) error {
	if !slices.Contains(next[b.State], to) {
		return fault.Newf(fault.Conflict, "e2b", b.ID, "the sandbox is %s", b.State)
	}
	b.State = to
	return nil
}

// public reports whether everybody may reach the sandbox's ports.
func (b *Sandbox) public() bool { return b.Network.Public == nil || *b.Network.Public }

// A VolumeMount is a volume that a sandbox sees.
type VolumeMount struct {
	Name string `json:"name"`
	Path string `json:"path"`
	ID   string `json:"id,omitempty"` // which one of that name, where it is kept
}

// A Store keeps the records of sandboxes. Put returns when the record would survive a
// power cut; Delete forgets, also what is not there.
type Store interface {
	Put(ctx context.Context, b Sandbox) error
	All(ctx context.Context) ([]Sandbox, error)
	Delete(ctx context.Context, sandbox string) error
}

var letters = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// idLen is the length of an id: one letter and 100 random bits.
const idLen = 21

// newID returns a name that nobody guesses and that can be part of a host's.
func newID() string {
	var b [13]byte
	rand.Read(b[:]) // never fails
	return "i" + letters.EncodeToString(b[:])[:idLen-1]
}

// validID reports whether s can be the name of a sandbox.
func validID(s string) bool {
	return len(s) == idLen && s[0] == 'i' && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// newToken returns 256 random bits.
func newToken() string {
	var b [32]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
