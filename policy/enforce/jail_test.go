package enforce_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/backend/bwrap"
	"glasshouse/jail/backend/oci"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
	"glasshouse/policy"
	"glasshouse/policy/enforce"
)

// attack is the program name under which the test binary runs attackMain.
const attack = "attack"

func TestMain(m *testing.M) {
	bwrap.Stage(os.Args)
	if filepath.Base(os.Args[0]) == attack {
		os.Exit(attackMain(os.Args[1:]))
	}
	code := m.Run()
	os.RemoveAll(extra)
	os.Exit(code)
}

// forEach runs a scenario in jails of each backend that can enforce.
func forEach(t *testing.T, scenario func(t *testing.T, b *harness)) {
	for _, name := range []string{"runc", "crun", "bwrap"} {
		t.Run(name, func(t *testing.T) { scenario(t, newHarness(t, name)) })
	}
}

// A harness is a jail whose calls a test judge decides.
type harness struct {
	t       testing.TB
	backend jail.Backend
	plan    jail.Plan
	inst    jail.Instance
	ctl     *control.Client
	judge   *judge
	dir     string
	prefix  string

	mu sync.Mutex
	// +checklocks:mu
	reported []enforce.Mismatch
	stop     func() // ends the Watch
}

func newHarness(t testing.TB, name string, change ...func(*jail.Plan)) *harness {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("jails with separate user ids need root")
	}
	dir, err := os.MkdirTemp("", "gh-enforce-")
	must(t, err)
	must(t, os.Chmod(dir, 0o711))
	sum := sha256.Sum256([]byte(dir))
	b := &harness{t: t, dir: dir, prefix: "glasshouse-" + hex.EncodeToString(sum[:4]), judge: &judge{}}
	t.Cleanup(func() {
		if tree, err := cgroup.New(b.prefix); err == nil {
			if err := tree.Remove(); err != nil {
				t.Errorf("cgroups were not removed: %v", err)
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("files were not removed: %v", err)
		}
	})
	b.backend = b.daemon(name)
	if err := b.backend.Probe(t.Context()); errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	} else {
		must(t, err)
	}
	b.plan = b.newPlan(change...)
	if name != "bwrap" {
		b.plan.Runtime = name
	}
	b.inst, err = b.backend.Create(t.Context(), b.plan)
	must(t, err)
	t.Cleanup(func() { b.inst.Close() })
	b.ctl = control.Dial(b.inst.Control())
	if b.plan.Enforce {
		b.watch()
		t.Cleanup(func() { b.stop() })
	}
	return b
}

// daemon opens a backend as the daemon does.
func (b *harness) daemon(name string) jail.Backend {
	if name == "bwrap" {
		return bwrap.New(bwrap.Config{CgroupPrefix: b.prefix, Templates: filepath.Join(b.dir, "templates"), Base: filepath.Join(b.dir, "base")})
	}
	criu := "criu"
	if path, err := exec.LookPath("/var/lib/glasshouse/tools/bin/criu"); err == nil {
		criu = path
	}
	return oci.New(oci.Config{
		Runtime: name, CRIU: criu, CgroupPrefix: b.prefix,
		RunDir: filepath.Join(b.dir, "run"), Templates: filepath.Join(b.dir, "templates"), Base: filepath.Join(b.dir, "base"),
	})
}

// newPlan returns the plan of a jail and registers its cleanup.
func (b *harness) newPlan(change ...func(*jail.Plan)) jail.Plan {
	t := b.t
	t.Helper()
	name := id.NewJail()
	p := jail.Plan{
		ID: name, Dir: filepath.Join(b.dir, string(name)), Hostname: string(name),
		Lower:  []string{layer(t), backendtest.Rootfs(t)},
		IDs:    backendtest.NextIDs(t),
		Limits: jail.DefaultLimits, Network: jail.Isolated, Init: backendtest.Init(t), Enforce: true,
	}
	p.Limits.DiskMB, p.Limits.MaxPIDs = 64, 1024
	for _, c := range change {
		c(&p)
	}
	must(t, os.Mkdir(p.Dir, 0o711))
	t.Cleanup(func() {
		if err := b.backend.Clean(context.WithoutCancel(t.Context()), p); err != nil {
			t.Errorf("Clean: %v", err)
		}
		if leaks := backendtest.LeaksAfter(p, 30*time.Second); len(leaks) > 0 {
			t.Errorf("Clean left on the host:\n%s", strings.Join(leaks, "\n"))
		}
		if r, ok := b.backend.(jail.Remover); ok {
			if err := r.Remove(context.WithoutCancel(t.Context()), p); err != nil {
				t.Errorf("Remove: %v", err)
			}
		}
	})
	return p
}

var (
	extra     string
	extraOnce sync.Once
)

// layer returns a filesystem layer with Python and the attack program.
func layer(t testing.TB) string {
	t.Helper()
	extraOnce.Do(func() {
		dir, err := os.MkdirTemp("", "gh-enforce-layer-")
		must(t, err)
		must(t, os.Chmod(dir, 0o755))
		self, err := os.Executable()
		must(t, err)
		script := `set -e
mkdir -p $1/usr/bin $1/usr/lib
cp "$2" $1/usr/bin/attack; chmod 755 $1/usr/bin/attack
if py=$(readlink -f /usr/bin/python3); then
	cp $py $1/usr/bin/; ln -s ${py##*/} $1/usr/bin/python3
	for lib in $(ldd $py | grep -o '/[^ ]*'); do mkdir -p $1${lib%/*}; cp -L $lib $1$lib; done
	mkdir -p $1/usr/lib/${py##*/}
	cp -r /usr/lib/${py##*/}/*.py /usr/lib/${py##*/}/encodings /usr/lib/${py##*/}/collections /usr/lib/${py##*/}/re /usr/lib/${py##*/}/importlib $1/usr/lib/${py##*/}/
fi
`
		if out, err := exec.Command("/bin/sh", "-c", script, "sh", dir, self).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		extra = dir
	})
	return extra
}

