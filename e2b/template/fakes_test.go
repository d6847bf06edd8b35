package template

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"glasshouse/e2b"
	"glasshouse/e2b/e2btest"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
	"glasshouse/jail/snapshot"
	"glasshouse/policy/access"
	"glasshouse/policy/egress"
)

// A fakeStore stores the records of templates in memory.
type fakeStore struct {
	mu        sync.Mutex
	templates map[string]Template
	builds    map[string]Build
	layers    map[string]Layer
	fail      error
}

func newFakeStore() *fakeStore {
	return &fakeStore{templates: map[string]Template{}, builds: map[string]Build{}, layers: map[string]Layer{}}
}

func put[T any](s *fakeStore, m map[string]T, key string, v T) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail == nil {
		m[key] = v
	}
	return s.fail
}

func drop[T any](s *fakeStore, m map[string]T, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(m, key)
	return s.fail
}

func all[T any](s *fakeStore, m map[string]T) ([]T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(m)), nil
}

func (s *fakeStore) Templates(context.Context) ([]Template, error) { return all(s, s.templates) }
func (s *fakeStore) Builds(context.Context) ([]Build, error)       { return all(s, s.builds) }
func (s *fakeStore) Layers(context.Context) ([]Layer, error)       { return all(s, s.layers) }

func (s *fakeStore) PutTemplate(_ context.Context, t Template) error {
	return put(s, s.templates, t.ID, t)
}
func (s *fakeStore) PutBuild(_ context.Context, b Build) error { return put(s, s.builds, b.ID, b) }
func (s *fakeStore) PutLayer(_ context.Context, l Layer) error { return put(s, s.layers, l.Key, l) }
func (s *fakeStore) DeleteTemplate(_ context.Context, key string) error {
	return drop(s, s.templates, key)
}
func (s *fakeStore) DeleteBuild(_ context.Context, key string) error { return drop(s, s.builds, key) }
func (s *fakeStore) DeleteLayer(_ context.Context, key string) error { return drop(s, s.layers, key) }

// fakeJails implements jails with files and without processes.
type fakeJails struct {
	e2b.Jails // methods that no test calls

	mu    sync.Mutex
	n     int
	jails map[id.Jail]jail.Jail
	snaps map[id.Snapshot]snapshot.Snapshot
	files map[string]string
	gate  chan struct{} // if not nil, Create waits until it is closed
	fail  error         // error of Create

	creators []id.Token // of the jails ever created
}

func newFakeJails() *fakeJails {
	return &fakeJails{jails: map[id.Jail]jail.Jail{}, snaps: map[id.Snapshot]snapshot.Snapshot{}, files: map[string]string{
		"/etc/passwd": "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n", "/etc/group": "user:x:1000:\n",
	}}
}

func (f *fakeJails) List(context.Context, jail.ListOptions) ([]jail.Jail, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.jails)), nil
}

func (f *fakeJails) make(ctx context.Context, s jail.Spec) (jail.Jail, error) {
	if f.gate != nil {
		select {
		case <-f.gate:
		case <-ctx.Done():
			return jail.Jail{}, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return jail.Jail{}, f.fail
	}
	f.n++
	f.creators = append(f.creators, s.Creator)
	j := jail.Jail{ID: id.Jail(fmt.Sprintf("j-%d", f.n)), Spec: s, State: jail.Running}
	f.jails[j.ID] = j
	return j, nil
}

func (f *fakeJails) Create(ctx context.Context, s jail.Spec) (jail.Jail, error) {
	return f.make(ctx, s)
}

func (f *fakeJails) Start(_ context.Context, j id.Jail) (jail.Jail, error) { return f.jails[j], nil }

func (f *fakeJails) Stop(_ context.Context, j id.Jail, _ jail.StopOptions) (jail.Jail, error) {
	return f.jails[j], nil
}

func (f *fakeJails) Delete(_ context.Context, j id.Jail) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.jails, j)
	return nil
}

func (f *fakeJails) Exec(_ context.Context, _ id.Jail, r jail.ExecRequest, _ *control.AttachOptions) (*control.Stream, protocol.ExecStatus, error) {
	if r.User != "user" && r.User != "root" {
		return nil, protocol.ExecStatus{}, fault.Fieldf("jail.Exec", "user", "there is no user %s", r.User)
	}
	return nil, protocol.ExecStatus{}, fault.Newf(fault.Unavailable, "jail.Exec", "", "nothing runs here")
}

func (f *fakeJails) Files(context.Context, id.Jail) (jail.Files, error) { return fakeFiles{f}, nil }

// fakeFiles is one tree for all jails.
type fakeFiles struct{ *fakeJails }

func (f fakeFiles) Stat(_ context.Context, name string) (protocol.FileInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.files[name]; !ok {
		return protocol.FileInfo{}, fault.Newf(fault.NotFound, "files.Stat", name, "no such file")
	}
	return protocol.FileInfo{}, nil
}

func (f fakeFiles) List(ctx context.Context, name, _ string, _ int) ([]protocol.FileInfo, bool, error) {
	_, err := f.Stat(ctx, name+"/")
	return nil, false, err
}

func (f fakeFiles) Read(ctx context.Context, name string, _, _ int64) (io.ReadCloser, protocol.FileInfo, error) {
	i, err := f.Stat(ctx, name)
	return io.NopCloser(strings.NewReader(f.files[name])), i, err
}

