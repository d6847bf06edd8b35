package autonomy

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/internal/text"
)

const maxListed = 500

// A Decision is what an agent's own harness says of a call: that it is about to make
// it, or has made it.
type Decision struct {
	Tool string
	Args json.RawMessage
	Said time.Time // when, if one believes the agent; zero: it does not say
	Made bool      // it has made it, and said so before it did

	// Announced says that the harness tells calls before and after it makes them, as the
	// plugin and the hooks of this project do. Their own tools call the gateway, which
	// records what it decides.
	Announced bool
}

// ParseDecision reads the body that a harness posts: {"tool", "args", "timestamp"}.
// What is missing or cannot be used is left out and said in complaints; only what names
// no tool is an error.
func ParseDecision(body []byte) (d Decision, complaints []string, err error) {
	const op = "autonomy.ParseDecision"
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
		return Decision{}, nil, &fault.Error{Op: op, Kind: fault.Invalid, Err: fmt.Errorf("the body is no JSON object"),
			Remedy: `send {"tool": "write", "args": {…}, "timestamp": "2026-01-02T15:04:05Z"}`}
	}
	if err := json.Unmarshal(fields["tool"], &d.Tool); err != nil || d.Tool == "" {
		return Decision{}, nil, fault.Fieldf(op, "tool", "is not there, or no name")
	}
	d.Made, d.Announced = string(fields["phase"]) == `"after"`, string(fields["phase"]) == `"before"`
	switch args := fields["args"]; {
	case len(args) == 0 || string(args) == "null":
		complaints = append(complaints, "args are missing: a plugin of OpenCode finds them in output.args, not in input")
	case args[0] != '{':
		complaints = append(complaints, "args are no JSON object; they are taken as they are")
		d.Args = args
	default:
		d.Args = args
	}
	if said, ok := fields["timestamp"]; !ok {
		complaints = append(complaints, "timestamp is missing")
	} else if d.Said, err = parseSaid(said); err != nil {
		complaints = append(complaints, "timestamp "+err.Error())
	}
	return d, complaints, nil
}

// parseSaid reads a time as JavaScript writes it: text, or milliseconds.
func parseSaid(raw json.RawMessage) (time.Time, error) {
	var date string
	if json.Unmarshal(raw, &date) == nil {
		t, err := time.Parse(time.RFC3339Nano, date)
		if err != nil || !storable(t) {
			return time.Time{}, fmt.Errorf("is not RFC 3339: %s", text.Visible(text.Clip(date, 40)))
		}
		return t.UTC(), nil
	}
	ms, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || ms < 0 || !storable(time.UnixMilli(ms)) {
		return time.Time{}, fmt.Errorf("is neither a date nor milliseconds")
	}
	return time.UnixMilli(ms).UTC(), nil
}

// storable reports whether JSON and a database have room for a time.
func storable(t time.Time) bool {
	y := t.UTC().Year()
	return y >= 1970 && y < 2200
}

// resourceKeys is where the tools of agents have what they act on. The first
// that is there counts.
var resourceKeys = map[string][]string{
	"bash":               {"command", "cmd"},
	"shell":              {"command", "cmd"},
	"coordinate_sibling": {"targetSandboxId", "target", "to"},
	"create_task":        {"title"},
}

var anyResourceKeys = []string{"filePath", "file_path", "path", "command", "url", "pattern", "targetSandboxId", "query", "name", "id", "title"}

// ResourceOf says in a few words what a call acts on: the path of a write, the
// command line of a bash. Of a tool that has none of the usual names for that it is all
// of the arguments: rules judge it, and must not miss what stands at their end.
func ResourceOf(tool string, args json.RawMessage) string {
	if s, ok := textOf(args); ok {
		return s
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(args, &fields) != nil {
		return string(args)
	}
	if tool == "request_resources" {
		return resourcesText(fields)
	}
	for _, keys := range [][]string{resourceKeys[tool], anyResourceKeys} {
		for _, key := range keys {
			if s, ok := textOf(fields[key]); ok {
				return s
			}
		}
	}
	if len(fields) == 0 {
		return ""
	}
	return string(args)
}

// textOf returns text, or the words of a list of them, as some shells have it.
func textOf(raw json.RawMessage) (string, bool) {
	if len(raw) == 0 {
		return "", false
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s, s != ""
	}
	var words []string
	if json.Unmarshal(raw, &words) == nil && len(words) > 0 {
		return strings.Join(words, " "), true
	}
	return "", false
}

func resourcesText(fields map[string]json.RawMessage) string {
	var parts []string
	for _, key := range []string{"cpu", "memory", "disk", "pids"} {
		if raw, ok := fields[key]; ok && string(raw) != "null" {
			parts = append(parts, key+"="+strings.Trim(string(raw), `"`))
		}
	}
	return strings.Join(parts, " ")
}
