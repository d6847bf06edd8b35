// Package protocol defines the protocol between the daemon and a jail's init.
//
// Each operation uses one connection to the init's unix socket: the daemon sends a Request,
// then frames follow as documented at the operation, and the connection closes. Neither side
// trusts the other: every length is checked before memory is allocated for it.
package protocol

import (
	"io/fs"
	"time"

	"glasshouse/id"
)

// Version changes if an older init could misinterpret requests of a newer daemon.
const Version = 1

// Exec asks init to run a command. Zero values mean: the jail's environment,
// the root directory, root, no stdin, no timeout.
type Exec struct {
	ID      id.Exec       `json:"id"`
	Argv    []string      `json:"argv"`
	Env     []string      `json:"env,omitempty"`     // KEY=VALUE; the whole environment
	Cwd     string        `json:"cwd,omitempty"`     // must exist; ~ is the user's home
	User    string        `json:"user,omitempty"`    // name, uid, name:group or uid:gid, looked up in the jail
	Stdin   bool          `json:"stdin,omitempty"`   // keep stdin open for Client.Stdin; otherwise /dev/null
	PTY     *Size         `json:"pty,omitempty"`     // run on a terminal of this size
	Timeout time.Duration `json:"timeout,omitempty"` // after it the process group gets SIGKILL
	Ring    int           `json:"ring,omitempty"`    // output kept, in bytes; 0 means 1 MiB
	Note    string        `json:"note,omitempty"`    // data of the caller, returned with the status
}

// Size is the size of a terminal.
type Size struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

// ExecStatus is the status of one command.
type ExecStatus struct {
	ID       id.Exec    `json:"id"`
	Argv     []string   `json:"argv"`
	Note     string     `json:"note,omitempty"`
	PID      int        `json:"pid"` // inside the jail
	PTY      bool       `json:"pty,omitempty"`
	Started  time.Time  `json:"started"`
	Ended    *time.Time `json:"ended,omitempty"`     // nil while the command runs
	Code     int        `json:"code"`                // exit code, or 128+signal
	Signal   string     `json:"signal,omitempty"`    // "KILL" if a signal ended it
	TimedOut bool       `json:"timed_out,omitempty"` // the timeout ended it
	Stdout   int64      `json:"stdout_bytes"`        // bytes written so far, including dropped ones
	Stderr   int64      `json:"stderr_bytes"`
	Oldest   int64      `json:"oldest"` // first available output offset
	Next     int64      `json:"next"`   // offset of the next output byte
}

// Stream is the source of output. All output of a terminal is Stdout.
type Stream byte

const (
	Stdout Stream = 1
	Stderr Stream = 2
)

// Chunk is a piece of output. Offsets count the bytes of both streams together,
// in the order init read them, from 0.
type Chunk struct {
	Stream Stream
	Offset int64
	Lost   int64 // bytes before Offset that have been overwritten
	Data   []byte
}

// FileInfo describes a file inside a jail. Path is absolute in the jail.
type FileInfo struct {
	Path   string      `json:"path"`
	Name   string      `json:"name"`
	Type   string      `json:"type"` // file, dir, symlink, fifo, socket, char, block
	Mode   fs.FileMode `json:"mode"` // permission bits with setuid, setgid, sticky
	Size   int64       `json:"size"`
	UID    uint32      `json:"uid"`
	GID    uint32      `json:"gid"`
	MTime  time.Time   `json:"mtime"`
	Target string      `json:"target,omitempty"` // target of a symlink

	ATime, CTime time.Time `json:"-"` // set only for files that the host reads

	Meta map[string]string `json:"meta,omitempty"` // attributes under MetaPrefix; set by Stat, List and Write
}

// Metadata of E2B clients is stored in extended attributes (xattr(7)) with the prefix
// MetaPrefix. MaxMeta bounds the size of all names and values of a file, so that they fit into
// an inode of every supported filesystem.
const (
	MetaPrefix = "user.e2b."
	MaxMeta    = 4096
)

// WriteOptions are the options of a write.
type WriteOptions struct {
	Mode    fs.FileMode `json:"mode,omitempty"`    // mode of a new file; 0 means 0644
	Append  bool        `json:"append,omitempty"`  // append; the default replaces the file atomically
	InPlace bool        `json:"place,omitempty"`   // truncate and write the existing file; the default replaces it atomically
	Parents bool        `json:"parents,omitempty"` // create missing directories, with the owner of the file if that is given
	UID     *uint32     `json:"uid,omitempty"`
	GID     *uint32     `json:"gid,omitempty"`

	Meta *map[string]string `json:"meta,omitempty"` // replaces the metadata of the file; nil keeps it
}

// FileEvent is one change that a watch reports. Overflow means that events were lost.
type FileEvent struct {
	Path string `json:"path"`
	Op   string `json:"op"` // create, write, delete, rename, attrib, overflow
	Dir  bool   `json:"dir,omitempty"`
}
