package cli

import (
	"strings"
	"testing"
	"time"

	"glasshouse/api/wire"
)

func TestShowPast(t *testing.T) {
	now := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	files := func(n, count int, atLeast bool) wire.Past {
		p := wire.Past{Files: wire.ChangedFiles{Recorded: true, Count: count, AtLeast: atLeast}}
		for range n {
			p.Files.Items = append(p.Files.Items, wire.ChangedFile{Path: "/a", Kind: "added", Type: "file", Time: now})
		}
		return p
	}
	const none = "snapshot  none before\n\nPROCESSES\n\n"
	const row = "  added  file  2026-01-02 15:04:05  /a\n"
	for _, c := range []struct {
		name string
		past wire.Past
		want string
	}{
		{"nothing is recorded", wire.Past{}, none + "File operations of this jail are not recorded.\n"},
		{"no changes", files(0, 0, false), none + "No files had changed.\n"},
		{"one change", files(1, 1, false), none + row},
		{"more than are listed", files(1, 4, false), none + row + "and 3 more, changed earlier\n"},
		{"more than are counted", files(1, 4, true), none + row + "and at least 3 more, changed earlier\n"},
		{"all that are counted are listed", files(1, 1, true), none + row + "and more, changed earlier\n"},
		{
			"a snapshot, a rename and lost records",
			wire.Past{
				Snapshot: &wire.Snapshot{ID: "s-1", Name: "before\x1b", CreatedAt: now.Add(-time.Hour)},
				Files: wire.ChangedFiles{
					Recorded: true, Count: 2, Lost: wire.Lost{Records: 1},
					Items: []wire.ChangedFile{{Path: "/new\u202e", From: "/old", Kind: "renamed", Type: "file", Time: now, Since: true}, {Path: "/b", Kind: "deleted", Time: now}},
				},
			},
			"snapshot  s-1  before\\x1b, 1 hour ago\n\nPROCESSES\n\n" +
				"+  renamed  file  2026-01-02 15:04:05  /old -> /new\\u202e\n" +
				"   deleted        2026-01-02 15:04:05  /b\n" +
				"File events are missing: there may have been other changes.\n",
		},
	} {
		var b strings.Builder
		showPast(&b, c.past, "PROCESSES\n", now)
		if got := b.String(); got != c.want {
			t.Errorf("%s: got\n%q\nwant\n%q", c.name, got, c.want)
		}
	}
}

func TestSyscallDurationsAreRounded(t *testing.T) {
	for ns, want := range map[int64]string{
		0: "0s", 4: "0s", 5: "10ns", 1234: "1.23µs", 999_994: "999.99µs", 1_234_567: "1.23ms", 999_996_000: "1s", 1_234_567_890: "1.23s", 90_000_000_000: "1m30s",
	} {
		if got := took(ns); got != want {
			t.Errorf("took(%d): got %q, want %q", ns, got, want)
		}
	}
}

