package cli

import (
	"slices"
	"strconv"
	"strings"

	"glasshouse/api/wire"
)

const observeHelp = "recorded events: full (default), security, flows, off"

const observeLong = `System calls, file operations, network traffic and processes of the jail are recorded.
--observe changes this with a preset, settings, or both, separated by commas:

  full        all (the default)
  security    syscalls=security,files=all,network=flows
  flows       syscalls=off,files=off,network=flows
  off         syscalls=off,files=off,network=off; processes are recorded


  syscalls=all|security|off    security: only calls that change privileges, mounts or programs
  allow=NAME+NAME...           calls to record in any case
  ignore=NAME+NAME...          calls never to record
  sample=N                     record one in N of the remaining calls
  files=all|off
  network=packets|flows|off    record packets, or totals per connection
  packet_bytes=N               bytes to record of each packet, for glasshouse net --pcap
  on_overload=throttle|count   slow the jail down so that no event is lost, or count lost events`

// observePresets are the presets of --observe.
var observePresets = map[string]wire.Observe{
	"full":     {Syscalls: "all", Files: "all", Network: "packets"},
	"security": {Syscalls: "security", Files: "all", Network: "flows"},
	"flows":    {Syscalls: "off", Files: "off", Network: "flows"},
	"off":      {Syscalls: "off", Files: "off", Network: "off"},
}

// parseObserve parses the recording settings of a jail. The daemon checks the values;
// parseObserve checks only the parts that the daemon does not see.
func parseObserve(s string) (wire.Observe, error) {
	var o wire.Observe
	if s == "" {
		return o, nil
	}
	first, rest, _ := strings.Cut(s, ",")
	if preset, ok := observePresets[first]; ok {
		o, s = preset, rest
	}
	if s == "" {
		return o, nil
	}
	var seen []string
	for part := range strings.SplitSeq(s, ",") {
		word, value, ok := strings.Cut(part, "=")
		if !ok || value == "" {
			return o, usagef("--observe %q is neither NAME=VALUE nor, at the beginning, one of full, security, flows and off", part)
		}
		if slices.Contains(seen, word) {
			return o, usagef("--observe sets %s twice; join values with +", word)
		}
		seen = append(seen, word)
		var err error
		switch word {
		case "syscalls":
			o.Syscalls = value
		case "allow":
			o.Allow = strings.Split(value, "+")
		case "ignore":
			o.Ignore = strings.Split(value, "+")
		case "sample":
			o.Sample, err = strconv.Atoi(value)
		case "files":
			o.Files = value
		case "network":
			o.Network = value
		case "packet_bytes":
			o.Packets, err = strconv.Atoi(value)
		case "on_overload":
			o.OnOverload = value
		default:
			return o, usagef("--observe has no setting %q; the settings are syscalls, allow, ignore, sample, files, network, packet_bytes and on_overload", word)
		}
		if err != nil {
			return o, usagef("--observe %s=%q is not a number", word, value)
		}
	}
	return o, nil
}

// observeText formats recording settings in the syntax of --observe.
func observeText(o wire.Observe) string {
	var words []string
	add := func(word, value string) {
		if value != "" && value != "0" {
			words = append(words, word+"="+value)
		}
	}
	add("syscalls", o.Syscalls)
	add("allow", strings.Join(o.Allow, "+"))
	add("ignore", strings.Join(o.Ignore, "+"))
	if o.Sample > 1 {
		add("sample", strconv.Itoa(o.Sample))
	}
	add("files", o.Files)
	add("network", o.Network)
	add("packet_bytes", strconv.Itoa(o.Packets))
	add("on_overload", o.OnOverload)
	return strings.Join(words, ",")
}
