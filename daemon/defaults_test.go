package daemon

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/api/wire"
	"glasshouse/govern"
	"glasshouse/jail"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/eventlog"
)

// docs/reference/defaults.md has the retention and the level of the defaults.
func TestDocumentedRetention(t *testing.T) {
	data, err := os.ReadFile("../docs/reference/defaults.md")
	if err != nil {
		t.Fatal(err)
	}
	c := NewConfig(0, "/root")
	for _, row := range []string{
		fmt.Sprintf("\n| event log of a jail | %d MiB of closed segments |", c.Events.KeepMB),
		fmt.Sprintf("\n| event logs of all jails | %d %% of the file system |", c.Events.Share),
		fmt.Sprintf("\n| automatic snapshots of all jails | %d %% of the file system |", c.Snapshots.Share),
		fmt.Sprintf("\n| approval requests | %.0fh after they are closed |", c.Approvals.Keep.Hours()),
		fmt.Sprintf(", and all for %.0fh | `gateway.keep`, `gateway.keep_age` |\n", c.Gateway.KeepAge.Hours()),
		fmt.Sprintf("\n| policy of a jail without a level: `jail create --policy` | %d |\n", new(govern.Policy).CurrentLevel()),
	} {
		if !strings.Contains(string(data), row) {
			t.Errorf("docs/reference/defaults.md has no row %q", row)
		}
	}
	if c.Events.KeepAge != 0 || c.Snapshots.DiskMB != 0 {
		t.Errorf("events.keep_age is %v and snapshots.disk_mb is %d, want 0 for both", c.Events.KeepAge, c.Snapshots.DiskMB)
	}
}

