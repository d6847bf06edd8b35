package protocol

import (
	"io/fs"
	"time"

	"glasshouse/id"
)

// Op names an operation. Its comment says which frames follow the Request.
// Every operation can end with an Error frame instead of what is written here.
// Any can be answered at once with Parked, and then was not begun.
type Op string

const (
	OpHello     Op = "hello"     // ← Reply(Hello)
	OpExec      Op = "exec"      // ← Reply(ExecStatus); then, with Attach set, as OpAttach after its Reply
	OpAttach    Op = "attach"    // ← Reply(ExecStatus) ← Chunk… → Ack… ← End(ExecStatus) or Parked
	OpStdin     Op = "stdin"     // ← Reply(StdinBegun) → Data… ← Ack… → End(StdinEnd) ← End or Parked
	OpResize    Op = "resize"    // ← Reply(ExecStatus)
	OpSignal    Op = "signal"    // ← Reply(ExecStatus)
	OpTerminate Op = "terminate" // ← Reply(Remaining)
	OpWait      Op = "wait"      // ← Reply(ExecStatus) once it has ended, or Parked
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
	OpAccept Op = "accept" // ← Reply once somebody has come, ⇄ bytes as of dial; or Parked

	OpPark     Op = "park"     // ← Reply when no other connection is left
	OpBranched Op = "branched" // ← Reply(BranchedReply)
	OpEnforce  Op = "enforce"  // ← Reply(Enforced)
	OpKeep     Op = "keep"     // ← Reply → one byte with a descriptor ← Reply
)

// Request is the first frame of a connection. Only the fields its operation
// names are looked at.
type Request struct {
	Version int `json:"v"`
	Op      Op  `json:"op"`

	Exec   *Exec   `json:"exec,omitempty"`   // exec
	Attach *Attach `json:"attach,omitempty"` // exec, attach
	ID     id.Exec `json:"id,omitempty"`     // attach, stdin, resize, signal, wait, status, forget
	Size   *Size   `json:"size,omitempty"`   // resize
	Signal string  `json:"signal,omitempty"` // signal, terminate: "TERM", "SIGTERM" or "15"
	Group  bool    `json:"group,omitempty"`  // signal

	Port int `json:"port,omitempty"` // dial: of the jail's loopback; listen, accept: in place of a path

	Path      string        `json:"path,omitempty"`      // every file operation; of move: from; listen, accept: the socket
	To        string        `json:"to,omitempty"`        // move
	After     string        `json:"after,omitempty"`     // list: names that sort after this one
	Offset    int64         `json:"offset,omitempty"`    // read
	Limit     int64         `json:"limit,omitempty"`     // list, read
	Mode      fs.FileMode   `json:"mode,omitempty"`      // mkdir
	Parents   bool          `json:"parents,omitempty"`   // mkdir
	Owner     *Owner        `json:"owner,omitempty"`     // mkdir: of what is made
	Recursive bool          `json:"recursive,omitempty"` // remove, watch
	Replace   bool          `json:"replace,omitempty"`   // move
	Write     *WriteOptions `json:"write,omitempty"`     // write

	Patience time.Duration `json:"patience,omitempty"` // park: for what can only be waited for
	Keep     bool          `json:"keep,omitempty"`     // park: what the commands ask on; such a jail cannot be dumped
	Branched *Branched     `json:"branched,omitempty"` // branched
	Filter   []byte        `json:"filter,omitempty"`   // enforce: BPF
}

// Attach says how output is read.
type Attach struct {
	// From is the first offset wanted; below 0 means the oldest still kept.
	From int64 `json:"from,omitempty"`

	// Lossless makes the command wait, as on a full pipe, rather than have
	// output overwritten that this reader has not taken. A reader that takes
	// nothing for a grace time loses the privilege. If the connection breaks,
	// its place is held for the same time, so that it can come back.
	Lossless bool `json:"lossless,omitempty"`

	// Follow goes on until the command has ended. Otherwise the stream ends
	// with the output that is there now.
	Follow bool `json:"follow,omitempty"`
}

// Hello is how an init introduces itself.
type Hello struct {
	Version int       `json:"version"`
	PID     int       `json:"pid"` // inside the jail; 1 but in tests
	Started time.Time `json:"started"`
}

// Enforced is the answer to OpEnforce.
type Enforced struct {
	FD int `json:"fd"` // init's number of the descriptor on which its filter asks
}

// Remaining is how many processes but init are left in the jail.
type Remaining struct {
	Processes int `json:"processes"`
}

// StdinBegun is the answer to a writer of stdin. Counted says that init
// acknowledges what the command was given of this connection's bytes. Given is
// what it was ever given, by anybody.
type StdinBegun struct {
	ExecStatus
	Counted bool  `json:"counted"`
	Given   int64 `json:"given"`
}

// StdinEnd ends what a client writes to a command's stdin.
type StdinEnd struct {
	Keep bool `json:"keep,omitempty"` // leave it open for the next writer
}

// An Owner is whose files are.
type Owner struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// Listed ends a listing.
type Listed struct {
	More bool `json:"more"` // there are names after the last one given
}

// Bounds that both sides hold.
const (
	DefaultRing = 1 << 20
	MaxRing     = 16 << 20
	MaxPath     = 4096
	MaxListPage = 10_000 // entries of one listing; more are read page by page
	MaxRunning  = 1024   // commands running at a time
	MaxFinished = 64     // commands remembered after their end

	// StdinWindow is how many bytes of stdin may be on their way that the
	// command was not given yet. The client keeps them.
	StdinWindow = 2 * MaxData

	// MaxNote is the bytes of what a command's status repeats for who started it.
	MaxNote = 64 << 10

	// MaxStatusArgv is the bytes of a command line that ExecStatus repeats.
	// What is over is cut off and an element "…" added.
	MaxStatusArgv = 16 << 10
)
