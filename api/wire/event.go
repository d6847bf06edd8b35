package wire

import "time"

// Observe configures which events of a jail are recorded. Omitted fields take the daemon's
// defaults, which record everything.
type Observe struct {
	Syscalls   string   `json:"syscalls,omitempty" enum:"all,security,off" description:"Which system calls to record. security: calls that change privileges, namespaces or mounts, run programs, or act on other processes."`
	Allow      []string `json:"allow,omitempty" description:"Names of system calls to record in addition to those that syscalls selects."`
	Ignore     []string `json:"ignore,omitempty" description:"Names of system calls not to record. It takes precedence over syscalls and allow."`
	Sample     int      `json:"sample,omitempty" minimum:"0" description:"Sampling of the remaining system calls: record one of this many."`
	Files      string   `json:"files,omitempty" enum:"all,off" description:"Whether to record file operations."`
	Network    string   `json:"network,omitempty" enum:"packets,flows,off" description:"Record each packet, totals for each connection (flows), or neither."`
	Packets    int      `json:"packet_bytes,omitempty" minimum:"0" maximum:"65535" description:"Number of bytes of each packet to keep for GET …/network/pcap."`
	OnOverload string   `json:"on_overload,omitempty" enum:"throttle,count" description:"throttle: slow down the jail so that no event is lost. count: do not slow down the jail; lost events are counted in a gap."`
}

// Observation is the state of a jail's recording.
type Observation struct {
	Sources map[string]Source `json:"sources" description:"Observers by name: kernel, network, gvisor, ptrace. Empty when the jail does not run."`
	Log     EventLog          `json:"log"`
}

// Source is the state of one observer of a jail.
type Source struct {
	Seen      uint64 `json:"seen" description:"Events recorded since the observer started."`
	Lost      uint64 `json:"lost" description:"Events that were lost. A gap event counts them."`
	Throttled uint64 `json:"throttled" description:"How often the jail was throttled so that no event is lost."`
	Err       string `json:"err,omitempty" description:"Why the observation is incomplete."`
}

// EventLog is the state of a jail's event log.
type EventLog struct {
	Events   int64            `json:"events" description:"Number of stored events."`
	Bytes    int64            `json:"bytes" description:"Disk usage in bytes."`
	Segments int              `json:"segments" description:"Number of files."`
	First    uint64           `json:"first,omitempty" description:"Sequence number of the oldest stored event."`
	Last     uint64           `json:"last" description:"Sequence number that was assigned last."`
	Lost     map[string]int64 `json:"lost,omitempty" description:"Events that were dropped because of the size limit, by type. Gap events count them."`
	Err      string           `json:"err,omitempty" description:"Why events cannot be written now."`
}

// EventEnd is the event that ends a stream of a jail's events: the jail was deleted, or
// all requested events were sent. Its data is {}. The other events of the stream are
// named by their type.
const EventEnd = "end"

// Processes is the process tree of a jail at one instant.
type Processes struct {
	Items     []Process `json:"items" required:"true" description:"Processes, each after its parent, siblings in order of creation."`
	Count     int64     `json:"count" description:"Total number of processes, including those that ended."`
	Forgotten int64     `json:"forgotten,omitempty" description:"Number of ended processes that are no longer stored."`
	Omitted   int64     `json:"untold,omitempty" description:"Number of processes that are not listed because too many existed at the same time."`
	Lost      Lost      `json:"lost" description:"Process events that were lost."`
}

// Lost counts lost events.
type Lost struct {
	Records int64 `json:"records" description:"Number of lost events, at least."`
	Unknown bool  `json:"unknown,omitempty" description:"The number is incomplete: the size of a gap is not known."`
}

