package cli

import (
	"strings"
	"testing"
	"time"
)

func TestParseTime(t *testing.T) {
	now := time.Date(2026, 1, 2, 15, 4, 5, 0, time.Local)
	for in, want := range map[string]time.Time{
		"":                     {},
		"5m":                   now.Add(-5 * time.Minute),
		"0s":                   now,
		"1h30m":                now.Add(-90 * time.Minute),
		"2026-01-02T15:04:05Z": time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC),
		"2026-01-02T15:04:05":  now,
		"2026-01-02 15:04:05":  now,
		"2026-01-02 15:04":     now.Add(-5 * time.Second),
		"2026-01-02T15:04":     now.Add(-5 * time.Second),
		"2026-01-02":           time.Date(2026, 1, 2, 0, 0, 0, 0, time.Local),
		"7d":                   now.Add(-7 * 24 * time.Hour),
		"1d12h":                now.Add(-36 * time.Hour),
	} {
		if got, err := parseTime("since", in, now); err != nil || !got.Equal(want) {
			t.Errorf("--since %q: got %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"-5m", "5", "yesterday", "2026-13-01", "15:04", "-1d", "d", "1d2", "99999d"} {
		if got, err := parseTime("since", in, now); err == nil || !strings.Contains(err.Error(), "--since") {
			t.Errorf("--since %q: got %v, %v, want an error with the flag", in, got, err)
		}
	}
}

func TestMebibytes(t *testing.T) {
	for in, want := range map[string]int64{
		"":               0,
		"512":            512,
		"512m":           512,
		"2g":             2048,
		"1GB":            1024,
		"64MB":           64,
		"64MiB":          64,
		"2GiB":           2048,
		"1.5g":           1536,
		"0.5GiB":         512,
		"2048k":          2,
		"1TiB":           1 << 20,
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
		"1.0001g":                   "is not a size", // not whole
		"1.5":                       "is not a size",
		"1k":                        "is not a size", // less than a MiB
		"1e3":                       "is not a size",
		"1/2g":                      "is not a size",
		"1.2.3g":                    "is not a size",
		"0x10":                      "is not a size",
		"1_000":                     "is not a size",
		"g":                         "is not a size",
		"0":                         "is not a size",
		"0g":                        "is not a size",
		"512b":                      "is not a size", // 512 bytes
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

func TestProcessors(t *testing.T) {
	for in, want := range map[string]int64{"1": 256, "1.5": 384, "0.25": 64, "4": 1024, "16": 4096} {
		if got, err := processorShares(in); err != nil || got != want {
			t.Errorf("--cpus %s: got %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"0", "-1", "x", "", "1.001", "1e3", "99999999999999999999"} {
		if got, err := processorShares(in); err == nil || !strings.Contains(err.Error(), "--cpus") {
			t.Errorf("--cpus %q: got %d, %v, want an error", in, got, err)
		}
	}
}

func TestBudgetAmounts(t *testing.T) {
	for in, want := range map[string]int64{
		"steps=50": 50, "cost-micros=$0.50": 500_000, "cost-micros=$2": 2_000_000, "cost-micros=7": 7, "wall-clock-ms=30m": 1_800_000, "wall-clock-ms=1d": 86_400_000, "wall-clock-ms=900": 900, "network-bytes=2GiB": 2 << 30, "storage-bytes=1.5k": 1536, "network-bytes=10": 10,
	} {
		name, _, _ := strings.Cut(in, "=")
		if got, err := parseBudget([]string{in}); err != nil || got[name] != want {
			t.Errorf("--budget %s: got %v, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"steps", "steps=", "steps=-1", "steps=$1", "steps=30m", "cost-micros=$", "cost-micros=$-1", "cost-micros=$0.0000001", "wall-clock-ms=-1s", "cost-micros=$99999999999999", "network-bytes=2XB", "network-bytes=-1g", "network-bytes=99999999999t", "steps=2g"} {
		if got, err := parseBudget([]string{in}); err == nil || !strings.Contains(err.Error(), "--budget") {
			t.Errorf("--budget %s: got %v, %v, want an error", in, got, err)
		}
	}
}

// All commands with a period have the same two flags.
func TestPeriodFlags(t *testing.T) {
	for line, path := range map[string]string{
		"audit ls":                 "GET /chain?",
		"egress log " + aJail:      "GET /chain?",
		"net " + aJail:             "GET /jails/" + aJail + "/network/log?",
		"net --packets " + aJail:   "GET /jails/" + aJail + "/events?",
		"report " + aJail:          "GET /jails/" + aJail + "/report?",
		"syscalls " + aJail:        "GET /jails/" + aJail + "/syscalls?",
		"events --tail 1 " + aJail: "GET /jails/" + aJail + "/events?",
	} {
		d := newScriptedDaemon(t, nil)
		d.run("", append(argsOf(line), "--since", "2026-11-28T14:00:00Z", "--until", "2026-11-28T15:00:00Z")...)
		if got := d.asked(); !strings.Contains(got, path) || !strings.Contains(got, "2026-11-28T14%3A00%3A00Z") || !strings.Contains(got, "2026-11-28T15%3A00%3A00Z") {
			t.Errorf("%s: requests %q, want %s with the period", line, got, path)
		}
		if code, _, errs := d.run("", append(argsOf(line), "--until", "soon")...); code != 2 || !strings.Contains(errs, "--until") {
			t.Errorf("%s --until soon: exit code %d, %q; want 2 and the flag", line, code, errs)
		}
	}
}

func TestWorkdirAndProcessorFlags(t *testing.T) {
	w := newWorkspace(t, execExit(0))
	if code, _, errs := w.run("", "run", "-C", w.dir, "--cpus", "1.5", "-w", "/work/sub", "make"); code != 0 {
		t.Errorf("run: %d, %s", code, errs)
	}
	for _, want := range []string{`"cpu_shares":384`, `{"argv":["make"],"cwd":"/work/sub"`} {
		if !strings.Contains(w.asked(), want) {
			t.Errorf("requests %s, want %s", w.asked(), want)
		}
	}
	for _, flag := range []string{"-w", "--workdir", "--cwd"} {
		d := newScriptedDaemon(t, map[string]string{execPath: execStart("") + execExit(0)})
		d.run("", "exec", flag, "/sub", aJail, "make")
		if !strings.Contains(d.asked(), `"cwd":"/sub"`) {
			t.Errorf("exec %s: requests %s, want the directory", flag, d.asked())
		}
	}
}

func TestStartTimes(t *testing.T) {
	now := time.Date(2026, 1, 2, 15, 4, 5, 0, time.Local)
	for in, want := range map[string]time.Time{
		"10m": now.Add(10 * time.Minute), "7d": now.Add(7 * 24 * time.Hour), "2027-01-31T09:00:00Z": time.Date(2027, 1, 31, 9, 0, 0, 0, time.UTC), "2027-01-31 09:00": time.Date(2027, 1, 31, 9, 0, 0, 0, time.Local),
	} {
		if got, err := parseStart("at", in, now); err != nil || !got.Equal(want) {
			t.Errorf("--at %q: got %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"-10m", "noon", "5"} {
		if got, err := parseStart("at", in, now); err == nil || !strings.Contains(err.Error(), "nor a delay such as 10m") {
			t.Errorf("--at %q: got %v, %v, want an error", in, got, err)
		}
	}
}

func TestInstants(t *testing.T) {
	for in, want := range map[string]string{"": "", "17": "17", "5m": "5m", "2026-01-02T15:04:05Z": "2026-01-02T15:04:05Z"} {
		if got, err := instant("--at", in); err != nil || got != want {
			t.Errorf("--at %q: got %q, %v, want %q", in, got, err, want)
		}
	}
	day, err := instant("--at", "1d")
	if at, bad := time.Parse(time.RFC3339Nano, day); err != nil || bad != nil || time.Since(at).Round(time.Minute) != 24*time.Hour {
		t.Errorf("--at 1d: got %q, %v, want the time one day ago", day, err)
	}
	for _, in := range []string{"noon", "-5m", "-1"} {
		if got, err := instant("--at", in); err == nil {
			t.Errorf("--at %q: got %q, want an error", in, got)
		}
	}
}

func TestDecideWaits(t *testing.T) {
	for in, want := range map[string]string{"5": "5000", "5s": "5000", "2m": "120000"} {
		d := newScriptedDaemon(t, nil)
		d.run("", "decide", aJail, "bash", "make", "--wait", in)
		if !strings.Contains(d.asked(), `"wait_ms":`+want) {
			t.Errorf("decide --wait %s: requests %s, want %s ms", in, d.asked(), want)
		}
	}
}

func TestGoalLimits(t *testing.T) {
	d := newScriptedDaemon(t, map[string]string{"POST /chat/run": runIn("scheduled")})
	if code, _, errs := d.run("", "goal", "x", "-d", "--cpus", "2", "--memory", "4GiB"); code != 0 || !strings.Contains(d.asked(), `"limits":{"cpu_shares":512,"memory_mb":4096}`) {
		t.Errorf("goal: exit code %d, %q, requests %s; want the limits of the jail", code, errs, d.asked())
	}
}
