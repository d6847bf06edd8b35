package e2b

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/e2b/e2btest"
	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/init/protocol"
	"glasshouse/policy/secret"
)

// Each failed fork reports its own error, and no unreported fork remains.
func TestFailedForksAreReportedAndRemoved(t *testing.T) {
	d := newFakeDaemon(t)
	box := d.create(`{"templateID":"base"}`)
	at := "/sandboxes/" + box.SandboxID
	d.failWith("Restore", fault.Newf(fault.Exhausted, "snapshot.Restore", "", "there are too many jails"))
	forks := e2btest.Read[[]wireFork](t, d.api(201, "POST", at+"/fork", `{"count":3}`))
	if len(forks) != 3 {
		t.Fatalf("got %d forks, want 3", len(forks))
	}
	for _, f := range forks {
		if f.Sandbox != nil || f.Error == nil || f.Error.Code != 429 || !strings.Contains(f.Error.Message, "too many jails") {
			t.Errorf("the fork is %+v with the error %+v, want the error 429 alone", f.Sandbox, f.Error)
		}
	}
	if len(d.jails) != 1 || len(d.records) != 1 || len(d.snaps) != 0 {
		t.Errorf("there are %d jails, %d records and %d snapshots, want the one sandbox", len(d.jails), len(d.records), len(d.snaps))
	}
	d.failWith("Take", errors.New("the disk is full"))
	d.api(500, "POST", at+"/fork", `{}`)
	d.api(204, "POST", at+"/pause", `{"memory":false}`)
	d.api(409, "POST", at+"/fork", `{}`)
}

// Concurrent requests that change a sandbox are serialized.
func TestConcurrentChangesAreSerialized(t *testing.T) {
	d := newFakeDaemon(t)
	box := d.create(`{"templateID":"base"}`)
	at := "/sandboxes/" + box.SandboxID
	var wg sync.WaitGroup
	for n := range 24 {
		wg.Go(func() {
			path, body := []string{"/pause", "/resume", "/connect"}[n%3], []string{"", `{"timeout":60}`, `{"timeout":60}`}[n%3]
			w := d.do("POST", at+path, body, "X-API-Key", "key-mine")
			if !slices.Contains([]int{200, 201, 204, 409}, w.Code) {
				t.Errorf("POST %s: got %d %s, want success or 409", path, w.Code, w.Body)
			}
		})
	}
	wg.Wait()
	b := d.handle(box.SandboxID).box.Load()
	want := map[State]jail.State{Running: jail.Running, Paused: jail.Stopped}[b.State]
	if got := d.jails[b.Jail].State; got != want || want == "" {
		t.Errorf("the sandbox is %s and its jail %s, want %q", b.State, got, want)
	}
	wg.Go(func() { d.do("DELETE", at, "", "X-API-Key", "key-mine") })
	wg.Go(func() { d.do("POST", at+"/resume", `{"timeout":60}`, "X-API-Key", "key-mine") })
	wg.Wait()
	if len(d.jails) != 0 || len(d.records) != 0 {
		t.Errorf("there are %d jails and %d records after a kill, want none", len(d.jails), len(d.records))
	}
}

// A request that is cancelled while it waits for another change has no effect.
func TestCancelledRequestChangesNothing(t *testing.T) {
	d := newFakeDaemon(t)
	box := d.create(`{"templateID":"base"}`)
	c := d.handle(box.SandboxID)
	c.lock <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, op := range map[string]func() error{
		"Kill":       func() error { return d.boxes.Kill(ctx, "mine", box.SandboxID) },
		"Pause":      func() error { return d.boxes.Pause(ctx, "mine", box.SandboxID, true) },
		"Resume":     func() error { _, err := d.boxes.Resume(ctx, "mine", box.SandboxID, time.Minute, true); return err },
		"Connect":    func() error { _, _, err := d.boxes.Connect(ctx, "mine", box.SandboxID, time.Minute, true); return err },
		"Stay":       func() error { return d.boxes.SetTimeout(ctx, "mine", box.SandboxID, time.Minute, false) },
		"Fork":       func() error { _, err := d.boxes.Fork(ctx, "mine", box.SandboxID, 1, time.Minute); return err },
		"Snapshot":   func() error { _, err := d.boxes.Snapshot(ctx, "mine", box.SandboxID, "a"); return err },
		"SetNetwork": func() error { return d.boxes.SetNetwork(ctx, "mine", box.SandboxID, Network{}, nil) },
	} {
		if err := op(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s = %v, want %v", name, err, context.Canceled)
		}
	}
	<-c.lock
	if got := d.state(box.SandboxID); got != Running || len(d.snaps) != 0 || d.count("Delete")+d.count("Pause")+d.count("Regovern") != 0 {
		t.Errorf("the sandbox is %s after the calls %q, want running and no change", got, d.calls)
	}
}

