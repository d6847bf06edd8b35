package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"glasshouse/agents/gateway"
	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
	"glasshouse/observe/event"
	"glasshouse/policy"
	"glasshouse/policy/approval"
	"glasshouse/policy/chain"
	"glasshouse/policy/secret"
)

// shelf is a backend of stopped jails. Their files are in one directory.
type shelf struct {
	jail.Backend // nil: tests use only the methods below
	dir          string
	fail         error // error of Mount
	open         int   // mounts that are not unmounted
}

func (s *shelf) Lacks() map[string]string               { return nil }
func (s *shelf) Clean(context.Context, jail.Plan) error { return nil }

func (s *shelf) Mount(context.Context, jail.Plan) (string, func() error, error) {
	if s.fail != nil {
		return "", nil, s.fail
	}
	s.open++
	return s.dir, func() error { s.open--; return nil }, nil
}

const shelved = id.Jail("j-aaaaaaaaaaaa")

// withJails opens stopped jails: shelved, and others by their IDs.
func (g governed) withJails(t *testing.T, others ...id.Jail) *shelf {
	t.Helper()
	s := &shelf{dir: t.TempDir()}
	for n, jid := range append([]id.Jail{shelved}, others...) {
		j := jail.Jail{ID: jid, State: jail.Stopped, IDs: jail.IDRange{First: uint32(0x20000000 + n<<16), Count: 1 << 16}}
		j.Spec = jail.Spec{Name: "web", Backend: "shelf", Cwd: "/", Network: jail.Isolated, Limits: jail.DefaultLimits,
			Env: map[string]string{"TOKEN": "s3cr3t"}, Mounts: []jail.Mount{{Source: "/srv/private", Target: "/mnt"}}, Rootfs: jail.Rootfs{OCI: "alpine"}}
		if err := g.store.Jails().Put(t.Context(), j); err != nil {
			t.Fatal(err)
		}
	}
	g.jails = jail.NewManager(jail.Config{
		Dir: filepath.Join(g.Config.Data, "jails"), Store: g.store.Jails(), Runtimes: []jail.Runtime{{Name: "shelf", Backend: s}},
		Enforcer: jailEnforcer{g.kernel, g.groups, newFences()},
	})
	if err := g.jails.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.jails.Close() })
	return s
}