func TestSyscallProfileTable(t *testing.T) {
	p := wire.Profile{Count: 3, Failed: 2, Denied: 1, Latency: wire.Latency{P50: 1000, P99: 2000}}
	p.Calls = []wire.CallProfile{{Name: "openat\x1b"}}
	p.Errors = []wire.ErrorCount{{Errno: "EACCES", Count: 2}, {Errno: "EPERM", Count: 1}}
	p.Lost = wire.Lost{Records: 1}
	var b strings.Builder
	showProfile(&b, p)
	want := []string{
		"CALL TIMES FAILED DENIED P50 P99 TOTAL",
		`openat\x1b 0 0 0 0s 0s 0s`,
		"all 3 2 1 1µs 2µs 0s",
		"errors: EACCES 2, EPERM 1",
		"System call events are missing: the counts are too low.",
	}
	if got := squeezeSpaces(b.String()); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

func TestNetworkHosts(t *testing.T) {
	d := newScriptedDaemon(t, map[string]string{"GET /jails/" + aJail + "/connections": `{"items":[
		{"host":"evil\u001b.example","connections":2,"bytes_out":1024,"bytes_in":2048,"processes":[{"pid":7,"comm":"cu\u001brl"},{"pid":8,"comm":"wget"}],
		 "verdicts":[{"allowed":true,"count":3},{"allowed":false,"reason":"rule","count":1}]}]}`})
	code, out, errs := d.run("", "net", aJail, "--hosts")
	want := "HOST CONNECTIONS OUT IN PROCESSES DECIDED\n" + `evil\x1b.example 2 1 KiB 2 KiB cu\x1brl (7), wget (8) allowed 3 ×, refused (rule) 1 ×`
	if got := squeezeSpaces(out); code != 0 || got != want {
		t.Errorf("got exit code %d, %q and\n%s\nwant 0 and\n%s", code, errs, got, want)
	}
}

func TestJailShowUsageAndLostEvents(t *testing.T) {
	for _, c := range []struct {
		name string
		jail wire.Jail
		want []string // lines, with one space between words
		not  string
	}{
		{
			"conditions and an origin",
			wire.Jail{
				ID: aJail, State: "running", Reason: "asked\x1b", Backend: "bwrap", Rootfs: wire.Rootfs{Host: true}, Digest: "sha256:d",
				Conditions: []wire.Condition{{Type: "Unenforced", Detail: "no cgroup", Remedy: "run as root"}},
				Origin:     &wire.Origin{Snapshot: aSnapshot, Jail: "j-bbbbbbbbbbbb", Number: 2}, Nearest: aSnapshot,
			},
			[]string{"id " + aJail, "state running", `reason asked\x1b`, "Unenforced no cgroup; run as root", "backend bwrap", "rootfs host", "digest sha256:d",
				"made from " + aSnapshot + " of j-bbbbbbbbbbbb, number 2", "nearest " + aSnapshot, "limits weight 0, memory 0 B, disk 0 B, 0 processes"},
			"name",
		},
		{
			"usage",
			wire.Jail{
				ID: aJail, Name: "web", Backend: "oci", Runtime: "runc", Limits: wire.Limits{CPUShares: 256, MemoryMB: 512, MaxPIDs: 128},
				Usage: &wire.Usage{CPUMS: 1500, MemoryBytes: 1 << 20, MemoryPeak: 2 << 20, DiskBytes: 3 << 20, DiskLimit: 1 << 30, PIDs: 4, OOMKills: 5, NotMeasured: []string{"disk", "cpu"}},
			},
			[]string{"backend oci runc", "cpu 1.5s used, weight 256", "memory 1 MiB of 512 MiB, peak 2 MiB", "disk 3 MiB of 1 GiB", "processes 4 of 128", "out of memory 5 killed", "not measured disk, cpu"},
			"limits",
		},
		{
			"what is recorded",
			wire.Jail{ID: aJail, Observation: &wire.Observation{
				Log:     wire.EventLog{Events: 9, Bytes: 2048, Lost: map[string]int64{"syscall": 3, "file": 1}, Err: "disk full"},
				Sources: map[string]wire.Source{"net": {Seen: 5, Lost: 1, Throttled: 2, Err: "ring\x1b"}, "ebpf": {Seen: 7}},
			}},
			[]string{"events 9 stored, 2 KiB", "events lost 1 of type file: the disk was too slow", "events lost 3 of type syscall: the disk was too slow", "not written disk full", "ebpf 7 seen, 0 lost", `net 5 seen, 1 lost, slowed the jail 2 times: ring\x1b`},
			"usage",
		},
	} {
		var b strings.Builder
		showJail(&b, c.jail)
		got := squeezeSpaces(b.String())
		for _, want := range c.want {
			if !strings.Contains("\n"+got+"\n", "\n"+want+"\n") {
				t.Errorf("%s: got\n%s\nwant the line %q", c.name, got, want)
			}
		}
		if strings.Contains("\n"+got, "\n"+c.not+" ") {
			t.Errorf("%s: got\n%s\nwant no line of %q", c.name, got, c.not)
		}
	}
}