// fakeSecrets stores the secrets of teams in memory.
type fakeSecrets struct {
	mu   sync.Mutex
	all  []secret.OwnedSecret
	fail error
}

func (f *fakeSecrets) find(owner, ref string) (int, error) {
	i := slices.IndexFunc(f.all, func(o secret.OwnedSecret) bool { return o.Owner == owner && (o.Name == ref || o.ID == ref) })
	if i < 0 {
		return 0, fault.Newf(fault.NotFound, "secret", ref, "there is no secret %s of %s", ref, owner)
	}
	return i, f.fail
}

func (f *fakeSecrets) AddOwned(_ context.Context, o secret.OwnedSecret, _ []byte, _ string) (secret.OwnedSecret, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find(o.Owner, o.Name); err == nil {
		return o, fault.Newf(fault.Conflict, "secret", o.Name, "there is a secret %s", o.Name)
	}
	o.Version, o.Created = 1, time.Unix(int64(1e9+len(f.all)), 0)
	o.Updated = o.Created
	if f.fail == nil {
		f.all = append(f.all, o)
	}
	return o, f.fail
}

func (f *fakeSecrets) UpdateOwned(_ context.Context, owner, ref string, _ []byte, metadata map[string]string, _ string) (secret.OwnedSecret, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, err := f.find(owner, ref)
	if err != nil {
		return secret.OwnedSecret{}, err
	}
	f.all[i].Version++
	if metadata != nil {
		f.all[i].Metadata = metadata
	}
	return f.all[i], nil
}

func (f *fakeSecrets) Owned(owner string) []secret.OwnedSecret {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.all), func(o secret.OwnedSecret) bool { return o.Owner != owner })
}

func (f *fakeSecrets) FindOwned(_ context.Context, owner, ref string) (secret.OwnedSecret, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, err := f.find(owner, ref)
	if err != nil {
		return secret.OwnedSecret{}, err
	}
	return f.all[i], nil
}

func (f *fakeSecrets) DeleteOwned(_ context.Context, owner, ref, _ string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, err := f.find(owner, ref)
	if err == nil {
		f.all = slices.Delete(f.all, i, i+1)
	}
	return err
}