// ruled registers a policy for shelved, as if the jail ran.
func (g governed) ruled(t *testing.T, permission string) {
	t.Helper()
	raw, err := json.Marshal(govern.Spec{Policy: &govern.Policy{Files: []govern.File{{Name: "opencode.json", Text: `{"permission":` + permission + `}`}}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.jails.ReplacePolicy(t.Context(), shelved, func(json.RawMessage) (json.RawMessage, error) { return raw, nil }); err != nil {
		t.Fatal(err)
	}
	j, err := g.jails.Get(t.Context(), shelved)
	if err != nil {
		t.Fatal(err)
	}
	w := jailEnforcer{g.kernel, g.groups, newFences()}
	if err := w.Apply(t.Context(), j, jail.HostInfo{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Release(shelved) })
}

// Host functions access the files of the calling jail, within the limits of its policy.
func TestHostFunctionsAreGovernedByTheCallersPolicy(t *testing.T) {
	d := newGoverned(t)
	s := d.withJails(t)
	d.ruled(t, `{"read":{"*":"allow","private/*":"deny"},"edit":{"*":"deny","tmp/*":"allow"}}`)
	if err := os.MkdirAll(filepath.Join(s.dir, "tmp"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(s.dir, "private"), 0o755); err != nil {
		t.Fatal(err)
	}
	f := d.hostFunctions()
	call := &engine.Call{Jail: string(shelved), Capability: &engine.Installed{Capability: &manifest.Capability{ID: "rtfs.file"}}}
	ctx := t.Context()
	if err := f.Write(ctx, call, "/tmp/note", []byte("a long text")); err != nil {
		t.Errorf("Write = %v, want success", err)
	}
	if got, err := f.Read(ctx, call, "/tmp/note", 6); err != nil || string(got) != "a long" {
		t.Errorf("Read of 6 bytes = %q, %v, want a long", got, err)
	}
	for name, want := range map[string]bool{"/tmp/note": true, "/tmp/none": false, "/tmp/note/below": false} {
		if got, err := f.Exists(ctx, call, name); got != want || err != nil && name != "/tmp/note/below" {
			t.Errorf("Exists(%s) = %v, %v, want %v", name, got, err, want)
		}
	}
	if _, err := f.Read(ctx, call, "/tmp/none", 10); !errors.Is(err, fault.NotFound) {
		t.Errorf("Read of no file = %v, want not found", err)
	}
	denied := map[string]func() error{
		"Read":   func() error { _, err := f.Read(ctx, call, "/private/key", 10); return err },
		"Exists": func() error { _, err := f.Exists(ctx, call, "/private/key"); return err },
		"Write":  func() error { return f.Write(ctx, call, "/etc/passwd", nil) },
		"Delete": func() error { return f.Delete(ctx, call, "/etc/passwd") },
	}
	for name, op := range denied {
		if err := op(); !errors.Is(err, fault.Denied) {
			t.Errorf("%s that the policy denies = %v, want denied", name, err)
		}
	}
	if err := f.Delete(ctx, call, "/tmp/note"); err != nil {
		t.Errorf("Delete = %v, want success", err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "tmp/note")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is there after Delete: %v", err)
	}
	decisions := 0
	for _, kind := range d.kinds(t) {
		if kind == chain.Decided {
			decisions++
		}
	}
	if decisions < 10 {
		t.Errorf("the audit log has %d decisions, want one for each call", decisions)
	}
	s.fail = errors.New("the device is busy")
	if _, err := f.Read(ctx, call, "/tmp/note", 10); !errors.Is(err, s.fail) || !strings.Contains(err.Error(), string(shelved)) {
		t.Errorf("Read of files that cannot be mounted = %v, want the cause and the jail", err)
	}
	s.fail = nil
	if s.open != 0 {
		t.Errorf("%d mounts are left, want none", s.open)
	}
	other := &engine.Call{Jail: "j-bbbbbbbbbbbb", Capability: call.Capability}
	if err := f.Write(ctx, other, "/tmp/x", nil); err == nil {
		t.Error("Write for a jail that there is not = nil, want an error")
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if err := f.Write(cancelled, call, "/tmp/late", []byte("x")); err == nil {
		if _, err := os.Stat(filepath.Join(s.dir, "tmp/late")); err != nil {
			t.Error("Write with a cancelled context = nil and wrote nothing, want an error or the file")
		}
	}
}

func TestHostFunctionsSeeOnlyConfiguredEnvironment(t *testing.T) {
	t.Setenv("GLASSHOUSE_SHOWN", "yes")
	t.Setenv("GLASSHOUSE_HIDDEN", "s3cr3t")
	d := &Daemon{Config: Config{RTFS: RTFS{Env: []string{"GLASSHOUSE_SHOWN", "GLASSHOUSE_UNSET"}}}}
	got := d.hostFunctions().Env
	if len(got) != 1 || got["GLASSHOUSE_SHOWN"] != "yes" {
		t.Errorf("environment = %v, want GLASSHOUSE_SHOWN alone", got)
	}
}

// answered is an approval request about shelved with an answer.
func answered(scope approval.Scope, by string) approval.Request {
	r := approval.Request{ID: "a-1", Question: policy.Question{Subject: policy.Subject{Jail: shelved}, Action: "bash", Resource: "git push"}}
	r.Answer = &approval.Answer{Scope: scope, By: approval.Person{Name: by}}
	return r
}

// A permanent answer is stored in the jail's record, so that the next daemon applies it.
func TestPermanentAnswerIsStoredWithJail(t *testing.T) {
	d := newGoverned(t)
	rule := policy.Rule{Action: "bash", Pattern: "git push", Effect: policy.Allow}
	d.withJails(t)
	if err := d.remember(t.Context(), answered(approval.Always, "ann"), rule); !errors.Is(err, fault.Conflict) {
		t.Errorf("remember without a policy = %v, want conflict", err)
	}
	d.ruled(t, `{"bash":"ask"}`)
	for range 2 { // the same answer is stored once
		if err := d.remember(t.Context(), answered(approval.Always, "ann"), rule); err != nil {
			t.Fatal(err)
		}
	}
	all, err := d.store.Jails().All(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var kept govern.Spec
	if err := json.Unmarshal(all[0].Spec.Policy, &kept); err != nil {
		t.Fatal(err)
	}
	if len(kept.Policy.Answers) != 1 || kept.Policy.Answers[0].File != "answer of ann" || kept.Policy.Answers[0].Effect != policy.Allow {
		t.Errorf("the record has the answers %+v, want one of ann", kept.Policy.Answers)
	}
	// An answer for the session is not stored.
	if err := d.remember(t.Context(), answered(approval.Session, ""), policy.Rule{Action: "edit", Pattern: "*", Effect: policy.Allow}); err != nil {
		t.Fatal(err)
	}
	all, err = d.store.Jails().All(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(all[0].Spec.Policy), `"edit"`) {
		t.Errorf("the record is %s, want nothing of an answer for the session", all[0].Spec.Policy)
	}
	r := answered(approval.Always, "ann")
	r.Question.Subject.Jail = "j-bbbbbbbbbbbb"
	if err := d.remember(t.Context(), r, rule); !errors.Is(err, fault.NotFound) {
		t.Errorf("remember for a jail that there is not = %v, want not found", err)
	}
}

func TestSecretsAreRefreshedInTheJailsThatAScopeCovers(t *testing.T) {
	d := withSecrets(t)
	d.withJails(t, "j-bbbbbbbbbbbb")
	for name, s := range map[string]secret.Scope{"one": {Jail: shelved}, "all": {}, "gone": {Jail: "j-cccccccccccc"}} {
		if err := d.refreshSecrets(t.Context(), s); err != nil {
			t.Errorf("refreshSecrets of %s = %v, want nil", name, err)
		}
	}
	// While a jail is being changed, that change refreshes its secrets. Waiting for the change
	// would be a deadlock.
	if err := d.refreshSecrets(inTurn(t.Context()), secret.Scope{}); err != nil {
		t.Errorf("refreshSecrets during a change = %v, want nil", err)
	}
	files, err := d.jails.Files(t.Context(), shelved) // this holds the jail's lock
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.refreshSecrets(ctx, secret.Scope{Jail: shelved}); !errors.Is(err, fault.Unavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("refreshSecrets of a jail that is being changed = %v, want unavailable", err)
	}
	if err := (jailSecrets{d.secrets}).CopyGrantsToBranch(t.Context(), shelved, "j-bbbbbbbbbbbb"); err != nil {
		t.Errorf("Branched while a jail is being changed = %v, want nil", err)
	}
	if err := (jailSecrets{d.secrets}).JailDeleted(t.Context(), shelved); err != nil {
		t.Errorf("Gone while a jail is being changed = %v, want nil", err)
	}
}

// An agent can read its own jail without the secrets.
func TestAgentReadsItsJailWithoutSecrets(t *testing.T) {
	d := newGoverned(t)
	d.withJails(t, "j-bbbbbbbbbbbb")
	a := agentSource{d.Daemon, gateway.Caller{Jail: shelved, Level: policy.Guided}}
	all, err := a.Jails(t.Context())
	if err != nil || len(all) != 1 || all[0].ID != string(shelved) || all[0].Name != "web" || all[0].State != "stopped" || all[0].Image != "alpine" {
		t.Errorf("Jails = %+v, %v, want its own", all, err)
	}
	text, err := a.Jail(t.Context(), string(shelved))
	if err != nil {
		t.Fatal(err)
	}
	for _, hidden := range []string{"s3cr3t", "TOKEN", "/srv/private"} {
		if strings.Contains(string(text), hidden) {
			t.Errorf("the jail is %s, want nothing of %s", text, hidden)
		}
	}
	for _, shown := range []string{`"memory_mb":512`, `"network":"isolated"`, `"autonomy_level":1`} {
		if !strings.Contains(string(text), shown) {
			t.Errorf("the jail is %s, want %s", text, shown)
		}
	}
	if _, err := a.Jail(t.Context(), "j-cccccccccccc"); !errors.Is(err, fault.NotFound) {
		t.Errorf("Jail of none = %v, want not found", err)
	}
	outside := agentSource{d.Daemon, gateway.Caller{}}
	if all, err := outside.Jails(t.Context()); err != nil || all != nil {
		t.Errorf("Jails of an agent outside of jails = %v, %v, want none", all, err)
	}
	gone := agentSource{d.Daemon, gateway.Caller{Jail: "j-cccccccccccc"}}
	if _, err := gone.Jails(t.Context()); !errors.Is(err, fault.NotFound) {
		t.Errorf("Jails of an agent whose jail is gone = %v, want not found", err)
	}
	if got := shownSnapshot(snapshot.Snapshot{ID: "s-1", Name: "n", Memory: true, Jail: jail.Jail{ID: shelved, Spec: jail.Spec{Env: map[string]string{"A": "s3cr3t"}}}}); got.Jail != string(shelved) || got.Name != "n" || !got.Memory {
		t.Errorf("a snapshot is shown as %+v, want its jail, name and memory", got)
	}
}

func TestJailUsageComesFromInstance(t *testing.T) {
	fails := errors.New("no cgroup")
	var stats error
	got := target(jail.Jail{ID: shelved, InstanceID: "j-bbbbbbbbbbbb", IDs: jail.IDRange{First: 7, Count: 9}}, jail.HostInfo{
		PID: 3, Restored: true, Link: "veth1",
		Stats: func(context.Context) (jail.Stats, error) {
			return jail.Stats{CPU: 1, MemoryBytes: 2, PIDs: 3, DiskBytes: 4, RxBytes: 5, TxBytes: 6}, stats
		},
	})
	if got.Jail != shelved || got.Instance != "j-bbbbbbbbbbbb" || got.PID != 3 || !got.ProcessesRecorded || got.Veth != "veth1" || got.IDs.First != 7 || got.IDs.Count != 9 {
		t.Errorf("target = %+v, want the jail's", got)
	}
	var e event.Event
	if err := got.Usage(t.Context(), &e); err != nil || e.CPU != 1 || e.Memory != 2 || e.PIDs != 3 || e.Disk != 4 || e.Rx != 5 || e.Tx != 6 {
		t.Errorf("Usage = %+v, %v, want what was counted", e, err)
	}
	stats, e = fails, event.Event{}
	if err := got.Usage(t.Context(), &e); err != fails || e.CPU != 0 {
		t.Errorf("Usage that cannot be counted = %v with %d, want the error alone", err, e.CPU)
	}
}

func TestSnapshotsAreInTheAuditLog(t *testing.T) {
	d := newGoverned(t)
	s := snapshot.Snapshot{ID: "s-1", Parent: "s-0", Digest: "sha256:d", Seq: 12, Reason: snapshot.Branched, Jail: jail.Jail{ID: shelved}}
	for _, op := range []snapshot.Op{snapshot.OpTaken, snapshot.OpBranched, snapshot.OpRewound, snapshot.OpDeleted} {
		d.tellOfSnapshot(snapshot.Notification{Op: op, Snapshot: s, Jail: "j-bbbbbbbbbbbb", Number: 2})
	}
	want := []chain.Kind{chain.SnapshotTaken, chain.JailBranched, chain.JailRewound, chain.SnapshotDeleted}
	if got := d.kinds(t); !slices.Equal(got, want) {
		t.Fatalf("entries = %v, want %v", got, want)
	}
	e := d.entries(t)[1]
	for _, part := range []string{`"snapshot":"s-1"`, `"of":"j-aaaaaaaaaaaa"`, `"parent":"s-0"`, `"digest":"sha256:d"`, `"seq":12`, `"number":2`} {
		if e.Jail != "j-bbbbbbbbbbbb" || !strings.Contains(string(e.Body), part) {
			t.Errorf("the entry of %s is %s, want %s in it", e.Jail, e.Body, part)
		}
	}
}

// The snapshots are opened after the jails. Until then, commands and programs run without them.
func TestCommandsBeforeSnapshotsAreOpen(t *testing.T) {
	d := &Daemon{snapshots: snapshot.New(snapshot.Config{})}
	commands{d}.Before(t.Context(), shelved, []string{"rm"})
	commands{d}.After(t.Context(), shelved, []string{"rm"})
	d.programStarted(shelved, &event.Event{})
}

func TestRequestsOfACapabilityWithoutANetworkAreDenied(t *testing.T) {
	d := newGoverned(t)
	f := &fetches{d: d.Daemon}
	call := &engine.Call{Capability: &engine.Installed{Capability: &manifest.Capability{ID: "a.b", Version: "1.0.0"}}}
	r, err := http.NewRequestWithContext(t.Context(), "GET", "https://example.com", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Do(t.Context(), call, r); !errors.Is(err, fault.Denied) {
		t.Errorf("Do = %v, want denied", err)
	}
	if err := errors.Join(f.end(call.Capability), f.Close(), f.Close()); err != nil {
		t.Errorf("the end of none = %v, want nil", err)
	}
}
