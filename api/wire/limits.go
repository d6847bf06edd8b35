package wire

import "time"

// JailLimits is what a jail may use, and how it came to that.
type JailLimits struct {
	Limits  Limits        `json:"limits" description:"In force now."`
	Own     *Limits       `json:"own,omitempty" description:"Its own, while it is lent others."`
	Until   *time.Time    `json:"until,omitempty" description:"When what it is lent is taken back."`
	History []LimitChange `json:"history" description:"What became of requests and changes, oldest first."`
	Next    int64         `json:"next,omitempty" description:"The 'after' of the next page."`
}

// LimitChange is a change of what a jail may use, or one that was refused.
type LimitChange struct {
	N     int64      `json:"n"`
	At    time.Time  `json:"at"`
	State string     `json:"state" enum:"applied,refused,failed"`
	Why   string     `json:"why,omitempty"`
	By    string     `json:"by,omitempty" description:"The person who set, allowed or refused it."`
	Want  *Bounds    `json:"want,omitempty" description:"What was asked for."`
	From  Bounds     `json:"from"`
	To    Bounds     `json:"to"`
	Until *time.Time `json:"until,omitempty"`
	Entry int64      `json:"entry,omitempty" description:"Of the causal chain."`
}

// Bounds are limits as agents ask for them.
type Bounds struct {
	CPU      float64 `json:"cpu,omitempty" description:"Processors: a weight of 1024 is one."`
	MemoryMB int64   `json:"memory_mb,omitempty" description:"MiB."`
	DiskMB   int64   `json:"disk_mb,omitempty" description:"MiB."`
	PIDs     int64   `json:"pids,omitempty"`
}
