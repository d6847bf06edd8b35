package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/e2b/e2btest"
	"glasshouse/e2b/envd"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
	"glasshouse/jail/snapshot"
	"glasshouse/policy/access"
	"glasshouse/policy/egress"
)

// A fakeHost implements jails, snapshots and the database. It stores states only: tests with a
// daemon cover the processes in jails.
type fakeHost struct {
	envd.Jails // methods that no test calls

	mu      sync.Mutex
	records map[string]Sandbox
	jails   map[id.Jail]jail.Jail
	snaps   []snapshot.Snapshot // oldest first
	calls   []string            // calls of methods with side effects, with their argument
	fail    map[string]error    // by method
	panics  map[string]error    // by method
	gate    map[string]chan struct{}
	execs   []protocol.ExecStatus
	stats   jail.Stats
	n       int
	dial    func(ctx context.Context, port int) (net.Conn, error)
}

func newFakeHost() *fakeHost {
	return &fakeHost{records: map[string]Sandbox{}, jails: map[id.Jail]jail.Jail{}, fail: map[string]error{}, panics: map[string]error{}, gate: map[string]chan struct{}{}}
}

// call records a call, waits for its gate if it has one, and returns its error if one is set.
func (h *fakeHost) call(method, on string) error {
	h.mu.Lock()
	h.calls = append(h.calls, method+" "+on)
	gate, err, bug := h.gate[method], h.fail[method], h.panics[method]
	h.mu.Unlock()
	if bug != nil {
		panic(bug)
	}
	if gate != nil {
		<-gate
	}
	return err
}

func (h *fakeHost) failWith(method string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fail[method] = err
}

// count returns the number of calls of a method.
func (h *fakeHost) count(method string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.calls {
		if strings.HasPrefix(c, method+" ") {
			n++
		}
	}
	return n
}

// left returns the number of jails and records.
func (h *fakeHost) left() (jails, records int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.jails), len(h.records)
}

func (h *fakeHost) name(prefix string) string {
	h.n++
	return fmt.Sprintf("%s%012d", prefix, h.n)
}

// The Store.

func (h *fakeHost) Put(_ context.Context, b Sandbox) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := errors.Join(h.fail["Put"], h.fail["Put "+string(b.State)])
	if err == nil {
		h.records[b.ID] = b
	}
	return err
}

func (h *fakeHost) All(context.Context) ([]Sandbox, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Values(h.records)), h.fail["All"]
}

// A fakeStore is the fakeHost as a Store: its Delete deletes a record, not a jail.
type fakeStore struct{ *fakeHost }

func (s fakeStore) Delete(_ context.Context, sandbox string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.records, sandbox)
	return nil
}

// The Jails.

func (h *fakeHost) Get(_ context.Context, jid id.Jail) (jail.Jail, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	j, ok := h.jails[jid]
	if !ok {
		return j, fault.Newf(fault.NotFound, "jail.Get", string(jid), "there is no such jail")
	}
	return j, nil
}

func (h *fakeHost) List(context.Context, jail.ListOptions) ([]jail.Jail, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Values(h.jails)), nil
}

func (h *fakeHost) Create(_ context.Context, s jail.Spec) (jail.Jail, error) {
	if err := h.call("Create", s.Name); err != nil {
		return jail.Jail{}, err
	}
	return h.add(s, jail.Running), nil
}

func (h *fakeHost) add(s jail.Spec, state jail.State) jail.Jail {
	h.mu.Lock()
	defer h.mu.Unlock()
	j := jail.Jail{ID: id.Jail(h.name("j-")), Spec: s, State: state, Created: time.Now()}
	h.jails[j.ID] = j
	return j
}

