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

// A Decision is a tool call that an agent's own harness reports, either before or after the call.
type Decision struct {
	Tool string
	Args json.RawMessage
	Time time.Time // time claimed by the agent; zero: none
	Made bool      // the call was made, and was announced before

	// Announced is set if the harness reports calls before and after they are made, as the
	// project's plugin and hooks do. Calls of their own tools go through the gateway, which
	// records its decisions.
	Announced bool
}

// ParseDecision parses a report of a harness: {"tool", "args", "timestamp"}. Missing or
// unusable fields are left out and listed in complaints; only a missing tool name is an error.
func ParseDecision(body []byte) (d Decision, complaints []string, err error) {
	const op = "autonomy.ParseDecision"
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
		return Decision{}, nil, &fault.Error{Op: op, Kind: fault.Invalid, Err: fmt.Errorf("the body is not a JSON object"),
			Remedy: `send {"tool": "write", "args": {…}, "timestamp": "2026-01-02T15:04:05Z"}`}
	}
	if err := json.Unmarshal(fields["tool"], &d.Tool); err != nil || d.Tool == "" {
		return Decision{}, nil, fault.Fieldf(op, "tool", "is missing or not a name")
	}
	d.Made, d.Announced = string(fields["phase"]) == `"after"`, string(fields["phase"]) == `"before"`
	switch args := fields["args"]; {
	case len(args) == 0 || string(args) == "null":
		complaints = append(complaints, "args are missing: an OpenCode plugin receives them in output.args, not in input")
	case args[0] != '{':
		complaints = append(complaints, "args are not a JSON object; they are used unchanged")
		d.Args = args
	default:
		d.Args = args
	}
	if timestamp, ok := fields["timestamp"]; !ok {
		complaints = append(complaints, "timestamp is missing")
	} else if t, err := parseTimestamp(timestamp); err != nil {
		complaints = append(complaints, "timestamp "+err.Error())
	} else {
		d.Time = t
	}
	return d, complaints, nil
}

// parseTimestamp parses a JavaScript time: an RFC 3339 string or milliseconds since 1970.
func parseTimestamp(raw json.RawMessage) (time.Time, error) {
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

// storable reports whether JSON and the database can represent a time.
func storable(t time.Time) bool {
	y := t.UTC().Year()
	return y >= 1970 && y < 2200
}

// resourceKeys lists, per tool, the argument fields that name its resource. The first that
// exists is used.
var resourceKeys = map[string][]string{
	"bash":               {"command", "cmd"},
	"shell":              {"command", "cmd"},
	"coordinate_sibling": {"targetSandboxId", "target", "to"},
	"create_task":        {"title"},
}

var anyResourceKeys = []string{"filePath", "file_path", "path", "command", "url", "pattern", "targetSandboxId", "query", "name", "id", "title"}

// ResourceOf returns the resource of a tool call: the path of a write, the command line of a
// shell. If no known field exists, it returns all arguments untruncated: policy rules match
// it, and must not miss the end.
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

// textOf returns a string, or the joined words of an array of strings.
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
