package wire

import (
	"encoding/json"
	"time"

	"glasshouse/id"
)

// Names of the events of GET /feed that report the current state. The other events are named by
// their topic.
const (
	FeedHello     = "hello"
	FeedJails     = "jails"
	FeedSchedules = "schedules"
)

// FeedHelloEvent is the first event of a stream.
type FeedHelloEvent struct {
	At    time.Time `json:"at" required:"true"`
	Reset bool      `json:"reset,omitempty" description:"The Last-Event-ID was not issued by this daemon. Reload earlier events with the other endpoints."`
}

// FeedJailsEvent reports the state of jails. The first one of a stream, and each with
// All set, lists every jail; others list only changed jails.
type FeedJailsEvent struct {
	All   bool      `json:"all,omitempty" description:"The list is complete. Jails that it does not contain were deleted."`
	Jails []JailRow `json:"jails" required:"true"`
}

// JailRow is the current state of a jail. Rates are averages over about the last second.
type JailRow struct {
	ID          id.Jail `json:"id" required:"true"`
	Name        string  `json:"name,omitempty"`
	State       string  `json:"state" required:"true"`
	Backend     string  `json:"backend" required:"true"`
	Runtime     string  `json:"runtime,omitempty"`
	CPU         float64 `json:"cpu" required:"true" description:"CPU usage, in number of CPUs."`
	MemoryBytes int64   `json:"memory_bytes" required:"true"`
	MemoryLimit int64   `json:"memory_limit,omitempty"`
	PIDs        int64   `json:"pids" required:"true"`
	RxBytes     int64   `json:"rx_bytes_s" required:"true" description:"Bytes received per second."`
	TxBytes     int64   `json:"tx_bytes_s" required:"true" description:"Bytes sent per second."`
	Events      float64 `json:"events_s" required:"true" description:"Events recorded per second."`
	Gaps        int64   `json:"gaps" required:"true" description:"Number of events known to be lost since the daemon started."`
}

// FeedEvent is an audit log entry in the event stream.
type FeedEvent struct {
	Seq      int64           `json:"seq" required:"true" description:"Number of the audit log entry."`
	At       time.Time       `json:"at" required:"true"`
	Kind     string          `json:"kind" required:"true" description:"Kind of the entry: jail.created, approval.asked, run.moved and so on."`
	Jail     id.Jail         `json:"jail,omitempty"`
	Session  string          `json:"session,omitempty"`
	Run      id.Run          `json:"run,omitempty"`
	Agent    string          `json:"agent,omitempty" description:"The agent or user that caused the entry."`
	Body     json.RawMessage `json:"body,omitempty"`
	Approval *Approval       `json:"approval,omitempty" description:"For topic approval: the current state of the request."`
}