// The sample file has the default of every retention key.
func TestDocumentedShares(t *testing.T) {
	doc, err := os.ReadFile("../docs/reference/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	got, err := read(t, string(regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(doc)[1]))
	if err != nil {
		t.Fatal(err)
	}
	want := NewConfig(0, "/root")
	if got.Events != want.Events || got.Snapshots != want.Snapshots || got.Gateway.KeepAge != want.Gateway.KeepAge {
		t.Errorf("the documented file gives %+v, %+v and %v, the defaults are %+v, %+v and %v",
			got.Events, got.Snapshots, got.Gateway.KeepAge, want.Events, want.Snapshots, want.Gateway.KeepAge)
	}
	for _, text := range []string{"events: {share: -1}", "events: {share: 101}", "snapshots: {share: -1}", "snapshots: {share: 101}", "gateway: {keep_age: -1s}",
		"e2b: {reach: [\"a b\"]}", "e2b: {reach: [\"0.0.0.0/0\"]}", "e2b: {reach: [\"::/0\"]}"} {
		c, err := read(t, text)
		if err == nil {
			err = c.Validate()
		}
		if err == nil {
			t.Errorf("%s is valid, want an error", text)
		}
	}
}

// Every configuration key is in exactly one row of the table that states when a change of the key
// takes effect, and the table contains no other key.
func TestDocumentedEffectOfKeys(t *testing.T) {
	doc, err := os.ReadFile("../docs/reference/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(doc), "\n| affects | keys |\n| --- | --- |\n")
	if !found {
		t.Fatal("docs/reference/configuration.md has no table of what keys affect")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	var patterns []string
	for row := range strings.Lines(table) {
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row, -1) {
			patterns = append(patterns, m[1])
		}
	}
	used := map[string]bool{}
	for _, key := range keysOf(reflect.TypeFor[Config](), "") {
		var by []string
		for _, p := range patterns {
			prefix, wildcard := strings.CutSuffix(p, "*")
			if key == p || wildcard && strings.HasPrefix(key, prefix) {
				by, used[p] = append(by, p), true
			}
		}
		if len(by) != 1 {
			t.Errorf("the table has %d entries for the key %s: %v", len(by), key, by)
		}
	}
	for _, p := range patterns {
		if !used[p] {
			t.Errorf("the table has %s, which is no key", p)
		}
	}
	if sorted := slices.Sorted(slices.Values(patterns)); len(slices.Compact(sorted)) != len(patterns) {
		t.Error("the table lists a key twice")
	}
}

// keysOf returns the keys of a section of the configuration, at the lowest level.
func keysOf(section reflect.Type, prefix string) (keys []string) {
	for i := range section.NumField() {
		f := section.Field(i)
		name := f.Tag.Get("yaml")
		if name == "" || !f.IsExported() {
			continue
		}
		if f.Type.Kind() == reflect.Struct && f.Type.NumField() > 0 && f.Type.Field(0).Tag.Get("yaml") != "" {
			keys = append(keys, keysOf(f.Type, prefix+name+".")...)
			continue
		}
		keys = append(keys, prefix+name)
	}
	return keys
}

func TestDiskUsageWarnings(t *testing.T) {
	const gib = 1 << 30
	usage := func(free, events, snapshots int64) wire.Storage {
		return wire.Storage{Total: 100 * gib, Free: free * gib, Parts: []wire.StoragePart{{Name: "images", Bytes: 50 * gib}, {Name: "events", Bytes: events * gib}, {Name: "snapshots", Bytes: snapshots * gib}}}
	}
	for name, c := range map[string]struct {
		limits shares
		usage  wire.Storage
		want   []string // beginnings
	}{
		"within":         {shares{20, 20}, usage(10, 20, 20), nil},
		"events":         {shares{20, 20}, usage(30, 25, 20), []string{"events use 25% of the file system, and events.share is 20%: "}},
		"snapshots":      {shares{20, 10}, usage(30, 1, 20), []string{"snapshots use 20% of the file system, and snapshots.share is 10%: "}},
		"without limits": {shares{}, usage(30, 25, 25), nil},
		"full":           {shares{}, usage(4, 1, 1), []string{"4% of the file system is free: "}},
	} {
		got := c.limits.warnings(c.usage)
		if len(got) != len(c.want) {
			t.Errorf("%s: warnings %q, want %q", name, got, c.want)
			continue
		}
		for i, w := range c.want {
			if !strings.HasPrefix(got[i], w) {
				t.Errorf("%s: warning %q, want %q", name, got[i], w)
			}
		}
	}
}

// Doctor reports the warnings.
func TestDoctorReportsDiskUsage(t *testing.T) {
	d := &Daemon{storage: newStorage(t.TempDir(), 0, func() []jail.Spares { return nil })}
	if p := d.probeDisk(t.Context()); p.Status == "unknown" || p.Detail == "" {
		t.Errorf("probe = %+v, want a status and the free space", p)
	}
	d.storage.dir = filepath.Join(d.storage.dir, "none")
	d.storage.count = wire.Storage{}
	if p := d.probeDisk(t.Context()); p.Status != "unknown" || p.Reason == "" {
		t.Errorf("probe of a missing directory = %+v, want unknown with a reason", p)
	}
}

func TestLimitOfAutomaticSnapshots(t *testing.T) {
	dir := t.TempDir()
	whole, err := shareOf(dir, 100)
	if err != nil || whole <= 0 {
		t.Fatal(whole, err)
	}
	part := whole / 100 * 20 >> 20
	for _, c := range []struct {
		s    Snapshots
		want int64
	}{{Snapshots{DiskMB: 7, Share: 20}, 7}, {Snapshots{Share: 20}, part}, {Snapshots{}, 0}} {
		// Rounding and the size of a file system that grows make a difference of a few MiB.
		if got, err := c.s.limitMB(dir); err != nil || got < c.want || got > c.want+100 {
			t.Errorf("limit of %+v = %d MiB, %v, want %d", c.s, got, err, c.want)
		}
	}
	if _, err := (Snapshots{Share: 20}).limitMB(filepath.Join(dir, "none")); err == nil {
		t.Error("limit in a missing directory: no error")
	}
}

// The daemon removes closed segments of a stopped jail and logs it.
func TestEventLogsAreTrimmed(t *testing.T) {
	d := newGoverned(t)
	d.withJails(t)
	var logged bytes.Buffer
	d.log = slog.New(slog.NewTextHandler(&logged, nil))
	dir := filepath.Join(d.Config.Data, "jails")
	if err := os.MkdirAll(filepath.Join(dir, string(shelved)), 0o700); err != nil {
		t.Fatal(err)
	}
	d.observers = observe.NewObservers(observe.Config{Dir: dir, Policy: eventlog.Policy{SegmentMB: 1}})
	t.Cleanup(func() { d.observers.Close() })
	l, err := d.observers.Log(t.Context(), shelved)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 30_000 {
		for !l.HasRoom() {
			time.Sleep(time.Millisecond)
		}
		l.Append(&event.Event{Type: event.Proc, Op: event.OpExec, TS: time.Now().UnixMilli(), PID: int32(i), TID: int32(i), FD: -1, Exe: "/bin/some/program"})
	}
	if err := l.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	closed := func() (n int, ready bool) {
		segments, err := l.Segments()
		if err != nil {
			t.Fatal(err)
		}
		ready = true
		for _, s := range segments {
			if s.Closed {
				n++
				ready = ready && s.SHA256 != ""
			}
		}
		return n, ready && n > 0
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, ready := closed(); ready {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no segment is closed and hashed")
		}
	}
	if err := d.trimLogs(t.Context(), 1<<40); err != nil || logged.Len() > 0 {
		t.Errorf("within the limit: %v, log %q", err, logged.String())
	}
	if err := d.trimLogs(t.Context(), 1); err != nil || !strings.Contains(logged.String(), "exceeded events.share") {
		t.Errorf("over the limit: %v, log %q", err, logged.String())
	}
	if n, _ := closed(); n != 0 {
		t.Errorf("%d closed segments are left, want none", n)
	}
}