func TestSecretsArePerTeamAndNeverReturned(t *testing.T) {
	d := newFakeDaemon(t)
	kept := &fakeSecrets{}
	d.server.cfg.Secrets = kept
	const value = "correct horse battery staple"
	made := e2btest.Read[wireSecret](t, d.api(201, "POST", "/secrets", `{"name":" API-Key ","value":"`+value+`"}`))
	if made.Name != "api-key" || made.Version != 1 || made.Metadata == nil || !strings.HasPrefix(made.ID, secretID) {
		t.Errorf("the secret is %+v, want api-key in version 1 with empty metadata", made)
	}
	for _, ref := range []string{"api-key", "API-Key", made.ID, strings.ToUpper(made.ID)} {
		if got := e2btest.Read[wireSecret](t, d.api(200, "GET", "/secrets/"+ref, "")); got.ID != made.ID {
			t.Errorf("GET /secrets/%s is %+v, want %s", ref, got, made.ID)
		}
	}
	if got := e2btest.Read[wireSecret](t, d.api(200, "POST", "/secrets/api-key", `{"value":"new","metadata":{"a":"b"}}`)); got.Version != 2 || got.Metadata["a"] != "b" {
		t.Errorf("the secret after an update is %+v, want version 2 with its metadata", got)
	}
	if got := e2btest.Read[wireSecret](t, d.api(200, "POST", "/secrets/api-key", `{"value":"new"}`)); got.Metadata["a"] != "b" {
		t.Errorf("the secret after an update without metadata is %+v, want unchanged metadata", got)
	}
	d.api(201, "POST", "/secrets", `{"name":"second","value":"x"}`)
	w := d.api(200, "GET", "/secrets?limit=1", "")
	if got := e2btest.Read[[]wireSecret](t, w); len(got) != 1 || w.Header().Get("X-Next-Token") == "" {
		t.Errorf("a page of one is %+v with the token %q, want one and a token", got, w.Header().Get("X-Next-Token"))
	}
	for _, c := range []struct {
		method, path, body string
		want               int
	}{
		{"POST", "/secrets", `{"name":"api-KEY","value":"` + value + `"}`, 409},
		{"POST", "/secrets", `{"name":"sec_mine","value":"` + value + `"}`, 400},
		{"POST", "/secrets", `{"name":"mine","value":""}`, 400},
		{"POST", "/secrets", `{"name":"mine","value":"` + value, 400},
		{"POST", "/secrets", `{"name":"mine","value":["` + value + `"]}`, 400},
		{"POST", "/secrets/none", `{"value":"` + value + `"}`, 404},
		{"POST", "/secrets/sec_x", `{"value":"` + value + `"}`, 400},
		{"GET", "/secrets/none", "", 404},
		{"GET", "/secrets/a%2Fb", "", 400},
		{"DELETE", "/secrets/none", "", 404},
		{"DELETE", "/secrets/a.b", "", 400},
		{"GET", "/secrets?limit=-1", "", 400},
	} {
		if w := d.api(c.want, c.method, c.path, c.body); strings.Contains(w.Body.String(), "horse") {
			t.Errorf("%s %s = %s, want it without the value", c.method, c.path, w.Body)
		}
	}
	for _, c := range [][2]string{{"GET", ""}, {"DELETE", ""}, {"POST", `{"value":"theirs"}`}} {
		if w := d.do(c[0], "/secrets/api-key", c[1], "X-API-Key", "key-other"); w.Code != 404 {
			t.Errorf("%s of another team's secret: got %d %s, want 404", c[0], w.Code, w.Body)
		}
	}
	kept.fail = errors.New("cannot seal " + value)
	if w := d.api(500, "POST", "/secrets", `{"name":"third","value":"`+value+`"}`); strings.Contains(w.Body.String(), "horse") {
		t.Errorf("a failing secret store: got %s, want the error without the value", w.Body)
	}
	kept.fail = nil
	d.api(204, "DELETE", "/secrets/api-key", "")
	d.api(404, "GET", "/secrets/api-key", "")
}

func TestVolumesArePerTeam(t *testing.T) {
	d := newFakeDaemon(t)
	v := e2btest.Read[wireVolume](t, d.api(201, "POST", "/volumes", `{"name":"data"}`))
	if v.Name != "data" || v.Token == "" || !validVolume(v.VolumeID) {
		t.Errorf("the volume is %+v, want data with an id and a token", v)
	}
	listed := e2btest.Read[[]wireVolume](t, d.api(200, "GET", "/volumes", ""))
	if diff := cmp.Diff([]wireVolume{{VolumeID: v.VolumeID, Name: "data"}}, listed); diff != "" {
		t.Errorf("the list (-want +got): %s", diff)
	}
	if got := e2btest.Read[wireVolume](t, d.api(200, "GET", "/volumes/"+v.VolumeID, "")); got != v {
		t.Errorf("the volume is %+v, want %+v", got, v)
	}
	for _, name := range []string{"", "a b", "../x", strings.Repeat("n", 65), "data"} {
		d.api(400, "POST", "/volumes", fmt.Sprintf(`{"name":%q}`, name))
	}
	for _, method := range []string{"GET", "DELETE"} {
		if w := d.do(method, "/volumes/"+v.VolumeID, "", "X-API-Key", "key-other"); w.Code != 404 {
			t.Errorf("%s of another team's volume: got %d %s, want 404", method, w.Code, w.Body)
		}
	}
	all := d.server.cfg.Volumes
	all.mu.Lock()
	all.all[v.VolumeID].holders++
	all.mu.Unlock()
	if w := d.api(409, "DELETE", "/volumes/"+v.VolumeID, ""); !strings.Contains(w.Body.String(), "kill the sandboxes") {
		t.Errorf("the error is %s, want the remedy", w.Body)
	}
	all.mu.Lock()
	all.all[v.VolumeID].holders--
	all.mu.Unlock()
	d.api(204, "DELETE", "/volumes/"+v.VolumeID, "")
	d.api(404, "GET", "/volumes/"+v.VolumeID, "")
	for n := range maxVolumes {
		d.api(201, "POST", "/volumes", fmt.Sprintf(`{"name":"v%d"}`, n))
	}
	d.api(429, "POST", "/volumes", `{"name":"more"}`)
}

