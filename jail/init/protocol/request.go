package protocol

import (
	"io/fs"
	"time"

	"glasshouse/id"
)

// Op names an operation. The comment of each constant lists the frames that follow the
// Request. Instead, every operation can end with an Error frame, or with a Parked frame as the
// first reply, which means that the operation was not started.
type Op string

const (
	OpHello     Op = "hello"     // ← Reply(Hello)
	OpExec      Op = "exec"      // ← Reply(ExecStatus); then, with Attach set, as OpAttach after its Reply
	OpAttach    Op = "attach"    // ← Reply(ExecStatus) ← Chunk… → Ack… ← End(ExecStatus) or Parked
	OpStdin     Op = "stdin"     // ← Reply(StdinBegun) → Data… ← Ack… → End(StdinEnd) ← End or Parked
	OpResize    Op = "resize"    // ← Reply(ExecStatus)
	OpSignal    Op = "signal"    // ← Reply(ExecStatus)
	OpTerminate Op = "terminate" // ← Reply(Remaining)
	OpWait      Op = "wait"      // ← Reply(ExecStatus) after the end of the command, or Parked
	OpStatus    Op = "status"    // ← Reply(ExecStatus)
	OpExecs     Op = "execs"     // ← Reply(ExecStatus)… ← End
	OpForget    Op = "forget"    // ← Reply(ExecStatus)

	OpStat   Op = "stat"   // ← Reply(FileInfo)
	OpList   Op = "list"   // ← Reply([]FileInfo)… ← End(Listed)
	OpRead   Op = "read"   // ← Reply(FileInfo) ← Data… ← End
	OpWrite  Op = "write"  // ← Reply → Data… → End ← End(FileInfo)
	OpMkdir  Op = "mkdir"  // ← Reply
	OpRemove Op = "remove" // ← Reply
	OpMove   Op = "move"   // ← Reply
	OpTar    Op = "tar"    // ← Reply ← Data… ← End
	OpUntar  Op = "untar"  // ← Reply → Data… → End ← End
	OpWatch  Op = "watch"  // ← Reply ← Event… ← Parked

	OpDial   Op = "dial"   // ← Reply ⇄ bytes, no frames, until both ends are closed
	OpListen Op = "listen" // ← Reply
	OpAccept Op = "accept" // ← Reply after a process has connected, ⇄ bytes as for dial; or Parked

	OpPark     Op = "park"     // ← Reply when no other connection is left
	OpBranched Op = "branched" // ← Reply(BranchedReply)
	OpEnforce  Op = "enforce"  // ← Reply(Enforced)
	OpKeep     Op = "keep"     // ← Reply → one byte with a descriptor ← Reply
)

// Request is the first frame of a connection. Only the fields for its operation are used.
type Request struct {
	Version int `json:"v"`
	Op      Op  `json:"op"`

	Exec   *Exec   `json:"exec,omitempty"`   // exec
	Attach *Attach `json:"attach,omitempty"` // exec, attach
	ID     id.Exec `json:"id,omitempty"`     // attach, stdin, resize, signal, wait, status, forget
	Size   *Size   `json:"size,omitempty"`   // resize
	Signal string  `json:"signal,omitempty"` // signal, terminate: "TERM", "SIGTERM" or "15"
	Group  bool    `json:"group,omitempty"`  // signal

	Port int `json:"port,omitempty"` // dial: port of the jail's loopback; listen, accept: alternative to Path

	Path      string        `json:"path,omitempty"`      // file operations; move: the source; listen, accept: the socket
	To        string        `json:"to,omitempty"`        // move
	After     string        `json:"after,omitempty"`     // list: only names that sort after this one
	Offset    int64         `json:"offset,omitempty"`    // read
	Limit     int64         `json:"limit,omitempty"`     // list, read
	Mode      fs.FileMode   `json:"mode,omitempty"`      // mkdir
	Parents   bool          `json:"parents,omitempty"`   // mkdir
	Owner     *Owner        `json:"owner,omitempty"`     // mkdir: owner of the new directories
	Recursive bool          `json:"recursive,omitempty"` // remove, watch
	Replace   bool          `json:"replace,omitempty"`   // move
	Write     *WriteOptions `json:"write,omitempty"`     // write

	Timeout  time.Duration `json:"patience,omitempty"` // park: maximal wait for operations that cannot be interrupted
	Keep     bool          `json:"keep,omitempty"`     // park: keep the notification listener; the jail can then not be dumped
	Branched *Branched     `json:"branched,omitempty"` // branched
	Filter   []byte        `json:"filter,omitempty"`   // enforce: BPF
}

// Attach are the options for reading output.
type Attach struct {
	// From is the first offset to read. A negative value means the oldest available one.
	From int64 `json:"from,omitempty"`

	// Lossless makes the command wait, as on a full pipe, until this reader has acknowledged
	// the output that would be overwritten. A reader that is silent for a grace time loses
	// this right. If the connection is lost, the reader's position is retained for the same
	// time, so that it can reconnect.
	Lossless bool `json:"lossless,omitempty"`

	// Follow streams output until the command has ended. Otherwise the stream ends after the
	// output that exists at present.
	Follow bool `json:"follow,omitempty"`
}

// Hello describes an init.
type Hello struct {
	Version int       `json:"version"`
	PID     int       `json:"pid"` // in the jail; 1 except in tests
	Started time.Time `json:"started"`
}

// Enforced is the reply to OpEnforce.
type Enforced struct {
	FD int `json:"fd"` // descriptor number of the notification listener in init
}

// Remaining is the number of processes in the jail except for init.
type Remaining struct {
	Processes int `json:"processes"`
}

// StdinBegun is the reply to a writer of stdin. Counted means that init acknowledges the bytes
// of this connection that were written to the command. Given is the number of bytes that all
// connections have written to the command.
type StdinBegun struct {
	ExecStatus
	Counted bool  `json:"counted"`
	Written int64 `json:"given"`
}

// StdinEnd ends a stdin stream of a client.
type StdinEnd struct {
	Keep bool `json:"keep,omitempty"` // leave it open for the next writer
}

// An Owner is the owner of files.
type Owner struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// Listed ends a listing.
type Listed struct {
	More bool `json:"more"` // there are more names after the last one
}

// Limits of both sides.
const (
	DefaultRing = 1 << 20
	MaxRing     = 16 << 20
	MaxPath     = 4096
	MaxListPage = 10_000 // entries per page of a listing
	MaxRunning  = 1024   // concurrent commands
	MaxFinished = 64     // finished commands that init keeps

	// StdinWindow is the maximum number of stdin bytes that are sent but not yet acknowledged. The
	// client keeps them to send them again.
	StdinWindow = 2 * MaxData

	// MaxNote is the maximal size of Exec.Note.
	MaxNote = 64 << 10

	// MaxStatusArgv is the maximal size of the command line in ExecStatus. A longer one is
	// truncated and ends with "…".
	MaxStatusArgv = 16 << 10
)
