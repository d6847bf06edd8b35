package wire

import (
	"time"

	"glasshouse/id"
)

// Observe says what of a jail is recorded. What is left out takes the daemon's
// default, which records everything.
type Observe struct {
	Syscalls   string   `json:"syscalls,omitempty" enum:"all,security,off" description:"Which system calls. security: those that change privileges, namespaces, mounts, programs or other processes."`
	Allow      []string `json:"allow,omitempty" description:"Names of system calls recorded as well, whatever syscalls says."`
	Ignore     []string `json:"ignore,omitempty" description:"Names of system calls not recorded, whatever else is said."`
	Sample     int      `json:"sample,omitempty" minimum:"0" description:"Of the calls left, one in so many is recorded."`
	Files      string   `json:"files,omitempty" enum:"all,off" description:"Operations on files."`
	Network    string   `json:"network,omitempty" enum:"packets,flows,off" description:"Each packet, or sums of them for each connection."`
	Packets    int      `json:"packet_bytes,omitempty" minimum:"0" maximum:"65535" description:"Of each packet so many bytes are kept for GET …/network/pcap."`
	OnOverload string   `json:"on_overload,omitempty" enum:"throttle,count" description:"throttle: the jail is slowed so that nothing is lost. count: it runs on, and what is lost is counted in a gap."`
}

// Observation is how a jail is being recorded.
type Observation struct {
	Sources map[string]Source `json:"sources" description:"By name: kernel, network, gvisor, ptrace. None when the jail does not run."`
	Log     EventLog          `json:"log"`
}

// Source is one way in which a jail is watched.
type Source struct {
	Seen      uint64 `json:"seen" description:"Records made since it began to watch."`
	Lost      uint64 `json:"lost" description:"Records that were not kept. Each is counted in a gap."`
	Throttled uint64 `json:"throttled" description:"Times the jail was held so that nothing is lost."`
	Err       string `json:"err,omitempty" description:"Why it does not see all that it should."`
}

// EventLog is what is kept of a jail's events.
type EventLog struct {
	Events   int64            `json:"events" description:"Records that are kept."`
	Bytes    int64            `json:"bytes" description:"What they take on disk."`
	Segments int              `json:"segments" description:"Files."`
	First    uint64           `json:"first,omitempty" description:"Sequence number of the oldest record kept."`
	Last     uint64           `json:"last" description:"Sequence number given last."`
	Lost     map[string]int64 `json:"lost,omitempty" description:"By type: records that found no room. Each is counted in a gap."`
	Err      string           `json:"err,omitempty" description:"Why nothing can be written now."`
}

// EventEnd ends a stream of a jail's events that has nothing more to say: the
// jail is gone, or all that was asked for has been sent. Its data is {}. Other
// events are named by the type of their record.
const EventEnd = "end"

