package wire

import (
	"encoding/json"
	"time"

	"glasshouse/id"
)

// The events of GET /feed: one kind of each for what is at this moment, and for
// what happened one for each topic.
const (
	FeedHello     = "hello"
	FeedJails     = "jails"
	FeedSchedules = "schedules"
)

// FeedHello begins a feed.
type FeedHelloEvent struct {
	At    time.Time `json:"at" required:"true"`
	Reset bool      `json:"reset,omitempty" description:"The Last-Event-ID was none of this daemon's: what happened before now has to be asked for anew."`
}

// FeedJailsEvent is how jails fare. The first of a feed, and each with all set, has
// every jail; others have those of which something changed.
type FeedJailsEvent struct {
	All   bool      `json:"all,omitempty"`
	Jails []JailRow `json:"jails" required:"true"`
}

// JailRow is a jail at this moment. Rates are of the last second or so.
type JailRow struct {
	ID          id.Jail `json:"id" required:"true"`
	Name        string  `json:"name,omitempty"`
	State       string  `json:"state" required:"true"`
	Backend     string  `json:"backend" required:"true"`
	Runtime     string  `json:"runtime,omitempty"`
	CPU         float64 `json:"cpu" required:"true" description:"Processors it keeps busy."`
	MemoryBytes int64   `json:"memory_bytes" required:"true"`
	MemoryLimit int64   `json:"memory_limit,omitempty"`
	PIDs        int64   `json:"pids" required:"true"`
	RxBytes     int64   `json:"rx_bytes_s" required:"true" description:"Received in a second."`
	TxBytes     int64   `json:"tx_bytes_s" required:"true" description:"Sent in a second."`
	Events      float64 `json:"events_s" required:"true" description:"Recorded in a second."`
	Gaps        int64   `json:"gaps" required:"true" description:"Records that are known to be missing, since the daemon started."`
}

// FeedEvent is something that happened, as the causal chain has it.
type FeedEvent struct {
	Seq      int64           `json:"seq" required:"true" description:"Of its entry in the chain."`
	At       time.Time       `json:"at" required:"true"`
	Kind     string          `json:"kind" required:"true" description:"Of the entry: jail.created, approval.asked, run.moved and so on."`
	Jail     id.Jail         `json:"jail,omitempty"`
	Session  string          `json:"session,omitempty"`
	Run      id.Run          `json:"run,omitempty"`
	Agent    string          `json:"agent,omitempty" description:"Who did it."`
	Body     json.RawMessage `json:"body,omitempty"`
	Approval *Approval       `json:"approval,omitempty" description:"Of the topic approval: the request, as it is now."`
}