// Process is one process of a jail.
type Process struct {
	PID      int32      `json:"pid" required:"true" description:"PID inside the jail."`
	PPID     int32      `json:"ppid"`
	HostPID  int32      `json:"host_pid,omitempty" description:"PID on the host."`
	Depth    int        `json:"depth" description:"Depth in the process tree."`
	Children []int32    `json:"children,omitempty"`
	Threads  int        `json:"threads"`
	UID      uint32     `json:"uid"`
	GID      uint32     `json:"gid"`
	Comm     string     `json:"comm" description:"Command name."`
	Exe      string     `json:"exe,omitempty"`
	Argv     []string   `json:"argv,omitempty"`
	Cwd      string     `json:"cwd,omitempty"`
	Cut      bool       `json:"cut,omitempty" description:"exe, argv or cwd is truncated."`
	State    string     `json:"state" required:"true" enum:"running,exited,killed,lost" description:"lost: the process ended, and its exit was not observed."`
	Began    time.Time  `json:"began"`
	Begin    int64      `json:"begin_ns" description:"Start time. PIDs are reused, so pid and begin_ns together identify a process."`
	Existing bool       `json:"existing,omitempty" description:"The process existed when observation began."`
	Ended    *time.Time `json:"ended,omitempty"`
	Duration int64      `json:"duration_ns,omitempty" description:"Run time in nanoseconds."`
	Code     *int32     `json:"exit_code,omitempty"`
	Signal   string     `json:"signal,omitempty" description:"The signal that ended the process."`
	UserNS   int64      `json:"user_ns,omitempty" description:"User CPU time in nanoseconds, when the process ended."`
	SystemNS int64      `json:"system_ns,omitempty" description:"System CPU time in nanoseconds, when the process ended."`
	RSS      int64      `json:"rss,omitempty" description:"Peak resident set size, in bytes."`
	Execs    []Program  `json:"execs,omitempty" description:"The last programs that the process executed, the current one last."`
	ExecsAll int        `json:"execs_count" description:"Total number of programs that the process executed."`
	Events   EventLink  `json:"events" description:"Events of the process."`
}

// Program is one program that a process ran.
type Program struct {
	Time time.Time `json:"time"`
	Seq  uint64    `json:"seq"`
	Exe  string    `json:"exe"`
	Argv []string  `json:"argv"`
}

// EventLink identifies the events that match the filter Q, from First to Last.
type EventLink struct {
	Q     string `json:"q" description:"A filter for GET …/events."`
	First uint64 `json:"first" description:"First sequence number."`
	Last  uint64 `json:"last,omitempty" description:"Last sequence number."`
}

// Flow summarizes all packets between two addresses, or between two ports of them.
type Flow struct {
	Proto   string    `json:"proto" required:"true"`
	Dir     string    `json:"dir" required:"true" enum:"egress,ingress,loopback" description:"Direction of the first packet."`
	Local   string    `json:"local" required:"true"`
	Remote  string    `json:"remote" required:"true"`
	Host    string    `json:"host,omitempty" description:"The DNS name that the jail resolved to the remote address."`
	PID     int32     `json:"pid,omitempty"`
	Comm    string    `json:"comm,omitempty"`
	State   string    `json:"state" enum:"unanswered,refused,established,closed,reset,open" description:"State of the connection. open: the protocol has no connections."`
	Times   int64     `json:"times" description:"Number of connections; more than 1 if the ports were reused."`
	Refused int64     `json:"refused" description:"Number of refused connections."`
	AtLeast bool      `json:"at_least,omitempty" description:"The counts are lower bounds: earlier packets were not counted because the list was full."`
	Begin   time.Time `json:"begin"`
	End     time.Time `json:"end" description:"Time of the last packet so far."`

	PacketsOut int64 `json:"packets_out"`
	BytesOut   int64 `json:"bytes_out"`
	PacketsIn  int64 `json:"packets_in"`
	BytesIn    int64 `json:"bytes_in"`

	Events EventLink `json:"events" description:"Events of the flow."`
}

// Flows is a page of a jail's network flows.
type Flows struct {
	Page[Flow]
	Count int64 `json:"count" description:"Total number of flows. If there are too many to store, the list contains those with the most bytes."`
}
