package cli

import (
	"testing"
	"time"
)

func TestMegabytes(t *testing.T) {
	for in, want := range map[string]int64{"": 0, "512": 512, "512m": 512, "2g": 2048, "1GB": 1024, "64MB": 64} {
		if got, err := megabytes("memory", in); err != nil || got != want {
			t.Errorf("megabytes(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"x", "-1", "12x", "1.5g", "g", "0"} {
		if got, err := megabytes("memory", in); err == nil {
			t.Errorf("megabytes(%q) = %d, want an error", in, got)
		}
	}
}

func TestSizeAndAgo(t *testing.T) {
	for in, want := range map[int64]string{0: "0 B", 1023: "1023 B", 2048: "2 KB", 1 << 30: "1 GB", 1500 << 20: "1.46 GB"} {
		if got := size(in); got != want {
			t.Errorf("size(%d) = %q, want %q", in, got, want)
		}
	}
	now := time.Now()
	for in, want := range map[time.Duration]string{0: "just now", time.Second: "1 second ago", 5 * time.Minute: "5 minutes ago", 49 * time.Hour: "2 days ago"} {
		if got := ago(now.Add(-in), now); got != want {
			t.Errorf("ago(%v) = %q, want %q", in, got, want)
		}
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