func TestConcurrentVolumeCreationRespectsLimit(t *testing.T) {
	records := &fakeVolumes{slow: 10 * time.Millisecond}
	s := NewVolumes(VolumesConfig{Store: records, Dir: t.TempDir()})
	var wg sync.WaitGroup
	var refused atomic.Int32
	for n := range maxVolumes + 20 {
		wg.Go(func() {
			if _, err := s.Create(t.Context(), "key-one", fmt.Sprint("v", n)); errors.Is(err, fault.Exhausted) {
				refused.Add(1)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if kept := len(s.List("key-one")); kept != maxVolumes || refused.Load() != 20 {
		t.Errorf("%d volumes were created and %d rejected, want %d and 20", kept, refused.Load(), maxVolumes)
	}
	// A failed creation does not count.
	if err := s.Destroy(t.Context(), "key-one", s.List("key-one")[0].ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), "key-one", s.List("key-one")[0].Name); err == nil {
		t.Error("a second volume of the same name was created")
	}
	if _, err := s.Create(t.Context(), "key-one", "last"); err != nil {
		t.Errorf("creation after a failed one: %v", err)
	}
}

// The volume's files exist already, as for a mounted volume.
func TestVolumeFiles(t *testing.T) {
	d := newFakeDaemon(t)
	v := e2btest.Read[wireVolume](t, d.api(201, "POST", "/volumes", `{"name":"data"}`))
	all := d.server.cfg.Volumes
	all.mu.Lock()
	one := all.all[v.VolumeID]
	all.mu.Unlock()
	one.mount.Lock()
	one.on = true
	one.mount.Unlock()
	dir := all.files(v.VolumeID)
	if err := os.MkdirAll(filepath.Join(dir, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"a/one": "1", "a/b/two": "22"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	at := "/volumecontent/" + v.VolumeID
	do := func(want int, method, path, body string) string {
		t.Helper()
		w := e2btest.Do(t, d.server, want, d.request(method, at+path, body, "Authorization", "Bearer "+v.Token))
		return w.Body.String()
	}
	list := func(query string) (names []string) {
		t.Helper()
		w := e2btest.Do(t, d.server, 200, d.request("GET", at+"/dir?"+query, "", "Authorization", "Bearer "+v.Token))
		for _, e := range e2btest.Read[[]wireEntry](t, w) {
			names = append(names, e.Type+" "+e.Path)
		}
		slices.Sort(names)
		return names
	}
	if got, want := list("path=/a"), []string{"directory /a/b", "file /a/one"}; !slices.Equal(got, want) {
		t.Errorf("the directory has %q, want %q", got, want)
	}
	if got, want := list("path=/&depth=3"), []string{"directory /a", "directory /a/b", "file /a/b/two", "file /a/one"}; !slices.Equal(got, want) {
		t.Errorf("the tree has %q, want %q", got, want)
	}
	if got := do(200, "GET", "/file?path=/a/b/two", ""); got != "22" {
		t.Errorf("the file is %q, want 22", got)
	}
	if got := do(201, "PUT", "/file?path=/a/one", "new text"); !strings.Contains(got, `"size":8`) {
		t.Errorf("the file written is %s, want 8 bytes", got)
	}
	do(409, "PUT", "/file?path=/a/one&force=false", "other")
	if got := do(200, "GET", "/file?path=../../a/one", ""); got != "new text" {
		t.Errorf("the file is %q, want new text", got)
	}
	if got := do(200, "PATCH", "/path?path=/a/one", `{"mode":384}`); !strings.Contains(got, `"mode":384`) {
		t.Errorf("the file with another mode is %s, want 0600", got)
	}
	for _, c := range []struct {
		method, path, body string
		want               int
	}{
		{"PATCH", "/path?path=/a/one", `{"mode":4096}`, 400},
		{"PATCH", "/path?path=/a/one", `{"uid":-1}`, 400},
		{"PATCH", "/path?path=/a/one", `{"gid":65536}`, 400},
		{"PATCH", "/path?path=/a/one", `{"mode"`, 400},
		{"PATCH", "/path?path=/a/one", strings.Repeat(" ", maxBody+1), 413},
		{"PATCH", "/path?path=/none", `{}`, 404},
		{"GET", "/path?path=/none", "", 404},
		{"GET", "/file?path=/none", "", 404},
		{"GET", "/dir?path=/&depth=65", "", 400},
		{"GET", "/dir?path=/&depth=x", "", 400},
		{"POST", "/dir?path=/a", "", 409},
		{"POST", "/dir?path=/a&mode=x", "", 400},
		{"PUT", "/file?path=/a/one&uid=65536", "", 400},
		{"DELETE", "/path?path=/", "", 400},
		{"DELETE", "/path?path=/a/..", "", 400},
	} {
		do(c.want, c.method, c.path, c.body)
	}
	do(204, "DELETE", "/path?path=/a/b", "")
	if got, want := list("path=/a"), []string{"file /a/one"}; !slices.Equal(got, want) {
		t.Errorf("after the removal the directory has %q, want %q", got, want)
	}
	for _, token := range []string{"", "x", "key-mine"} {
		if w := d.do("GET", at+"/dir?path=/", "", "Authorization", "Bearer "+token, "X-API-Key", "key-mine"); w.Code != 401 {
			t.Errorf("the token %q: got %d %s, want 401", token, w.Code, w.Body)
		}
	}
	if one.holders != 0 {
		t.Errorf("%d requests hold the volume, want none", one.holders)
	}
	one.mount.Lock()
	one.on = false // it is a directory, which must not be unmounted
	one.mount.Unlock()
}

// A restart completes interrupted removals and keeps recorded volumes.
func TestVolumesAfterARestart(t *testing.T) {
	store, dir := &fakeVolumes{}, t.TempDir()
	cfg := VolumesConfig{Store: store, Dir: dir, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	first := NewVolumes(cfg)
	kept, err := first.Create(t.Context(), "mine", "kept")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{kept.ID, newVolumeID(), "other"} {
		if err := os.MkdirAll(filepath.Join(dir, name, "disk"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	second := NewVolumes(cfg)
	if err := second.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if want := []string{"other", kept.ID}; err != nil || !slices.Equal(got, want) {
		t.Errorf("the directory has %q, %v; want %q", got, err, want)
	}
	if got, err := second.Get("mine", kept.ID); err != nil || got != kept {
		t.Errorf("the volume is %+v, %v; want %+v", got, err, kept)
	}
}

func TestCommandLogs(t *testing.T) {
	d := newFakeDaemon(t)
	box := d.create(`{"templateID":"base"}`)
	at := time.Unix(1_700_000_000, 0)
	ended := at.Add(3 * time.Second)
	d.execs = []protocol.ExecStatus{
		{ID: "x-2", Argv: []string{"sleep", "9"}, Started: at.Add(time.Second), PID: 8},
		{ID: "x-1", Argv: []string{"false"}, Started: at, Ended: &ended, Code: 1, PID: 7},
	}
	second := func(query string, want ...string) {
		t.Helper()
		var got []string
		for _, l := range e2btest.Read[struct{ Logs []wireLog }](t, d.api(200, "GET", "/v2/sandboxes/"+box.SandboxID+"/logs"+query, "")).Logs {
			got = append(got, l.Level+" "+l.Message+" "+l.Fields["id"])
		}
		if !slices.Equal(got, want) {
			t.Errorf("the log %s is %q, want %q", query, got, want)
		}
	}
	one, two, end := "info process started x-1", "info process started x-2", "warn process ended x-1"
	second("", one, two, end)
	second("?direction=backward", end, two, one)
	second("?level=warn", end)
	second("?level=error")
	second("?search=started", one, two)
	second("?limit=1", one)
	second("?limit=0")
	second(fmt.Sprintf("?cursor=%d", at.Add(time.Second).UnixMilli()), two, end)
	second(fmt.Sprintf("?direction=backward&cursor=%d", at.Add(time.Second).UnixMilli()), two, one)
	first := e2btest.Read[struct{ Logs []wireLine }](t, d.api(200, "GET", fmt.Sprintf("/sandboxes/%s/logs?start=%d", box.SandboxID, at.Add(2*time.Second).UnixMilli()), ""))
	if len(first.Logs) != 1 || !strings.Contains(first.Logs[0].Line, `"exit_code":"1"`) {
		t.Errorf("the first version of the log is %+v, want the end with its exit code", first)
	}
	for _, query := range []string{"level=loud", "direction=up", "limit=1001", "limit=-1", "cursor=x", "cursor=-1"} {
		d.api(400, "GET", "/v2/sandboxes/"+box.SandboxID+"/logs?"+query, "")
	}
	for _, query := range []string{"start=x", "limit=x", "start=99999999999999999"} {
		d.api(400, "GET", "/sandboxes/"+box.SandboxID+"/logs?"+query, "")
	}
}

func TestMetricsOmitRemovedSandboxes(t *testing.T) {
	d := newFakeDaemon(t)
	box := d.create(`{"templateID":"base"}`)
	d.mu.Lock()
	d.stats = jail.Stats{MemoryBytes: 5 << 20, CacheBytes: 1 << 20}
	d.mu.Unlock()
	c := d.handle(box.SandboxID)
	c.samples.add(time.Now().UTC(), d.stats, 512<<20)
	got := e2btest.Read[struct{ Sandboxes map[string]wireSample }](t, d.api(200, "GET", "/sandboxes/metrics?sandbox_ids="+box.SandboxID+",inone&sandbox_ids=x", ""))
	if len(got.Sandboxes) != 1 || got.Sandboxes[box.SandboxID].MemUsed != 4<<20 {
		t.Errorf("the metrics are %+v, want 4 MiB of the one sandbox", got)
	}
	var m samples
	for n := range maxSamples + 10 {
		m.add(time.Unix(int64(5*n), 0), jail.Stats{CPU: time.Duration(n) * time.Second}, 0)
	}
	list := m.between(time.Time{}, time.Time{})
	if len(list) != maxSamples || list[0].At.Unix() != 50 || list[1].CPU != 20 {
		t.Errorf("there are %d samples from %v with %v %% of a processor, want %d from 50 with 20", len(list), list[0].At.Unix(), list[1].CPU, maxSamples)
	}
	if got := m.between(time.Unix(60, 0), time.Unix(70, 0)); len(got) != 3 {
		t.Errorf("there are %d samples from 60 to 70, want 3", len(got))
	}
}

// Requests without a route are passed on with their caller.
func TestUnroutedRequestsNeedKey(t *testing.T) {
	d := newFakeDaemon(t)
	passed := 0
	d.server.cfg.Fallback = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { passed++; w.WriteHeader(http.StatusTeapot) })
	d.api(http.StatusTeapot, "POST", "/v3/templates", "{}")
	d.api(http.StatusTeapot, "GET", "/templates/other", "")
	d.api(http.StatusTeapot, "GET", "/templates/tags/tags", "")
	for _, path := range []string{"/v3/templates", "/templates/other"} {
		if w := d.do("GET", path, ""); w.Code != 401 {
			t.Errorf("GET %s without a key: got %d, want 401", path, w.Code)
		}
	}
	if passed != 3 {
		t.Errorf("%d requests were passed on, want 3", passed)
	}
	if w := d.do("GET", "/health", ""); w.Code != 200 {
		t.Errorf("GET /health without a key: got %d, want 200", w.Code)
	}
}