func (f fakeFiles) Write(_ context.Context, name string, r io.Reader, _ protocol.WriteOptions) (protocol.FileInfo, error) {
	text, err := io.ReadAll(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files[name] = string(text)
	return protocol.FileInfo{}, err
}

func (f fakeFiles) MkdirFor(_ context.Context, name string, o protocol.Owner) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files[name+"/"] = fmt.Sprint(o.UID)
	return nil
}

func (f fakeFiles) Mkdir(context.Context, string, fs.FileMode, bool) error {
	return errors.ErrUnsupported
}
func (f fakeFiles) Remove(context.Context, string, bool) error       { return nil }
func (f fakeFiles) Move(context.Context, string, string, bool) error { return errors.ErrUnsupported }
func (f fakeFiles) Tar(context.Context, string) (io.ReadCloser, error) {
	return nil, errors.ErrUnsupported
}
func (f fakeFiles) Untar(_ context.Context, _ string, r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}
func (f fakeFiles) Close() error { return nil }

type fakeSnapshots struct {
	e2b.Snapshots
	*fakeJails
}

func (s fakeSnapshots) Get(_ context.Context, sid id.Snapshot) (snapshot.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap, ok := s.snaps[sid]
	if !ok {
		return snap, fault.Newf(fault.NotFound, "snapshot.Get", string(sid), "there is no such snapshot")
	}
	return snap, nil
}

func (s fakeSnapshots) List(context.Context, snapshot.ListOptions) ([]snapshot.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.snaps)), nil
}

func (s fakeSnapshots) Take(_ context.Context, j id.Jail, o snapshot.TakeOptions) (snapshot.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	snap := snapshot.Snapshot{ID: id.Snapshot(fmt.Sprintf("s-%d", s.n)), Jail: s.jails[j], Labels: o.Labels}
	s.snaps[snap.ID] = snap
	return snap, nil
}

func (s fakeSnapshots) Restore(ctx context.Context, _ id.Snapshot, o snapshot.Overrides) (jail.Jail, error) {
	return s.make(ctx, jail.Spec{Name: o.Name, Labels: o.Labels, Creator: *o.Creator})
}

func (s fakeSnapshots) Delete(_ context.Context, sid id.Snapshot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.snaps, sid)
	return nil
}

func (s fakeSnapshots) JailDeleted(context.Context, id.Jail) error { return nil }

// A builds is a Templates with fake jails and snapshots.
type builds struct {
	*testing.T
	*Templates
	jails   *fakeJails
	store   *fakeStore
	handler http.Handler
	team    id.Token
}

func newBuilds(t *testing.T) *builds {
	return startBuilds(t, newFakeStore(), newFakeJails(), t.TempDir())
}

func startBuilds(t *testing.T, store *fakeStore, jails *fakeJails, dir string) *builds {
	t.Helper()
	b := &builds{T: t, jails: jails, store: store, team: "mine"}
	b.Templates = New(Config{
		Store: store, Dir: dir, Jails: jails, Snapshots: fakeSnapshots{fakeJails: jails},
		Resolve: func(_ context.Context, r jail.Rootfs) (jail.Layers, error) {
			if r.OCI != "" && !strings.Contains(r.OCI, "@sha256:") {
				t.Errorf("got the image %s, want it by its digest", r.OCI)
			}
			return jail.Layers{Digest: "sha256:" + strings.Repeat("0", 64), Env: []string{"FROM_IMAGE=yes"}}, nil
		},
		Pull: func(_ context.Context, image string, _ authn.Authenticator) (string, error) {
			if strings.Contains(image, "missing") {
				return "", fault.Newf(fault.NotFound, "rootfs.Pull", image, "the registry has no such image")
			}
			return "sha256:" + strings.Repeat("a", 64), nil
		},
		Govern: func(_ json.RawMessage, r egress.Rules) (json.RawMessage, error) { return json.Marshal(r) },
	})
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	b.handler = b.Templates.Handler()
	return b
}

// api sends a request of a team, checks the status, and returns the response.
func (b *builds) api(want int, method, path, body string) *httptest.ResponseRecorder {
	b.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r = r.WithContext(access.WithCaller(r.Context(), access.Caller{Token: b.team, Role: access.Operator}))
	return e2btest.Do(b, b.handler, want, r)
}

// request requests a build.
func (b *builds) request(body string) wireRequested {
	b.Helper()
	return e2btest.Read[wireRequested](b, b.api(202, "POST", "/v3/templates", body))
}

// run runs a build and returns its status.
func (b *builds) run(of wireRequested, plan string) wireStatus {
	b.Helper()
	at := "/templates/" + of.TemplateID + "/builds/" + of.BuildID
	b.api(202, "POST", "/v2"+at, plan)
	return b.await(at)
}

func (b *builds) await(at string) wireStatus {
	b.Helper()
	for {
		s := e2btest.Read[wireStatus](b, b.api(200, "GET", at+"/status", ""))
		if s.Status == Ready || s.Status == Failed {
			return s
		}
		select {
		case <-b.Context().Done():
			b.Fatal("the build has not ended in time")
		case <-time.After(time.Millisecond):
		}
	}
}

func logOf(s wireStatus) (text string) {
	for _, e := range s.Entries {
		text += e.Message + "\n"
	}
	return text
}