// to changes the state of a jail.
func (h *fakeHost) to(method string, jid id.Jail, state jail.State) (jail.Jail, error) {
	if err := h.call(method, string(jid)); err != nil {
		return jail.Jail{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	j, ok := h.jails[jid]
	if !ok {
		return j, fault.Newf(fault.NotFound, "jail."+method, string(jid), "there is no such jail")
	}
	j.State = state
	h.jails[jid] = j
	return j, nil
}

func (h *fakeHost) Start(_ context.Context, jid id.Jail) (jail.Jail, error) {
	return h.to("Start", jid, jail.Running)
}

func (h *fakeHost) Stop(_ context.Context, jid id.Jail, _ jail.StopOptions) (jail.Jail, error) {
	return h.to("Stop", jid, jail.Stopped)
}

func (h *fakeHost) Pause(_ context.Context, jid id.Jail) (jail.Jail, error) {
	return h.to("Pause", jid, jail.Paused)
}

func (h *fakeHost) Resume(_ context.Context, jid id.Jail) (jail.Jail, error) {
	return h.to("Resume", jid, jail.Running)
}

func (h *fakeHost) Delete(_ context.Context, jid id.Jail) error {
	if err := h.call("Delete", string(jid)); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.jails[jid]; !ok {
		return fault.Newf(fault.NotFound, "jail.Delete", string(jid), "there is no such jail")
	}
	delete(h.jails, jid)
	return nil
}

func (h *fakeHost) ReplacePolicy(_ context.Context, jid id.Jail, by func(json.RawMessage) (json.RawMessage, error)) (jail.Jail, error) {
	if err := h.call("Regovern", string(jid)); err != nil {
		return jail.Jail{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	j := h.jails[jid]
	var err error
	j.Spec.Policy, err = by(j.Spec.Policy)
	h.jails[jid] = j
	return j, err
}

func (h *fakeHost) Exec(_ context.Context, jid id.Jail, r jail.ExecRequest, _ *control.AttachOptions) (*control.Stream, protocol.ExecStatus, error) {
	return nil, protocol.ExecStatus{}, h.call("Exec", string(jid)+" "+strings.Join(r.Argv, " "))
}

func (h *fakeHost) Execs(context.Context, id.Jail) ([]protocol.ExecStatus, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.execs, nil
}

func (h *fakeHost) Stats(context.Context, id.Jail) (jail.Stats, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stats, nil
}

func (h *fakeHost) Files(_ context.Context, jid id.Jail) (jail.Files, error) {
	return fakeFiles{}, h.call("Files", string(jid))
}

func (h *fakeHost) Dial(ctx context.Context, _ id.Jail, port int) (net.Conn, error) {
	if h.dial == nil {
		return nil, fault.Newf(fault.Unavailable, "jail.Dial", "", "nobody listens at port %d", port)
	}
	return h.dial(ctx, port)
}

// fakeFiles discards writes and contains no files.
type fakeFiles struct{ jail.Files }

func (fakeFiles) Untar(_ context.Context, _ string, r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

func (fakeFiles) Read(context.Context, string, int64, int64) (io.ReadCloser, protocol.FileInfo, error) {
	return nil, protocol.FileInfo{}, fault.Newf(fault.NotFound, "files.Read", "", "no such file")
}

func (fakeFiles) Close() error { return nil }

// fakeSnapshots implements Snapshots on a fakeHost.
type fakeSnapshots struct{ *fakeHost }

func (s fakeSnapshots) Get(_ context.Context, sid id.Snapshot) (snapshot.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, snap := range s.snaps {
		if snap.ID == sid {
			return snap, nil
		}
	}
	return snapshot.Snapshot{}, fault.Newf(fault.NotFound, "snapshot.Get", string(sid), "there is no such snapshot")
}

func (s fakeSnapshots) List(context.Context, snapshot.ListOptions) ([]snapshot.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.snaps), s.fail["ListSnapshots"]
}

func (s fakeSnapshots) Take(_ context.Context, jid id.Jail, o snapshot.TakeOptions) (snapshot.Snapshot, error) {
	if err := s.call("Take", string(jid)); err != nil {
		return snapshot.Snapshot{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := snapshot.Snapshot{ID: id.Snapshot(s.name("s-")), Jail: s.jails[jid], Labels: o.Labels, Created: time.Now().Add(time.Duration(s.n) * time.Microsecond)}
	s.snaps = append(s.snaps, snap)
	return snap, nil
}

func (s fakeSnapshots) Restore(ctx context.Context, sid id.Snapshot, o snapshot.Overrides) (jail.Jail, error) {
	if err := s.call("Restore", string(sid)); err != nil {
		return jail.Jail{}, err
	}
	snap, err := s.Get(ctx, sid)
	if err != nil {
		return jail.Jail{}, err
	}
	spec := snap.Jail.Spec
	spec.Name, spec.Labels, spec.Mounts = o.Name, o.Labels, append(slices.Clone(spec.Mounts), o.Mounts...)
	if o.Limits != nil {
		spec.Limits = *o.Limits
	}
	if o.Creator != nil {
		spec.Creator = *o.Creator
	}
	spec.Policy, err = o.Govern(spec.Policy)
	if err != nil {
		return jail.Jail{}, err
	}
	return s.add(spec, jail.Running), nil
}

func (s fakeSnapshots) Rewind(_ context.Context, jid id.Jail, sid id.Snapshot, _ jail.RewindOptions) (jail.Jail, error) {
	return s.to("Rewind", jid, jail.Running)
}

func (s fakeSnapshots) Delete(_ context.Context, sid id.Snapshot) error {
	if err := s.call("DeleteSnapshot", string(sid)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.snaps)
	s.snaps = slices.DeleteFunc(s.snaps, func(snap snapshot.Snapshot) bool { return snap.ID == sid })
	if len(s.snaps) == before {
		return fault.Newf(fault.NotFound, "snapshot.Delete", string(sid), "there is no such snapshot")
	}
	return nil
}

func (s fakeSnapshots) JailDeleted(_ context.Context, jid id.Jail) error {
	return s.call("Abandoned", string(jid))
}

// fakeKeys accepts "key-NAME" as the key of the team NAME.
type fakeKeys struct{}

func (fakeKeys) CheckKey(_ context.Context, key string) (access.Caller, error) {
	team, ok := strings.CutPrefix(key, "key-")
	switch {
	case !ok:
		return access.Caller{}, fault.Newf(fault.Unauthenticated, "keys", "", "there is no such key")
	case team == "viewer":
		return access.Caller{Token: id.Token(team), Role: access.Viewer}, nil
	}
	return access.Caller{Token: id.Token(team), Role: access.Operator}, nil
}

// A fakeDaemon serves the whole protocol on a fakeHost.
type fakeDaemon struct {
	*testing.T
	*fakeHost
	boxes  *Sandboxes
	inside *envd.Server
	server *Server
	log    *logged
}

// logged collects log output.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// newFakeDaemon returns a daemon. The functions in change modify its configuration before it
// starts.
func newFakeDaemon(t *testing.T, change ...func(*Config)) *fakeDaemon {
	t.Helper()
	return startFakeDaemon(t, newFakeHost(), change...)
}

func startFakeDaemon(t *testing.T, h *fakeHost, change ...func(*Config)) *fakeDaemon {
	t.Helper()
	d := &fakeDaemon{T: t, fakeHost: h, log: &logged{}}
	log := slog.New(slog.NewTextHandler(d.log, nil))
	volumes := NewVolumes(VolumesConfig{Store: &fakeVolumes{}, Dir: t.TempDir(), Log: log})
	cfg := Config{
		Store: fakeStore{h}, Jails: h, Snapshots: fakeSnapshots{h}, Volumes: volumes, Log: log,
		Govern: func(_ json.RawMessage, r egress.Rules) (json.RawMessage, error) { return json.Marshal(r) },
	}
	for _, f := range change {
		f(&cfg)
	}
	d.boxes = New(cfg)
	if err := d.boxes.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.inside = envd.New(envd.Config{Boxes: d.boxes, Jails: h, Log: log})
	d.server = NewServer(ServerConfig{
		Sandboxes: d.boxes, Volumes: volumes, Ports: d.inside, Keys: fakeKeys{}, Domain: "localhost:8083", Log: log,
	})
	t.Cleanup(func() {
		if err := errors.Join(d.inside.Close(), d.boxes.Close()); err != nil {
			t.Error(err)
		}
	})
	return d
}

// fakeVolumes stores the records of volumes.
type fakeVolumes struct {
	mu   sync.Mutex
	all  []Volume
	slow time.Duration // delay of Add
}

func (v *fakeVolumes) Add(_ context.Context, one Volume) error {
	time.Sleep(v.slow)
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, has := range v.all {
		if has.Team == one.Team && has.Name == one.Name {
			return fault.Newf(fault.Conflict, "volumes.Add", one.Name, "the name is in use")
		}
	}
	v.all = append(v.all, one)
	return nil
}

func (v *fakeVolumes) All(context.Context) ([]Volume, error) { return v.all, nil }

func (v *fakeVolumes) Delete(_ context.Context, volume string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all = slices.DeleteFunc(v.all, func(one Volume) bool { return one.ID == volume })
	return nil
}

// request returns a request with headers, given as alternating names and values.
func (d *fakeDaemon) request(method, url, body string, headers ...string) *http.Request {
	d.Helper()
	r := httptest.NewRequestWithContext(d.Context(), method, url, strings.NewReader(body))
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// do sends a request with headers, given as alternating names and values, and returns the
// response.
func (d *fakeDaemon) do(method, url, body string, headers ...string) *httptest.ResponseRecorder {
	d.Helper()
	w := httptest.NewRecorder()
	d.server.ServeHTTP(w, d.request(method, url, body, headers...))
	return w
}

// api sends a control request of the team "mine", checks the status and returns the response.
func (d *fakeDaemon) api(want int, method, path, body string) *httptest.ResponseRecorder {
	d.Helper()
	return e2btest.Do(d, d.server, want, d.request(method, path, body, "X-API-Key", "key-mine"))
}

// create creates a sandbox.
func (d *fakeDaemon) create(body string) wireSandbox {
	d.Helper()
	return e2btest.Read[wireSandbox](d, d.api(http.StatusCreated, "POST", "/v2/sandboxes", body))
}

// handle returns the daemon's handle of a sandbox.
func (d *fakeDaemon) handle(sandbox string) *handle {
	d.boxes.mu.Lock()
	defer d.boxes.mu.Unlock()
	return d.boxes.handles[sandbox]
}

// state returns the state of a sandbox.
func (d *fakeDaemon) state(sandbox string) State {
	d.Helper()
	return e2btest.Read[wireDetail](d, d.api(http.StatusOK, "GET", "/sandboxes/"+sandbox, "")).State
}
