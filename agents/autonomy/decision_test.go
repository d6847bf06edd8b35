package autonomy_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/fault"
)

func TestParseDecision(t *testing.T) {
	tests := []struct {
		body       string
		complaints []string // a substring of each
		resource   string
		ok         bool
	}{
		{`{"tool":"write","args":{"filePath":"a.ts"},"timestamp":"2026-01-02T15:04:05.678Z"}`, nil, "a.ts", true},
		{`{"tool":"write","timestamp":"2026-01-02T15:04:05.678Z"}`, []string{"output.args"}, "", true}, // as posted by the plugin in the guide
		{`{"tool":"write","args":null}`, []string{"output.args", "timestamp"}, "", true},
		{`{"tool":"bash","args":"ls","timestamp":1767366245678}`, []string{"object"}, `ls`, true},
		{`{"tool":"bash","args":{"command":["git","status"]},"timestamp":"yesterday","more":[1]}`, []string{"yesterday"}, "git status", true},
		{`{"tool":"request_resources","args":{"cpu":"2","memory":"4Gi"},"timestamp":-1}`, []string{"timestamp"}, "cpu=2 memory=4Gi", true},
		{`{"tool":"x","args":{},"timestamp":"0001-01-01T00:00:00Z"}`, []string{"timestamp"}, "", true},
		{`{"tool":"x","args":{"a":1},"timestamp":1767366245678,"phase":"after"}`, nil, `{"a":1}`, true},
		{`{"args":{}}`, nil, "", false},
		{`{"tool":7}`, nil, "", false},
		{`[]`, nil, "", false},
		{`null`, nil, "", false},
		{``, nil, "", false},
	}
	for _, tt := range tests {
		d, complaints, err := autonomy.ParseDecision([]byte(tt.body))
		if (err == nil) != tt.ok || err != nil && !errors.Is(err, fault.Invalid) || len(complaints) != len(tt.complaints) {
			t.Errorf("ParseDecision(%s): complaints %q, %v", tt.body, complaints, err)
			continue
		}
		for i, c := range complaints {
			if !strings.Contains(c, tt.complaints[i]) {
				t.Errorf("ParseDecision(%s): complaint %q, want %q in it", tt.body, c, tt.complaints[i])
			}
		}
		if got := autonomy.ResourceOf(d.Tool, d.Args); got != tt.resource {
			t.Errorf("resource of %s = %q, want %q", tt.body, got, tt.resource)
		}
	}
	want := time.Date(2026, 1, 2, 15, 4, 5, 678e6, time.UTC)
	for _, text := range []string{`"2026-01-02T15:04:05.678Z"`, `"2026-01-02T16:04:05.678+01:00"`, fmt.Sprint(want.UnixMilli())} {
		d, _, err := autonomy.ParseDecision([]byte(`{"tool":"x","args":{},"timestamp":` + text + `}`))
		if err != nil || !d.Time.Equal(want) {
			t.Errorf("timestamp %s = %s, %v; want %s", text, d.Time, err, want)
		}
	}
}

func TestResourceOfIsNotTruncated(t *testing.T) {
	hidden := `{"a":"` + strings.Repeat("x", 5000) + `","b":"/etc/shadow"}`
	for _, tt := range []struct{ tool, args, want string }{
		{"write", `{"command":"ls","filePath":"/etc/passwd"}`, "/etc/passwd"},
		{"bash", `{"filePath":"a","command":"rm -rf /"}`, "rm -rf /"},
		{"unknown", hidden, hidden},
		{"unknown", `"rm -rf /"`, "rm -rf /"},
		{"unknown", `not JSON`, "not JSON"},
	} {
		if got := autonomy.ResourceOf(tt.tool, json.RawMessage(tt.args)); got != tt.want {
			t.Errorf("ResourceOf(%s, %s) = %q, want %q", tt.tool, tt.args, got, tt.want)
		}
	}
}

func FuzzParseDecision(f *testing.F) {
	f.Add([]byte(`{"tool":"write","args":{"filePath":"a.ts","content":"x"},"timestamp":"2026-01-02T15:04:05.678Z"}`))
	f.Add([]byte(`{"tool":"\u202e","args":[1,{"a":"b"}],"timestamp":1e300}`))
	f.Add([]byte("{\"tool\":\"\xff\",\"args\":\"\\ud800\"}"))
	f.Fuzz(func(t *testing.T, body []byte) {
		d, _, err := autonomy.ParseDecision(body)
		if err != nil {
			return
		}
		if d.Tool == "" || !d.Time.IsZero() && (d.Time.Year() < 1970 || d.Time.Year() > 2200) {
			t.Errorf("ParseDecision(%q) = %+v", body, d)
		}
		if what := autonomy.ResourceOf(d.Tool, d.Args); len(what) > 3*len(body)+64 {
			t.Errorf("resource of %q = %q, too long", body, what)
		}
	})
}
