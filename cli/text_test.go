package cli

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestSizeAndAgo(t *testing.T) {
	for in, want := range map[int64]string{
		0:             "0 B",
		1023:          "1023 B",
		1024:          "1 KiB",
		2048:          "2 KiB",
		999 << 10:     "999 KiB",
		1023590:       "0.976 MiB", // 999.6 KiB has more than three digits when it is rounded
		1 << 30:       "1 GiB",
		1500 << 20:    "1.46 GiB",
		1 << 40:       "1 TiB",
		1 << 50:       "1 PiB",
		math.MaxInt64: "8 EiB",
	} {
		if got := size(in); got != want {
			t.Errorf("size(%d): got %q, want %q", in, got, want)
		}
	}
	now := time.Now()
	for in, want := range map[time.Duration]string{
		-time.Hour:           "just now", // the clock of another host
		0:                    "just now",
		time.Second:          "1 second ago",
		59 * time.Second:     "59 seconds ago",
		60 * time.Second:     "1 minute ago",
		5 * time.Minute:      "5 minutes ago",
		time.Hour:            "1 hour ago",
		23 * time.Hour:       "23 hours ago",
		24 * time.Hour:       "1 day ago",
		49 * time.Hour:       "2 days ago",
		400 * 24 * time.Hour: "400 days ago",
	} {
		if got := ago(now.Add(-in), now); got != want {
			t.Errorf("ago(%v): got %q, want %q", in, got, want)
		}
	}
	if got := ago(time.Time{}, now); got != "" {
		t.Errorf("ago of no time: got %q, want %q", got, "")
	}
	for d, want := range map[time.Duration]string{-time.Second: "-", 0: "-", 90 * time.Second: "in 1m30s", 1600 * time.Millisecond: "in 2s"} {
		if got := in(now.Add(d), now); got != want {
			t.Errorf("in(%v): got %q, want %q", d, got, want)
		}
	}
}

func TestTableAlignsColumnsAndShowsControlCharacters(t *testing.T) {
	var b strings.Builder
	table(&b, [][]string{{"ID", "NAME"}, {"j-1", "a\tb\nc"}, {"j-22", "\x1b[2J\u202e"}, {"", "last"}})
	want := "ID    NAME\nj-1   a\\tb\\nc\nj-22  \\x1b[2J\\u202e\n      last\n"
	if got := b.String(); got != want {
		t.Errorf("table: got %q, want %q", got, want)
	}
	b.Reset()
	table(&b, nil)
	if got := b.String(); got != "" {
		t.Errorf("table without rows: got %q, want %q", got, "")
	}
}

func TestKeyValues(t *testing.T) {
	env := func(k string) string { return "from env" }
	m, err := keyValues([]string{"A=1", "B=", "C=x=y", "D"}, env)
	if err != nil || m["A"] != "1" || m["B"] != "" || m["C"] != "x=y" || m["D"] != "from env" {
		t.Errorf("keyValues = %v, %v", m, err)
	}
	if _, err := keyValues([]string{"=x"}, env); err == nil {
		t.Error("a value without a key is taken")
	}
	if _, err := keyValues([]string{"label"}, nil); err == nil {
		t.Error("a label without a value is taken")
	}
}
