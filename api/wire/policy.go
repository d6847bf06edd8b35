package wire

// Snapshots configures automatic snapshots of a jail. Each omitted trigger is disabled.
type Snapshots struct {
	Every  string   `json:"every,omitempty" description:"Interval such as 10m, at least 10s. A snapshot is skipped if the jail cannot have changed since the last one."`
	Before []string `json:"before,omitempty" description:"Take a snapshot before matching commands: exec: and words, such as exec:git push. The first word is the program name; the others must occur among its arguments in this order. * matches anything."`
	After  string   `json:"after,omitempty" enum:"exec" description:"exec: take a snapshot after each command that a client requested, unless the jail cannot have changed."`
	Keep   Keep     `json:"keep,omitzero" description:"Retention of automatic snapshots. Default: last 5, hourly 24, daily 7."`

	KeepConnections bool `json:"keep_connections,omitempty" description:"Default of keep_connections when the jail is rewound: keep external connections where possible."`
}

// Keep is the retention of automatic snapshots. Snapshots that a client requested are
// always retained.
type Keep struct {
	Last   int `json:"last,omitempty" minimum:"0" description:"Number of most recent snapshots to retain."`
	Hourly int `json:"hourly,omitempty" minimum:"0" description:"Retain the last snapshot of each hour, for this many hours that have one."`
	Daily  int `json:"daily,omitempty" minimum:"0" description:"Retain the last snapshot of each day, for this many days that have one."`
}