// watch starts a Watch, as the daemon does at its start.
func (b *harness) watch() { b.watchWith(b.judge) }

func (b *harness) watchWith(judge enforce.Judge) {
	b.t.Helper()
	listener, err := b.inst.(jail.EnforcedInstance).Listener()
	must(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- enforce.Watch(ctx, enforce.Jail{
			Subject: policy.Subject{Jail: b.plan.ID}, Init: b.inst.PID(), Workspace: "/work", Listener: listener, Judge: judge,
			OnMismatch: func(l enforce.Mismatch) {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.reported = append(b.reported, l)
			},
		})
	}()
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("Watch: %v", err)
		}
		listener.Close()
	})
}

func (b *harness) mismatches() []enforce.Mismatch {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reported
}

// A judge decides by a rule that the test sets and records the questions. Without a rule it
// allows everything.
type judge struct {
	mu sync.Mutex
	// +checklocks:mu
	rule func(q policy.Question) policy.Effect
	// +checklocks:mu
	asked []policy.Question
	// +checklocks:mu
	answers map[string]chan policy.Effect // pending approvals by resource
}

func (j *judge) Judge(ctx context.Context, q policy.Question) policy.Decision {
	j.mu.Lock()
	j.asked = append(j.asked, q)
	effect := policy.Allow
	if j.rule != nil {
		effect = j.rule(q)
	}
	var person chan policy.Effect
	if effect == policy.Ask {
		if j.answers == nil {
			j.answers = map[string]chan policy.Effect{}
		}
		person = j.answers[q.Resource]
		if person == nil {
			person = make(chan policy.Effect)
			j.answers[q.Resource] = person
		}
	}
	j.mu.Unlock()
	if effect == policy.Ask {
		select {
		case effect = <-person:
		case <-ctx.Done():
		}
	}
	return policy.Decision{Effect: effect}
}

func (j *judge) set(rule func(q policy.Question) policy.Effect) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.rule, j.asked = rule, nil
}

// questions returns the resources that an action was asked for.
func (j *judge) questions(action string) (all []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, q := range j.asked {
		if q.Action == action {
			all = append(all, q.Resource)
		}
	}
	return all
}

// approver waits until an approval of a resource is requested and returns the channel for the
// answer.
func (j *judge) approver(t testing.TB, resource string) chan<- policy.Effect {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		j.mu.Lock()
		p := j.answers[resource]
		j.mu.Unlock()
		if p != nil {
			return p
		}
	}
	t.Fatalf("no approval request for %q; judged: %q", resource, j.questions(policy.ActionRun))
	return nil
}

// denyCommand denies command lines that begin with one of the names.
func denyCommand(names ...string) func(policy.Question) policy.Effect {
	return func(q policy.Question) policy.Effect {
		first := filepath.Base(strings.SplitN(q.Resource, " ", 2)[0])
		for _, n := range names {
			if q.Action == policy.ActionRun && first == n {
				return policy.Deny
			}
		}
		return policy.Allow
	}
}

// denyEdit denies changes of files below a path.
func denyEdit(under string) func(policy.Question) policy.Effect {
	return func(q policy.Question) policy.Effect {
		if q.Action == policy.ActionEdit && (q.Attributes["path"] == under || strings.HasPrefix(q.Attributes["path"], under+"/")) {
			return policy.Deny
		}
		return policy.Allow
	}
}

type result struct {
	out  string
	code int
}

// run runs a command and returns its result.
func (b *harness) run(argv ...string) result {
	b.t.Helper()
	r, err := b.tryRun(argv...)
	if err != nil {
		b.t.Fatalf("run %q: %v", argv, err)
	}
	return r
}

var environ = []string{"PATH=/usr/bin:/bin", "HOME=/root", "LC_ALL=C"}

func (b *harness) tryRun(argv ...string) (result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	e := protocol.Exec{ID: id.NewExec(), Argv: argv, Env: environ, Timeout: 50 * time.Second}
	stream, _, err := b.ctl.Exec(ctx, e, &control.AttachOptions{Lossless: true})
	if err != nil {
		return result{}, err
	}
	defer stream.Close()
	return collect(stream)
}

// collect returns the output of a command, stdout before stderr. The order between the two
// pipes is unknown.
func collect(stream *control.Stream) (result, error) {
	var out, errs bytes.Buffer
	for {
		chunk, err := stream.Next()
		if err == io.EOF {
			return result{strings.TrimSuffix(out.String()+errs.String(), "\n"), stream.Status().Code}, nil
		}
		if err != nil {
			return result{}, err
		}
		if chunk.Stream == protocol.Stderr {
			errs.Write(chunk.Data)
		} else {
			out.Write(chunk.Data)
		}
	}
}

func (b *harness) sh(script string) result {
	b.t.Helper()
	return b.run("/bin/bash", "-c", script)
}

// mustRun runs a script that must succeed.
func (b *harness) mustRun(script string) string {
	b.t.Helper()
	r := b.sh(script)
	if r.code != 0 {
		b.t.Fatalf("%s: code %d, %s", script, r.code, r.out)
	}
	return r.out
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("timed out after 30s waiting until %s", what)
}
