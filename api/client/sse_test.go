package client

import (
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func readEvents(s string) ([]event, error) {
	r := newSSEReader(strings.NewReader(s))
	var all []event
	for {
		e, err := r.next()
		if err != nil {
			return all, err
		}
		all = append(all, e)
	}
}

func TestEventStreams(t *testing.T) {
	for _, c := range []struct {
		stream string
		want   []event
	}{
		{"", nil},
		{"data: a\n\n", []event{{data: "a"}}},
		{"data: a\n", nil}, // truncated
		{"data:a\ndata:  b\n\n", []event{{data: "a\n b"}}},
		{"id: 1\nevent: x\ndata: a\n\ndata: b\n\n", []event{{"1", true, "x", "a"}, {"1", false, "", "b"}}},
		{"\uFEFFdata: a\n\n", []event{{data: "a"}}},
		{"data: a\r\n\r\ndata: b\r\rdata: c\n\n", []event{{data: "a"}, {data: "b"}, {data: "c"}}},
		{": comment\n\nevent: x\n\ndata: a\n\n", []event{{data: "a"}}},
		{"id: 1\x00\nid: 2\nretry: 5\nnonsense\ndata\n\n", []event{{id: "2", own: true, data: ""}}},
		{"data: a:b: c\n\n", []event{{data: "a:b: c"}}},
	} {
		got, err := readEvents(c.stream)
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(event{})); diff != "" || err != io.EOF {
			t.Errorf("%q: %v (-want +got)\n%s", c.stream, err, diff)
		}
	}
	if _, err := readEvents("data: " + strings.Repeat("a", maxLine)); err != errLongLine {
		t.Errorf("line that is too long: %v, want %v", err, errLongLine)
	}
	if _, err := readEvents(strings.Repeat("data: "+strings.Repeat("a", 1<<20)+"\n", 8)); err != errLongLine {
		t.Errorf("event that is too long: %v, want %v", err, errLongLine)
	}
}

func FuzzEventStream(f *testing.F) {
	for _, s := range []string{"id: 1\nevent: output\ndata: {\"a\":1}\n\n", "data\r\n\r\n", ":\n\n", "\uFEFFid:\x00\n\n", "data: a\rdata: b\n\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		events, err := readEvents(s)
		if err == nil {
			t.Fatal("readEvents returned no error at the end of the stream")
		}
		for _, e := range events {
			if strings.ContainsAny(e.id, "\x00\n\r") || strings.ContainsAny(e.name, "\n\r") || strings.Contains(e.data, "\r") {
				t.Errorf("event %+v of %q", e, s)
			}
			// Encoding and decoding the event again must not change it.
			again, _ := readEvents("id: " + e.id + "\nevent: " + e.name + "\ndata: " + strings.ReplaceAll(e.data, "\n", "\ndata: ") + "\n\n")
			if e.own = true; len(again) != 1 || again[0] != e {
				t.Errorf("%+v was decoded as %+v", e, again)
			}
		}
	})
}
