package wire

// Snapshots says when snapshots of a jail are taken unasked. What is left out is
// not done.
type Snapshots struct {
	Every  string   `json:"every,omitempty" description:"Every so often, if anything may have changed since the last: a time such as 10m, at least 10s."`
	Before []string `json:"before,omitempty" description:"Before a command: exec: and its words, such as exec:git push. The first is a program's name, the others are among its arguments, in this order; * stands for anything."`
	After  string   `json:"after,omitempty" enum:"exec" description:"exec: after each command that was asked for, if anything may have changed."`
	Keep   Keep     `json:"keep,omitzero" description:"Which of these snapshots stay. Default: last 5, hourly 24, daily 7."`

	KeepConnections bool `json:"keep_connections,omitempty" description:"A rewind that does not say keeps what the jail has connected outside, as far as it can."`
}

// Keep says which automatic snapshots stay. Those that somebody asked for do.
type Keep struct {
	Last   int `json:"last,omitempty" minimum:"0" description:"The last so many."`
	Hourly int `json:"hourly,omitempty" minimum:"0" description:"The last of each of so many hours in which there is one."`
	Daily  int `json:"daily,omitempty" minimum:"0" description:"The last of each of so many days in which there is one."`
}
