package cli

import (
	"strconv"
	"strings"

	"glasshouse/api/wire"
)

const policyHelp = "automatic snapshots, as NAME=VALUE,... (default: none)"

const policyLong = `--snapshots takes snapshots of the jail automatically, if it may have changed since the
last one. Its value has comma-separated settings:

  every=TIME                   interval, such as 10m
  before=exec:COMMAND          before a command, such as exec:git push; may be repeated
  after=exec                   after each command that was started by exec or a terminal
  keep=last:N/hourly:N/daily:N retention; default last:5/hourly:24/daily:7
  connections=keep             on a rewind, keep unused external connections by default`

// parsePolicy parses a description of when automatic snapshots of a jail are taken. The daemon
// checks the values; parsePolicy checks only the parts that the daemon does not see.
func parsePolicy(s string) (wire.Snapshots, error) {
	var p wire.Snapshots
	if s == "" {
		return p, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		word, value, ok := strings.Cut(part, "=")
		if !ok || value == "" {
			return p, usagef("--snapshots %q is not NAME=VALUE", part)
		}
		var err error
		switch {
		case word == "before":
			p.Before = append(p.Before, value)
		case word == "every" && p.Every == "":
			p.Every = value
		case word == "after" && p.After == "":
			p.After = value
		case word == "keep" && p.Keep == (wire.Keep{}):
			p.Keep, err = parseKeep(value)
		case word == "connections" && value == "keep":
			p.KeepConnections = true
		case word == "connections":
			return p, usagef("--snapshots connections=%q must be keep", value)
		case word == "every" || word == "after" || word == "keep":
			return p, usagef("--snapshots sets %s twice", word)
		default:
			return p, usagef("--snapshots has no setting %q; the settings are every, before, after, keep and connections", word)
		}
		if err != nil {
			return p, err
		}
	}
	return p, nil
}

func parseKeep(s string) (wire.Keep, error) {
	var k wire.Keep
	for part := range strings.SplitSeq(s, "/") {
		word, value, _ := strings.Cut(part, ":")
		n, err := strconv.Atoi(value)
		field := map[string]*int{"last": &k.Last, "hourly": &k.Hourly, "daily": &k.Daily}[word]
		if field == nil || err != nil || *field != 0 {
			return k, usagef("--snapshots keep=%q is not like last:5/hourly:24/daily:7", s)
		}
		*field = n
	}
	return k, nil
}

// policyText formats a policy in the syntax of --snapshots.
func policyText(p wire.Snapshots) string {
	var words []string
	if p.Every != "" {
		words = append(words, "every="+p.Every)
	}
	for _, b := range p.Before {
		words = append(words, "before="+b)
	}
	if p.After != "" {
		words = append(words, "after="+p.After)
	}
	var keep []string
	for _, k := range []struct {
		word string
		n    int
	}{{"last", p.Keep.Last}, {"hourly", p.Keep.Hourly}, {"daily", p.Keep.Daily}} {
		if k.n > 0 {
			keep = append(keep, k.word+":"+strconv.Itoa(k.n))
		}
	}
	if len(keep) > 0 {
		words = append(words, "keep="+strings.Join(keep, "/"))
	}
	if p.KeepConnections {
		words = append(words, "connections=keep")
	}
	return strings.Join(words, ",")
}
