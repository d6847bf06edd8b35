package wire

import "time"

// JailLimits is the limits of a jail with their history.
type JailLimits struct {
	Limits  Limits        `json:"limits" description:"Limits in effect now."`
	Own     *Limits       `json:"own,omitempty" description:"The permanent limits, while temporary ones are in effect."`
	Until   *time.Time    `json:"until,omitempty" description:"When the temporary limits end."`
	History []LimitChange `json:"history" description:"Requests and changes with their outcome, oldest first."`
	Next    int64         `json:"next,omitempty" description:"Pass as 'after' to get the next page."`
}

// LimitChange is a change of a jail's limits, or a refused request.
type LimitChange struct {
	N     int64      `json:"n"`
	At    time.Time  `json:"at"`
	State string     `json:"state" enum:"applied,refused,failed"`
	Why   string     `json:"why,omitempty"`
	By    string     `json:"by,omitempty" description:"The person who made, approved or refused the change."`
	Want  *Bounds    `json:"want,omitempty" description:"The requested limits."`
	From  Bounds     `json:"from"`
	To    Bounds     `json:"to"`
	Until *time.Time `json:"until,omitempty" description:"When a temporary change ends."`
	Entry int64      `json:"entry,omitempty" description:"Number of the audit log entry."`
}

// Bounds are limits in the form in which agents request them.
type Bounds struct {
	CPU      float64 `json:"cpu,omitempty" description:"Number of CPUs. One CPU corresponds to a CPU weight of 1024."`
	MemoryMB int64   `json:"memory_mb,omitempty" description:"Memory in MiB."`
	DiskMB   int64   `json:"disk_mb,omitempty" description:"Disk space in MiB."`
	PIDs     int64   `json:"pids,omitempty" description:"Number of processes and threads."`
}
