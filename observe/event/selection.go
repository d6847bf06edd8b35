package event

import (
	"slices"

	"glasshouse/fault"
)

// A Selection defines which events of a jail are recorded. It is stored with the jail, so that
// unrecorded events can be distinguished from absent ones. The zero value, after Defaults,
// records everything.
type Selection struct {
	Syscalls   string   `json:"syscalls"`         // all, security (those named in Security), off
	Allow      []string `json:"allow,omitempty"`  // names of additional calls to record, regardless of Syscalls
	Ignore     []string `json:"ignore,omitempty"` // names of calls not to record; takes precedence
	Sample     int      `json:"sample,omitempty"` // records one in Sample of the remaining calls; 0 and 1 record all
	Files      string   `json:"files"`            // all, off
	Network    string   `json:"network"`          // packets, flows, off
	Packets    int      `json:"packet_bytes"`     // bytes of each packet kept for export; 0 is none
	OnOverload string   `json:"on_overload"`      // throttle: slow the jail down so that no event is lost; count: do not slow it down, and count lost events
}

// The valid values of a Selection's fields. The first is the default.
var (
	syscallWords  = []string{"all", "security", "off"}
	fileWords     = []string{"all", "off"}
	networkWords  = []string{"packets", "flows", "off"}
	overloadWords = []string{"throttle", "count"}
)

// MaxPacketBytes bounds Selection.Packets. It is the maximum size of a packet.
const MaxPacketBytes = 65535

// Defaults returns s with empty fields set from d. Fields that are empty in d are set to the
// first valid value.
func (s Selection) Defaults(d Selection) Selection {
	for _, w := range []struct {
		v     *string
		def   string
		words []string
	}{
		{&s.Syscalls, d.Syscalls, syscallWords}, {&s.Files, d.Files, fileWords},
		{&s.Network, d.Network, networkWords}, {&s.OnOverload, d.OnOverload, overloadWords},
	} {
		if *w.v == "" {
			*w.v = w.def
		}
		if *w.v == "" {
			*w.v = w.words[0]
		}
	}
	// An empty list that is not nil replaces the default.
	if s.Allow == nil {
		s.Allow = d.Allow
	}
	if s.Ignore == nil {
		s.Ignore = d.Ignore
	}
	if s.Sample == 0 {
		s.Sample = d.Sample
	}
	if s.Packets == 0 {
		s.Packets = d.Packets
	}
	return s
}

// Check returns a fault.Invalid error that names the first invalid field, with prefix. known
// reports whether a call name exists on any architecture.
func (s Selection) Check(op, prefix string, known func(string) bool) error {
	for _, w := range []struct {
		field, v string
		words    []string
	}{
		{"syscalls", s.Syscalls, syscallWords}, {"files", s.Files, fileWords},
		{"network", s.Network, networkWords}, {"on_overload", s.OnOverload, overloadWords},
	} {
		if w.v != "" && !slices.Contains(w.words, w.v) {
			return fault.Fieldf(op, prefix+w.field, "%q is not one of %v", w.v, w.words)
		}
	}
	for _, l := range []struct {
		field string
		names []string
	}{{"allow", s.Allow}, {"ignore", s.Ignore}} {
		for _, name := range l.names {
			if !known(name) {
				return fault.Fieldf(op, prefix+l.field, "%q is not a system call", name)
			}
		}
	}
	if s.Sample < 0 {
		return fault.Fieldf(op, prefix+"sample", "%d is negative", s.Sample)
	}
	if s.Packets < 0 || s.Packets > MaxPacketBytes {
		return fault.Fieldf(op, prefix+"packet_bytes", "%d is not between 0 and %d", s.Packets, MaxPacketBytes)
	}
	return nil
}