// Event is one record of what a jail did. Which fields there are follows from
// the type; docs/events.md has them all. Strings are bytes of the jail's: one
// that is not UTF-8 is written as the escape \udc80 to \udcff.
type Event struct {
	Type string  `json:"type" required:"true" enum:"syscall,file,net,proc,gap,usage,lineage"`
	Seq  uint64  `json:"seq" required:"true" description:"Gapless in one jail, from 1; in one made from a snapshot, from where its parent was."`
	TS   int64   `json:"ts" required:"true" description:"Milliseconds since 1970."`
	NS   int64   `json:"ns,omitempty" description:"Monotonic nanoseconds of the host."`
	Jail id.Jail `json:"jail" required:"true"`

	PID     int32  `json:"pid,omitempty" description:"Inside the jail."`
	TID     int32  `json:"tid,omitempty"`
	HostPID int32  `json:"host_pid,omitempty"`
	Comm    string `json:"comm,omitempty"`

	NR   int32    `json:"nr,omitempty"`
	Name string   `json:"name,omitempty" description:"Of the system call."`
	ABI  string   `json:"abi,omitempty" description:"If it is not the machine's own."`
	Args []uint64 `json:"args,omitempty"`
	Ret  *int64   `json:"ret,omitempty" description:"Negative is -errno."`
	Dur  int64    `json:"dur_ns,omitempty"`
	Addr string   `json:"addr,omitempty"`

	Op    string `json:"op,omitempty" description:"What was done to a file, happened to a process, or was done with a snapshot."`
	Path  string `json:"path,omitempty" description:"Inside the jail."`
	To    string `json:"to,omitempty"`
	Real  string `json:"real,omitempty" description:"What the kernel opened, where that differs from path."`
	Bytes *int64 `json:"bytes,omitempty"`
	Calls int64  `json:"calls,omitempty" description:"Of reads or writes in quick succession, how many this record sums up."`
	FD    *int32 `json:"fd,omitempty"`

	Dir     string `json:"dir,omitempty" enum:"egress,ingress,loopback"`
	Proto   string `json:"proto,omitempty"`
	Src     string `json:"src,omitempty"`
	Dst     string `json:"dst,omitempty"`
	Host    string `json:"host,omitempty" description:"The name the jail asked for to get the other side's address."`
	Iface   string `json:"iface,omitempty"`
	TCP     string `json:"tcp,omitempty" description:"Flags of the packet, or all of a flow."`
	Packets int64  `json:"packets,omitempty" description:"Of a flow."`
	Begin   int64  `json:"begin,omitempty" description:"ns of a flow's first packet, or at which the process began."`

	PPID     int32    `json:"ppid,omitempty"`
	UID      *uint32  `json:"uid,omitempty"`
	GID      *uint32  `json:"gid,omitempty"`
	Exe      string   `json:"exe,omitempty"`
	Argv     []string `json:"argv,omitempty"`
	Cwd      string   `json:"cwd,omitempty"`
	Code     *int32   `json:"exit_code,omitempty"`
	Signal   string   `json:"signal,omitempty" description:"That ended the process."`
	UserNS   int64    `json:"user_ns,omitempty"`
	SystemNS int64    `json:"system_ns,omitempty"`
	RSS      int64    `json:"rss,omitempty"`

	Source  string `json:"source,omitempty" description:"Type of the records that are missing here."`
	Lost    int64  `json:"lost,omitempty" description:"How many; -1 is unknown."`
	Reason  string `json:"reason,omitempty"`
	From    uint64 `json:"from,omitempty"`
	Through uint64 `json:"through,omitempty"`

	CPU    int64 `json:"cpu_ns,omitempty"`
	Memory int64 `json:"memory_bytes,omitempty"`
	PIDs   int64 `json:"pids,omitempty"`
	Disk   int64 `json:"disk_bytes,omitempty"`
	Rx     int64 `json:"rx_bytes,omitempty"`
	Tx     int64 `json:"tx_bytes,omitempty"`

	Snapshot  id.Snapshot `json:"snapshot,omitempty"`
	Parent    id.Jail     `json:"parent,omitempty" description:"The jail that the snapshot was taken of."`
	ParentSeq *uint64     `json:"parent_seq,omitempty" description:"Of the last record in the parent's log that the snapshot knows of."`

	Denied     bool `json:"denied,omitempty" description:"seccomp refused the call before it was entered."`
	Unfinished bool `json:"unfinished,omitempty" description:"The caller died inside the call."`
	Partial    bool `json:"partial,omitempty" description:"The caller was inside the call when observation began."`
	Child      bool `json:"child,omitempty" description:"The return of fork or clone in the new task."`
	Cut        bool `json:"cut,omitempty" description:"A string or list is longer than what is kept."`
	Raced      bool `json:"raced,omitempty" description:"Memory said another path than the kernel used."`
	Injected   bool `json:"injected,omitempty" description:"Made by Glasshouse in the jail's processes."`
	Unresolved bool `json:"unresolved,omitempty" description:"The path of a descriptor is not known."`
	Existing   bool `json:"existing,omitempty" description:"Was there when observation began."`
	Thread     bool `json:"thread,omitempty" description:"Of a thread, not of a whole process."`
	ReadOnly   bool `json:"read_only,omitempty" description:"The jail's disk refuses writes after an error."`
}

// Processes is the tree of a jail's processes at one instant.
type Processes struct {
	Items     []Process `json:"items" required:"true" description:"Each after its parent, siblings as they began."`
	Count     int64     `json:"count" description:"All there ever were."`
	Forgotten int64     `json:"forgotten,omitempty" description:"That have ended and are not kept."`
	Untold    int64     `json:"untold,omitempty" description:"That are not told of: there were too many at once."`
	Lost      Lost      `json:"lost" description:"Records of processes that are missing."`
}

