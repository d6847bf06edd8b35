package cli

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestMebibytes(t *testing.T) {
	for in, want := range map[string]int64{
		"":               0,
		"512":            512,
		"512m":           512,
		"2g":             2048,
		"1GB":            1024,
		"64MB":           64,
		"8796093022207":  8796093022207, // in bytes, the largest multiple of 1 MiB below 1<<63
		"8796093022207m": 8796093022207,
		"8589934591g":    8589934591 * 1024,
	} {
		got, err := mebibytes("memory", in)
		if err != nil || got != want {
			t.Errorf("mebibytes(%q): got %d, %v, want %d", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		"x":                         "is not a size",
		"-1":                        "is not a size",
		"+1":                        "is not a size",
		" 1":                        "is not a size",
		"12x":                       "is not a size",
		"1.5g":                      "is not a size",
		"0x10":                      "is not a size",
		"1_000":                     "is not a size",
		"g":                         "is not a size",
		"0":                         "is not a size",
		"0g":                        "is not a size",
		"512b":                      "is not a size", // of bytes
		"1gm":                       "is not a size",
		"1\n":                       "is not a size",
		"8796093022208":             "is too large",
		"8589934592g":               "is too large",
		"9007199254740992g":         "is too large", // times 1024 it is 1<<63
		"18014398509481984g":        "is too large", // times 1024 it is 1<<64
		"9223372036854775808":       "is too large",
		"99999999999999999999999gb": "is too large",
	} {
		got, err := mebibytes("memory", in)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--memory") {
			t.Errorf("mebibytes(%q): got %d, %v, want an error with --memory and %q", in, got, err, want)
		}
	}
}

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
