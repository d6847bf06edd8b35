package report_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glasshouse/observe/event"
	"glasshouse/observe/report"
)

var update = flag.Bool("update", false, "write the golden files anew")

func makeReport(t *testing.T, s *session, o report.Options) *report.Report {
	t.Helper()
	o.Jail = jail
	r, err := report.Make(t.Context(), s.source(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// golden compares got with a file in testdata. Review the file after -update.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s differs from testdata; if the new output is correct, run go test ./report -update:\n%s", name, d)
	}
}

func TestAgentSessionReport(t *testing.T) {
	s := agent()
	r := makeReport(t, s, report.Options{Workspace: []string{"/work"}})

	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "agent.json", append(b, '\n'))

	var md, page bytes.Buffer
	if err := r.Markdown(&md); err != nil {
		t.Fatal(err)
	}
	golden(t, "agent.md", md.Bytes())
	if err := r.HTML(&page); err != nil {
		t.Fatal(err)
	}
	golden(t, "agent.html", page.Bytes())

	tree, net := report.NewTree(), report.NewNetLog()
	for i := range s.events {
		tree.Add(&s.events[i])
		net.Add(&s.events[i])
	}
	var ps, flows bytes.Buffer
	if err := report.WritePS(&ps, tree.Processes(true)); err != nil {
		t.Fatal(err)
	}
	golden(t, "agent.ps", ps.Bytes())
	list, _ := net.Flows()
	if err := report.WriteNet(&flows, list); err != nil {
		t.Fatal(err)
	}
	golden(t, "agent.net", flows.Bytes())
}

// links returns all links in v's JSON.
func links(t *testing.T, v any) []report.Link {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := json.Unmarshal(b, &tree); err != nil {
		t.Fatal(err)
	}
	var found []report.Link
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, x := range v {
				walk(x)
			}
		case map[string]any:
			if q, ok := v["q"].(string); ok {
				found = append(found, report.Link{Query: report.Text(q), First: uint64(v["first"].(float64)), Last: uint64(v["last"].(float64))})
			}
			for _, x := range v {
				walk(x)
			}
		}
	}
	walk(tree)
	return found
}

func TestEveryLinkFindsTheFirstAndTheLastOfItsEvents(t *testing.T) {
	s := agent()
	all := links(t, makeReport(t, s, report.Options{Workspace: []string{"/work"}}))
	if len(all) < 80 {
		t.Fatalf("%d links in a report, want more", len(all))
	}
	for _, l := range all {
		f, err := event.ParseFilter(l.String())
		if err != nil {
			t.Errorf("link %q: %v", l, err)
			continue
		}
		for _, seq := range []uint64{l.First, l.Last} {
			if seq != 0 && !f.Match(&s.events[seq-1]) {
				t.Errorf("link %q does not find event %d: %s", l, seq, s.events[seq-1].AppendJSON(nil))
			}
		}
	}
}

func TestCompletenessStatement(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func([]event.Event) []event.Event
		want   string
	}{
		{"nothing", func(e []event.Event) []event.Event { return e }, "Nothing is missing: 10 records, from 1 to 10, and no source lost any."},
		{"the oldest", func(e []event.Event) []event.Event { return e[3:] }, "7 records. 3 older records are no longer kept."},
		{"one in the middle", func(e []event.Event) []event.Event { return append(e[:4:4], e[5:]...) },
			"9 records. 1 record is missing without a gap that explains it: the log was damaged or tampered with."},
		{"some that a gap explains", func(e []event.Event) []event.Event {
			e[6] = event.Event{Type: event.Gap, Seq: 7, Lost: 2, From: 4, Through: 5, Reason: "torn"}
			return append(e[:3:3], e[5:]...)
		}, "8 records. 2 records were lost, as reported by gaps."},
		{"more than a gap explains", func(e []event.Event) []event.Event {
			e[8] = event.Event{Type: event.Gap, Seq: 9, Source: event.File, Lost: 2, From: 2, Through: 8, Reason: "retention"}
			return append(e[:1:1], e[5:]...)
		}, "6 records. 2 records were lost, as reported by gaps. 2 records are missing without a gap that explains it: the log was damaged or tampered with."},
		{"one after an older loss", func(e []event.Event) []event.Event {
			e[8] = event.Event{Type: event.Gap, Seq: 9, Source: event.File, Lost: 3, From: 1, Through: 3, Reason: "retention"}
			return append(e[3:5:5], e[6:]...)
		}, "6 records. 3 records were lost, as reported by gaps. 3 older records are no longer kept. 1 record is missing without a gap that explains it: the log was damaged or tampered with."},
		{"an unknown number", func(e []event.Event) []event.Event {
			e[6] = event.Event{Type: event.Gap, Seq: 7, Lost: -1, Reason: "observer stopped"}
			return e
		}, "10 records. 1 gap has an unknown number of missing records."},
	} {
		s := newSession()
		for range 10 {
			s.usage(0, 0, 0, 0, 0, 0)
		}
		s.events = c.change(s.events)
		r := makeReport(t, s, report.Options{})
		if r.Completeness.Statement != c.want || r.Completeness.Complete != (c.name == "nothing") {
			t.Errorf("%s: %v %q, want %q", c.name, r.Completeness.Complete, r.Completeness.Statement, c.want)
		}
	}
}

func TestNotRecordedListsSelection(t *testing.T) {
	sel := event.Selection{Syscalls: "security", Ignore: []string{"futex"}, Sample: 10, Files: "off", Network: "flows"}
	r := makeReport(t, agent(), report.Options{Selection: &sel})
	got := strings.Join(r.Completeness.NotRecorded, "; ")
	want := "system calls that are not security-relevant; the system calls futex; all but one in 10 system calls; file operations; individual packets, only totals per flow"
	if got != want {
		t.Errorf("not recorded: %q, want %q", got, want)
	}
}