// Lost is how much is not known.
type Lost struct {
	Records int64 `json:"records" description:"At least."`
	Unknown bool  `json:"unknown,omitempty" description:"Some gap could not say how many."`
}

// Process is one process of a jail.
type Process struct {
	PID      int32      `json:"pid" required:"true" description:"Inside the jail."`
	PPID     int32      `json:"ppid"`
	HostPID  int32      `json:"host_pid,omitempty"`
	Depth    int        `json:"depth" description:"In the tree."`
	Children []int32    `json:"children,omitempty"`
	Threads  int        `json:"threads"`
	UID      uint32     `json:"uid"`
	GID      uint32     `json:"gid"`
	Comm     string     `json:"comm"`
	Exe      string     `json:"exe,omitempty"`
	Argv     []string   `json:"argv,omitempty"`
	Cwd      string     `json:"cwd,omitempty"`
	Cut      bool       `json:"cut,omitempty" description:"exe, argv and cwd are longer than shown."`
	State    string     `json:"state" required:"true" enum:"running,exited,killed,lost" description:"lost: it ended, and nobody saw how."`
	Began    time.Time  `json:"began"`
	Begin    int64      `json:"begin_ns" description:"With pid, which process it is: pids come back."`
	Existing bool       `json:"existing,omitempty" description:"Was there when observation began."`
	Ended    *time.Time `json:"ended,omitempty"`
	Duration int64      `json:"duration_ns,omitempty"`
	Code     *int32     `json:"exit_code,omitempty"`
	Signal   string     `json:"signal,omitempty" description:"That ended it."`
	UserNS   int64      `json:"user_ns,omitempty" description:"Processor time, as of its end."`
	SystemNS int64      `json:"system_ns,omitempty"`
	RSS      int64      `json:"rss,omitempty" description:"Most memory it held, in bytes."`
	Execs    []Program  `json:"execs,omitempty" description:"The last few programs it ran, the present one last."`
	ExecsAll int        `json:"execs_count"`
	Events   EventLink  `json:"events" description:"Where its records are."`
}

// Program is one program that a process ran.
type Program struct {
	Time time.Time `json:"time"`
	Seq  uint64    `json:"seq"`
	Exe  string    `json:"exe"`
	Argv []string  `json:"argv"`
}

// EventLink names records: those that match q, from first to last.
type EventLink struct {
	Q     string `json:"q" description:"A filter, for GET …/events."`
	First uint64 `json:"first"`
	Last  uint64 `json:"last,omitempty"`
}

// Flow is all packets between two addresses, or two of their ports.
type Flow struct {
	Proto   string    `json:"proto" required:"true"`
	Dir     string    `json:"dir" required:"true" enum:"egress,ingress,loopback" description:"Who began it."`
	Local   string    `json:"local" required:"true"`
	Remote  string    `json:"remote" required:"true"`
	Host    string    `json:"host,omitempty" description:"The name the jail asked for to get the address."`
	PID     int32     `json:"pid,omitempty"`
	Comm    string    `json:"comm,omitempty"`
	State   string    `json:"state" enum:"unanswered,refused,established,closed,reset,open" description:"open: a protocol without connections."`
	Times   int64     `json:"times" description:"It was begun; more than 1 if its ports were used again."`
	Refused int64     `json:"refused"`
	AtLeast bool      `json:"at_least,omitempty" description:"There was more before it found room in the list."`
	Begin   time.Time `json:"begin"`
	End     time.Time `json:"end" description:"Of its last packet so far."`

	PacketsOut int64 `json:"packets_out"`
	BytesOut   int64 `json:"bytes_out"`
	PacketsIn  int64 `json:"packets_in"`
	BytesIn    int64 `json:"bytes_in"`

	Events EventLink `json:"events" description:"Where its records are."`
}

// Flows is a page of the flows of a jail.
type Flows struct {
	Page[Flow]
	Count int64 `json:"count" description:"All there were. If they are too many to be kept, those of the most bytes are listed."`
}
