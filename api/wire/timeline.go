package wire

import (
	"encoding/json"
	"time"
)

// EventWindow is a part of what a filter means, by its place in it.
type EventWindow struct {
	Offset int64             `json:"offset" required:"true" description:"Of the first of the items; 0 is the oldest record."`
	Total  int64             `json:"total" required:"true" description:"How many records the filter means."`
	Items  []json.RawMessage `json:"items" required:"true" description:"Records, as docs/events.md has them."`
}

// Timeline is how many records there were, in buckets of equal length.
type Timeline struct {
	From     time.Time      `json:"from" required:"true" description:"Where the first bucket begins."`
	BucketMS int64          `json:"bucket_ms" required:"true" description:"How long each is, in milliseconds: a power of two."`
	Counts   TimelineCounts `json:"counts" required:"true"`
	Lanes    []TimelineLane `json:"lanes" required:"true" description:"Of the processes with the most records, the most first."`
	Total    int64          `json:"total" required:"true" description:"Records that the filter means, at any time."`
	First    *time.Time     `json:"first,omitempty" description:"When the first of those was; missing if there is none."`
	Last     *time.Time     `json:"last,omitempty"`
}

// TimelineCounts has for each kind of record a number for each bucket.
type TimelineCounts struct {
	File    []uint32 `json:"file" required:"true"`
	Net     []uint32 `json:"net" required:"true"`
	Proc    []uint32 `json:"proc" required:"true"`
	Syscall []uint32 `json:"syscall" required:"true"`
	Other   []uint32 `json:"other" required:"true" description:"Gaps, usage, lineage."`
}

// TimelineLane is the part of one process. Numbers of processes are used again.
type TimelineLane struct {
	PID    int32          `json:"pid" required:"true" description:"Inside the jail; 0: of no process that is known."`
	Comm   string         `json:"comm" required:"true"`
	Total  int64          `json:"total" required:"true"`
	Counts TimelineCounts `json:"counts" required:"true"`
}
