package wire

import (
	"time"

	"glasshouse/id"
)

// Comparison is the difference between two jails, a jail and a snapshot, or two
// snapshots, as the changes that lead from the first to the second. Parts that were not
// requested are omitted. Strings are encoded as in Event.
type Comparison struct {
	From      ComparedEnd     `json:"from" required:"true"`
	To        ComparedEnd     `json:"to" required:"true"`
	Files     *FileChanges    `json:"files,omitempty" description:"Changes in the root filesystem."`
	Workspace *FileChanges    `json:"workspace,omitempty" description:"Changes in the workspace, if a side has one."`
	Processes *ProcessChanges `json:"processes,omitempty"`
	Events    *EventChanges   `json:"events,omitempty"`
	Usage     *UsageChanges   `json:"usage,omitempty"`
}

// ComparedEnd is one side of a comparison.
type ComparedEnd struct {
	Jail     id.Jail     `json:"jail" required:"true"`
	Snapshot id.Snapshot `json:"snapshot,omitempty" description:"The compared snapshot. If omitted, the jail is compared as it is now."`
	Name     string      `json:"name,omitempty"`
	State    string      `json:"state,omitempty"`
	Time     time.Time   `json:"time" description:"Time of the compared state."`
	Seq      uint64      `json:"seq" description:"Sequence number of the last event in the jail's log at that time."`
}

// FileChanges is the difference between two file trees.
type FileChanges struct {
	Unknown string           `json:"unknown,omitempty" description:"Why the trees cannot be compared."`
	Counts  map[string]int64 `json:"counts" description:"Number of changes by kind."`
	List    []Change         `json:"list" description:"Changes, sorted by path."`
	More    int64            `json:"more" description:"Number of changes that are not listed. GET /jails/{id}/fs/diff lists all changes of a jail, in pages."`
}

// ProcessChanges is the difference between the processes of the two sides. A process
// that was restored from a snapshot counts as the same process.
type ProcessChanges struct {
	Unknown string            `json:"unknown,omitempty" description:"Why the processes cannot be compared."`
	Started []ComparedProcess `json:"started" description:"Processes that are only on the second side."`
	Ended   []ComparedProcess `json:"ended" description:"Processes that are only on the first side."`
	Changed []ChangedProcess  `json:"changed" description:"Processes that are on both sides and differ."`
	Same    int64             `json:"same" description:"Number of processes that are on both sides and equal."`
	Opened  []Connection      `json:"opened" description:"Connections that are only on the second side."`
	Closed  []Connection      `json:"closed" description:"Connections that are only on the first side."`
	More    int64             `json:"more" description:"Number of connections that are not listed."`
}

// ComparedProcess is a process on one side.
type ComparedProcess struct {
	PID   int       `json:"pid" required:"true" description:"PID inside the jail."`
	PPID  int       `json:"ppid"`
	Began time.Time `json:"began"`
	Comm  string    `json:"comm"`
	Exe   string    `json:"exe,omitempty"`
	Argv  []string  `json:"argv"`
	Cwd   string    `json:"cwd,omitempty"`
	Cut   bool      `json:"cut,omitempty" description:"Values are truncated."`
}

// ChangedProcess is a process that is on both sides and differs.
type ChangedProcess struct {
	ComparedProcess
	Was *ComparedProcess `json:"was,omitempty" description:"The process on the first side, if its program or working directory differs."`
	Env []EnvChange      `json:"env,omitempty" description:"Changed environment variables."`
}

// EnvChange is an environment variable that differs. From or To is omitted if that side
// does not have the variable.
type EnvChange struct {
	Name   string  `json:"name" required:"true"`
	From   *string `json:"from,omitempty"`
	To     *string `json:"to,omitempty"`
	Hidden bool    `json:"hidden,omitempty" description:"The name looks like that of a secret, so the values are omitted."`
}

// Connection is a TCP or UDP socket.
type Connection struct {
	PID    int    `json:"pid" description:"PID inside the jail."`
	Comm   string `json:"comm"`
	Proto  string `json:"proto" enum:"tcp,udp"`
	Local  string `json:"local"`
	Remote string `json:"remote,omitempty"`
	State  string `json:"state" description:"listening, established, and so on; open for UDP."`
}

// EventChanges counts the logged events since the two sides diverged.
type EventChanges struct {
	Since *ComparedEnd `json:"since,omitempty" description:"The common ancestor. Omitted if the sides are not related."`
	From  EventCount   `json:"from" description:"Events between the common ancestor and the first side."`
	To    EventCount   `json:"to" description:"Events between the common ancestor and the second side."`
}

// EventCount counts events.
type EventCount struct {
	Unknown string           `json:"unknown,omitempty" description:"Why the events cannot be counted."`
	Total   int64            `json:"total"`
	ByType  map[string]int64 `json:"by_type"`
	AtLeast bool             `json:"at_least,omitempty" description:"by_type counts fewer events than total: some events were deleted, or there are too many to count."`
}

// UsageChanges is the resource usage of each side. A side without processes is omitted.
type UsageChanges struct {
	From *ComparedUsage `json:"from,omitempty"`
	To   *ComparedUsage `json:"to,omitempty"`
}

// ComparedUsage is the resource usage of a jail.
type ComparedUsage struct {
	CPU         int64    `json:"cpu_ns"`
	Memory      int64    `json:"memory_bytes"`
	Processes   int64    `json:"processes" description:"Number of processes and threads."`
	Disk        int64    `json:"disk_bytes"`
	Rx          int64    `json:"rx_bytes"`
	Tx          int64    `json:"tx_bytes"`
	NotMeasured []string `json:"not_measured,omitempty" description:"Fields that could not be measured."`
}
