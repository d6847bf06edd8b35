package wire

import (
	"encoding/json"
	"time"
)

// EventWindow is a range of the events that match a filter, selected by position.
type EventWindow struct {
	Offset int64             `json:"offset" required:"true" description:"Position of the first item; 0 is the oldest event."`
	Total  int64             `json:"total" required:"true" description:"Number of events that match the filter."`
	Items  []json.RawMessage `json:"items" required:"true" description:"Events. docs/reference/events.md describes them."`
}

// Timeline counts events in time buckets of equal length.
type Timeline struct {
	From     time.Time      `json:"from" required:"true" description:"Start of the first bucket."`
	BucketMS int64          `json:"bucket_ms" required:"true" description:"Length of a bucket in milliseconds, a power of two."`
	Counts   TimelineCounts `json:"counts" required:"true"`
	Lanes    []TimelineLane `json:"lanes" required:"true" description:"The processes with the most events, in descending order."`
	Total    int64          `json:"total" required:"true" description:"Number of events that match the filter, at any time."`
	First    *time.Time     `json:"first,omitempty" description:"Time of the first matching event. Omitted if no event matches."`
	Last     *time.Time     `json:"last,omitempty" description:"Time of the last matching event."`
}

// TimelineCounts contains one count for each bucket, by type of event.
type TimelineCounts struct {
	File    []uint32 `json:"file" required:"true"`
	Net     []uint32 `json:"net" required:"true"`
	Proc    []uint32 `json:"proc" required:"true"`
	Syscall []uint32 `json:"syscall" required:"true"`
	Other   []uint32 `json:"other" required:"true" description:"Gap, usage and lineage events."`
}

// TimelineLane counts the events of one process. PIDs are reused, so several lanes may
// have the same PID.
type TimelineLane struct {
	PID    int32          `json:"pid" required:"true" description:"PID inside the jail, or 0 if the process is unknown."`
	Comm   string         `json:"comm" required:"true"`
	Total  int64          `json:"total" required:"true"`
	Counts TimelineCounts `json:"counts" required:"true"`
}
