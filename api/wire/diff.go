package wire

import (
	"time"

	"glasshouse/id"
)

// Comparison is what differs between two jails, a jail and a snapshot, or two
// snapshots: what has to change to come from one to the other. A part that was not
// asked for is left out. Strings are bytes of the jail's, as in Event.
type Comparison struct {
	From      ComparedEnd     `json:"from" required:"true"`
	To        ComparedEnd     `json:"to" required:"true"`
	Files     *FileChanges    `json:"files,omitempty" description:"In the root filesystem."`
	Workspace *FileChanges    `json:"workspace,omitempty" description:"If a side has one."`
	Processes *ProcessChanges `json:"processes,omitempty"`
	Events    *EventChanges   `json:"events,omitempty"`
	Usage     *UsageChanges   `json:"usage,omitempty"`
}

// ComparedEnd is one side of a comparison.
type ComparedEnd struct {
	Jail     id.Jail     `json:"jail" required:"true"`
	Snapshot id.Snapshot `json:"snapshot,omitempty" description:"If it is one; else it is the jail as it is now."`
	Name     string      `json:"name,omitempty"`
	State    string      `json:"state,omitempty"`
	Time     time.Time   `json:"time"`
	Seq      uint64      `json:"seq" description:"Of the last record in the jail's log then."`
}

// FileChanges is what differs in a tree of files.
type FileChanges struct {
	Unknown string           `json:"unknown,omitempty" description:"Why nothing can be told."`
	Counts  map[string]int64 `json:"counts" description:"By kind."`
	List    []Change         `json:"list" description:"By path."`
	More    int64            `json:"more" description:"That are not listed. GET /jails/{id}/fs/diff lists all of a jail's, in pages."`
}

// ProcessChanges is what differs in what runs. A process that was written down in a
// snapshot and made again is the same process.
type ProcessChanges struct {
	Unknown string            `json:"unknown,omitempty" description:"Why nothing can be told."`
	Started []ComparedProcess `json:"started"`
	Ended   []ComparedProcess `json:"ended"`
	Changed []ChangedProcess  `json:"changed" description:"On both sides, and not alike."`
	Same    int64             `json:"same" description:"On both sides and alike."`
	Opened  []Connection      `json:"opened"`
	Closed  []Connection      `json:"closed"`
	More    int64             `json:"more" description:"Connections in no list."`
}

// ComparedProcess is a process on one side.
type ComparedProcess struct {
	PID   int       `json:"pid" required:"true" description:"Inside the jail."`
	PPID  int       `json:"ppid"`
	Began time.Time `json:"began"`
	Comm  string    `json:"comm"`
	Exe   string    `json:"exe,omitempty"`
	Argv  []string  `json:"argv"`
	Cwd   string    `json:"cwd,omitempty"`
	Cut   bool      `json:"cut,omitempty" description:"There is more than is told."`
}

// ChangedProcess is a process on both sides of which something differs.
type ChangedProcess struct {
	ComparedProcess
	Was *ComparedProcess `json:"was,omitempty" description:"If what it runs, or where, differs."`
	Env []EnvChange      `json:"env,omitempty"`
}

// EnvChange is a variable that differs. A side that does not have it is left out.
type EnvChange struct {
	Name   string  `json:"name" required:"true"`
	From   *string `json:"from,omitempty"`
	To     *string `json:"to,omitempty"`
	Hidden bool    `json:"hidden,omitempty" description:"Its name is that of a secret: the values are left out."`
}

// Connection is a socket of TCP or UDP.
type Connection struct {
	PID    int    `json:"pid"`
	Comm   string `json:"comm"`
	Proto  string `json:"proto" enum:"tcp,udp"`
	Local  string `json:"local"`
	Remote string `json:"remote,omitempty"`
	State  string `json:"state" description:"listening, established and so on; of udp: open."`
}

// EventChanges counts the records that the logs hold of the time in which the two
// sides came to differ.
type EventChanges struct {
	Since *ComparedEnd `json:"since,omitempty" description:"Where both come from; none if they are not related."`
	From  EventCount   `json:"from" description:"From there to one side."`
	To    EventCount   `json:"to" description:"From there to the other."`
}

// EventCount counts records.
type EventCount struct {
	Unknown string           `json:"unknown,omitempty"`
	Total   int64            `json:"total"`
	ByType  map[string]int64 `json:"by_type"`
	AtLeast bool             `json:"at_least,omitempty" description:"by_type is less than the total: some are not kept, or there are too many."`
}

// UsageChanges is what was used on each side. One on which nothing runs is left
// out.
type UsageChanges struct {
	From *ComparedUsage `json:"from,omitempty"`
	To   *ComparedUsage `json:"to,omitempty"`
}

// ComparedUsage is what a jail used.
type ComparedUsage struct {
	CPU         int64    `json:"cpu_ns"`
	Memory      int64    `json:"memory_bytes"`
	Processes   int64    `json:"processes" description:"And threads."`
	Disk        int64    `json:"disk_bytes"`
	Rx          int64    `json:"rx_bytes"`
	Tx          int64    `json:"tx_bytes"`
	NotMeasured []string `json:"not_measured,omitempty"`
}
