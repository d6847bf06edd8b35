// Package protocol is what the daemon and a jail's init say to each other.
//
// Each operation is one connection on the init's unix socket: the daemon sends
// a Request, then frames flow as the operation's comment says, and the
// connection closes. Both sides treat the other as a stranger: every length is
// bounded before memory is taken for it.
package protocol

import (
	"io/fs"
	"time"

	"glasshouse/id"
)

// Version changes when an older init could misunderstand a newer daemon.
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
	Timeout time.Duration `json:"timeout,omitempty"` // then the process group gets SIGKILL
	Ring    int           `json:"ring,omitempty"`    // output kept, in bytes; 0 means 1 MiB
	Note    string        `json:"note,omitempty"`    // of who starts it; its status repeats it
}

// Size is a terminal's.
type Size struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

// ExecStatus is what init knows of one command.
type ExecStatus struct {
	ID       id.Exec    `json:"id"`
	Argv     []string   `json:"argv"`
	Note     string     `json:"note,omitempty"`
	PID      int        `json:"pid"` // inside the jail
	PTY      bool       `json:"pty,omitempty"`
	Started  time.Time  `json:"started"`
	Ended    *time.Time `json:"ended,omitempty"`     // nil while it runs
	Code     int        `json:"code"`                // exit code, or 128+signal
	Signal   string     `json:"signal,omitempty"`    // "KILL" if a signal ended it
	TimedOut bool       `json:"timed_out,omitempty"` // the timeout ended it
	Stdout   int64      `json:"stdout_bytes"`        // written so far, kept or not
	Stderr   int64      `json:"stderr_bytes"`
	Oldest   int64      `json:"oldest"` // first output offset still kept
	Next     int64      `json:"next"`   // offset the next output byte will have
}

// Stream says where output came from. A terminal's output is all Stdout.
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
	Lost   int64 // bytes just before Offset that the ring no longer held
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
	Target string      `json:"target,omitempty"` // of a symlink

	ATime, CTime time.Time `json:"-"` // where it is looked at from the host

	Meta map[string]string `json:"meta,omitempty"` // what is kept with a file under MetaPrefix, of Stat, List and Write
}

// What clients of E2B keep with files, in words of their own, is in extended attributes
// whose names begin with MetaPrefix. MaxMeta bounds all of a file's, names and values:
// there is room for so much in an inode of every filesystem.
const (
	MetaPrefix = "user.e2b."
	MaxMeta    = 4096
)

// WriteOptions says how a file is written.
type WriteOptions struct {
	Mode    fs.FileMode `json:"mode,omitempty"`    // of a new file; 0 means 0644
	Append  bool        `json:"append,omitempty"`  // otherwise replaced in one step
	InPlace bool        `json:"place,omitempty"`   // otherwise replaced in one step: emptied, then written
	Parents bool        `json:"parents,omitempty"` // make missing directories, which are the file's owner's if one is given
	UID     *uint32     `json:"uid,omitempty"`
	GID     *uint32     `json:"gid,omitempty"`

	Meta *map[string]string `json:"meta,omitempty"` // takes the place of what is kept with the file; nil leaves it
}

// FileEvent is one change a watch reports. Overflow means some were missed.
type FileEvent struct {
	Path string `json:"path"`
	Op   string `json:"op"` // create, write, delete, rename, attrib, overflow
	Dir  bool   `json:"dir,omitempty"`
}
