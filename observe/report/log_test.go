package report_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glasshouse/observe/eventlog"
	"glasshouse/observe/report"
)

func TestReportFromLogIsEqual(t *testing.T) {
	s := agent()
	l := eventlog.New(eventlog.Config{Dir: t.TempDir(), Jail: jail})
	if err := l.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for _, e := range s.events {
		l.Append(&e)
	}
	if err := l.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := l.Read(t.Context(), eventlog.Query{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fromLog, err := report.Make(t.Context(), c, report.Options{Jail: jail})
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	for v, r := range map[*any]*report.Report{&got: fromLog, &want: makeReport(t, s, report.Options{})} {
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, v); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
