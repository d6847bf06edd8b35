package backendtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

func (s *suite) createdJailAnswers(t *testing.T) {
	b := s.newBox(t)
	if got, want := b.sh(t, "echo hello"), "hello"; got != want {
		t.Errorf("echo hello = %q, want %q", got, want)
	}
	if r := b.try(t, "exit 7"); r.status.Code != 7 {
		t.Errorf("exit 7 ended with %v", r)
	}
	if err := syscall.Kill(b.inst.PID(), 0); err != nil {
		t.Errorf("PID() = %d, which is not a process of the host: %v", b.inst.PID(), err)
	}
	select {
	case <-b.inst.Done():
		t.Error("Done is closed while the jail lives")
	default:
	}
	b.kill(t)
}

// stubborn are scripts whose processes have been seen to outlive their jail.
var stubborn = []struct{ name, script string }{
	{"ordinary", `sleep 300 & sleep 300 & wait`},
	{"ignores every signal it can", `trap "" TERM INT HUP QUIT USR1 USR2; echo x > /tmp/up; while :; do sleep 1; done`},
	{"forked twice", `(setsid bash -c "(sleep 300 &) & exit" &) ; echo x > /tmp/up`},
	{"left the session", `setsid sleep 300 < /dev/null > /dev/null 2>&1 & disown; echo x > /tmp/up`},
	{"stopped itself", `bash -c 'kill -STOP $$' & echo x > /tmp/up; wait`},
	{"forks without end", `f() { f | f & }; f; echo x > /tmp/up`},
	{"dies and is reborn", `f() { sleep 0.01; f & }; f; echo x > /tmp/up`},
	{"another user", `exec probe as 1000 sleep 300`},
}

func (s *suite) killLeavesNoProcess(t *testing.T) {
	for _, tt := range stubborn {
		s.clause(t, strings.ReplaceAll(tt.name, " ", "-"), func(t *testing.T) {
			if strings.Contains(tt.name, "without end") {
				s.lacks(t, "pids")
			}
			b := s.newBox(t, func(p *jail.Plan) { p.Limits.MaxPIDs = 64 })
			b.start(t, tt.script)
			time.Sleep(150 * time.Millisecond)
			b.kill(t)
			mustClose(t, b.inst.Done(), "Done after Kill")
			if err := b.inst.Kill(t.Context()); err != nil {
				t.Errorf("Kill of a dead jail: %v", err)
			}
		})
	}
	s.clause(t, "frozen", func(t *testing.T) {
		s.lacks(t, "freeze")
		b := s.newBox(t)
		b.start(t, "sleep 300")
		if err := b.inst.Freeze(t.Context()); err != nil {
			t.Fatalf("Freeze: %v", err)
		}
		b.kill(t)
	})
}

func (s *suite) doneClosesWhenInitDies(t *testing.T) {
	b := s.newBox(t)
	b.start(t, "sleep 300")
	if err := syscall.Kill(b.inst.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	mustClose(t, b.inst.Done(), "Done after init was killed")
	eventually(t, "no process is left after init died", func() bool { return len(processesOf(b.plan)) == 0 })
}

func (s *suite) freezeAndThaw(t *testing.T) {
	s.lacks(t, "freeze")
	b := s.newBox(t)
	b.start(t, `while :; do echo $((++n)) > /tmp/n; sleep 0.05; done`)
	count := func() string { return b.sh(t, "cat /tmp/n") }
	eventually(t, "the loop writes", func() bool { return b.try(t, "test -s /tmp/n").status.Code == 0 })

	before := count()
	if err := b.inst.Freeze(t.Context()); err != nil {
		t.Fatalf("Freeze: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := b.ctl.WaitReady(ctx); err == nil {
		t.Error("init responds while the jail is frozen")
	}
	if err := b.inst.Freeze(t.Context()); err != nil {
		t.Errorf("Freeze of a frozen jail: %v", err)
	}
	if err := b.inst.Thaw(t.Context()); err != nil {
		t.Fatalf("Thaw: %v", err)
	}
	eventually(t, "the loop continues after Thaw", func() bool { return count() != before })
	if err := b.inst.Thaw(t.Context()); err != nil {
		t.Errorf("Thaw of a jail that is not frozen: %v", err)
	}
}

func (s *suite) openFindsTheJailAgain(t *testing.T) {
	b := s.newBox(t)
	b.start(t, "echo mark > /tmp/mark; sleep 300")
	if err := b.inst.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}

	other := s.open(t) // the daemon after a restart
	inst, err := other.Open(t.Context(), b.plan)
	if err != nil {
		t.Fatalf("Open after Close: %v", err)
	}
	t.Cleanup(func() { inst.Close() })
	if inst.PID() != b.inst.PID() || inst.Control() != b.inst.Control() {
		t.Errorf("Open = pid %d at %s, want pid %d at %s", inst.PID(), inst.Control(), b.inst.PID(), b.inst.Control())
	}
	again := s.adopt(t, b.plan, inst)
	eventually(t, "the running command continues", func() bool { return again.try(t, "cat /tmp/mark").stdout == "mark\n" })
	if _, err := inst.Stats(t.Context()); err != nil {
		t.Errorf("Stats of an opened jail: %v", err)
	}

	again.kill(t)
	mustClose(t, inst.Done(), "Done of an opened jail after Kill")
	if inst, err := other.Open(t.Context(), b.plan); !errors.Is(err, fault.NotFound) {
		t.Errorf("Open of a killed jail = %v, %v, want not found", inst, err)
	}
	if _, err := other.Open(t.Context(), s.newPlan(t)); !errors.Is(err, fault.NotFound) {
		t.Errorf("Open of a jail that never existed = %v, want not found", err)
	}
}

func (s *suite) cleanAfterEveryDeath(t *testing.T) {
	deaths := []struct {
		name string
		die  func(t *testing.T, b *box)
	}{
		{"alive", func(*testing.T, *box) {}},
		{"killed", func(t *testing.T, b *box) { b.kill(t) }},
		{"init-killed", func(t *testing.T, b *box) { syscall.Kill(b.inst.PID(), syscall.SIGKILL) }},
		{"let-go", func(t *testing.T, b *box) { b.inst.Close() }},
		{"frozen", func(t *testing.T, b *box) {
			s.lacks(t, "freeze")
			if err := b.inst.Freeze(t.Context()); err != nil {
				t.Fatal(err)
			}
		}},
		{"forking", func(t *testing.T, b *box) {
			s.lacks(t, "pids")
			b.start(t, `f() { f | f & }; f`)
			time.Sleep(100 * time.Millisecond)
		}},
	}
	for _, d := range deaths {
		s.clause(t, d.name, func(t *testing.T) {
			b := s.newBox(t)
			b.start(t, "sleep 300")
			d.die(t, b)
			daemon := s.open(t)
			for range 2 {
				if err := daemon.Clean(t.Context(), b.plan); err != nil {
					t.Fatalf("Clean: %v", err)
				}
				mustNotLeak(t, b.plan)
			}
			if _, err := daemon.Open(t.Context(), b.plan); !errors.Is(err, fault.NotFound) {
				t.Errorf("Open of a cleaned jail = %v, want not found", err)
			}
		})
	}
	s.clause(t, "never-created", func(t *testing.T) {
		if err := s.backend.Clean(t.Context(), s.newPlan(t)); err != nil {
			t.Errorf("Clean of a jail that never existed: %v", err)
		}
	})
}

// The daemon that dies in the middle of Create is this test binary, started again with a plan.
const (
	childPlan = "GLASSHOUSE_BACKENDTEST_PLAN"
	childTest = "GLASSHOUSE_BACKENDTEST_TEST"
)

// An order specifies what such a daemon creates.
type order struct {
	Plan   jail.Plan
	Images string // to restore the jail from; "" to create it
}

// childMakes creates the jail of the order in the environment and reports true if this process
// is such a daemon.
func childMakes(t *testing.T, open func(t *testing.T) jail.Backend) bool {
	file := os.Getenv(childPlan)
	if file == "" {
		return false
	}
	if t.Name() != os.Getenv(childTest) {
		return true // another run of the suite in the same binary
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var o order
	if err := json.Unmarshal(data, &o); err != nil {
		t.Fatal(err)
	}
	b := open(t)
	fmt.Println("creating")
	if o.Images == "" {
		_, err = b.Create(t.Context(), o.Plan)
	} else {
		_, err = b.(jail.Checkpointer).Restore(t.Context(), o.Plan, o.Images)
	}
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("created")
	syscall.Kill(os.Getpid(), syscall.SIGKILL) // skips the cleanup functions of the tests
	return true
}

// cleanInTheMiddleOfCreate kills daemons at moments spread over Create, from its first step
// until after its end.
func (s *suite) cleanInTheMiddleOfCreate(t *testing.T) {
	s.cleanInTheMiddle(t, "/CleanInTheMiddleOfCreate", func(t *testing.T) order { return order{Plan: s.newPlan(t)} })
}

// cleanInTheMiddle kills daemons with the given orders.
func (s *suite) cleanInTheMiddle(t *testing.T, clause string, give func(t *testing.T) order) {
	name, _, _ := strings.Cut(t.Name(), clause)
	duration := s.dieMaking(t, name, give(t), time.Minute)
	n := time.Duration(moments(16))
	for i := range n {
		after := duration * i * 4 / (n * 3)
		after += time.Duration(rand.Int64N(int64(duration/n) + 1))
		s.clause(t, fmt.Sprintf("moment-%02d", i), func(t *testing.T) {
			o := give(t)
			p := o.Plan
			s.dieMaking(t, name, o, after)
			daemon := s.open(t)
			if err := daemon.Clean(t.Context(), p); err != nil {
				t.Fatalf("Clean after a kill %v after the start: %v", after, err)
			}
			mustNotLeak(t, p)
			time.Sleep(50 * time.Millisecond) // for operations that are still in progress
			mustNotLeak(t, p)
			b := s.create(t, p)
			b.sh(t, "true")
			b.kill(t)
		})
	}
}

// dieMaking runs a daemon that creates a jail and is killed after some time or when it has
// finished. It returns how long the daemon ran.
func (s *suite) dieMaking(t *testing.T, name string, o order, after time.Duration) time.Duration {
	t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "plan.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		parts = append(parts, "^"+part+"$")
	}
	cmd := exec.Command(self, "-test.run="+strings.Join(parts, "/"))
	cmd.Env = append(os.Environ(), childPlan+"="+file, childTest+"="+name)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var seen strings.Builder
	await := func(word string) {
		for buf := make([]byte, 512); !strings.Contains(seen.String(), word); {
			n, err := out.Read(buf)
			seen.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}
	await("creating\n")
	began := time.Now()
	timer := time.AfterFunc(after, func() { cmd.Process.Kill() })
	defer timer.Stop()
	await("created\n")
	took := time.Since(began)
	await("the end of its output")
	cmd.Wait()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
		t.Fatalf("create a jail in another process: %v\n%s", cmd.ProcessState, seen.String())
	}
	return took
}

// failedCreateLeavesNothing creates jails from invalid plans.
func (s *suite) failedCreateLeavesNothing(t *testing.T) {
	impossible := []struct {
		name   string
		change func(p *jail.Plan)
	}{
		{"no-lower-layer", func(p *jail.Plan) { p.Lower = []string{filepath.Join(p.Dir, "absent")} }},
		{"no-init", func(p *jail.Plan) { p.Init = filepath.Join(p.Dir, "absent") }},
		{"init-does-not-run", func(p *jail.Plan) { p.Init = "/etc/passwd" }},
		{"mount-of-nothing", func(p *jail.Plan) {
			p.Mounts = []jail.Mount{{Source: filepath.Join(p.Dir, "absent"), Target: "/mnt"}}
		}},
	}
	for _, tt := range impossible {
		s.clause(t, tt.name, func(t *testing.T) {
			p := s.newPlan(t, tt.change)
			ctx := deadline(t, 30*time.Second)
			if _, err := s.backend.Create(ctx, p); err == nil {
				t.Error("Create of an impossible plan succeeded")
			}
			mustNotLeak(t, p)
		})
	}
	s.clause(t, "called-off", func(t *testing.T) {
		for i := range 8 {
			p := s.newPlan(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*5*time.Millisecond)
			defer cancel()
			inst, err := s.backend.Create(ctx, p)
			if err != nil {
				mustNotLeak(t, p)
				continue
			}
			b := s.adopt(t, p, inst) // Create finished before the cancellation
			b.kill(t)
			inst.Close()
		}
	})
}

func (s *suite) whatItLacksItRefuses(t *testing.T) {
	lacks := s.backend.Lacks()
	dependent := map[string]func(p *jail.Plan){
		"network": func(p *jail.Plan) { p.Network = jail.Full },
		"mounts":  func(p *jail.Plan) { p.Mounts = []jail.Mount{{Source: p.Dir, Target: "/mnt"}} },
		"writable_mounts": func(p *jail.Plan) {
			p.Mounts = []jail.Mount{{Source: p.Dir, Target: "/mnt", Write: true}}
		},
	}
	for thing, change := range dependent {
		reason, ok := lacks[thing]
		if !ok {
			continue
		}
		if reason == "" {
			t.Errorf("Lacks names %q without a reason", thing)
		}
		p := s.newPlan(t, change)
		if _, err := s.backend.Create(t.Context(), p); !errors.Is(err, fault.Unsupported) {
			t.Errorf("Create of a plan that depends on %q = %v, want unsupported", thing, err)
		}
		mustNotLeak(t, p)
	}
	if _, ok := lacks["freeze"]; ok {
		b := s.newBox(t)
		if err := b.inst.Freeze(t.Context()); !errors.Is(err, fault.Unsupported) {
			t.Errorf("Freeze = %v, want unsupported", err)
		}
	}
}

func (s *suite) stoppedJailStartsAgain(t *testing.T) {
	p := s.newPlan(t)
	first := s.create(t, p)
	first.sh(t, `echo kept > /root/kept; echo more >> /etc/issue; mkdir /data; rm /usr/bin/nproc`)
	for round := range 3 {
		b := first
		if round > 0 {
			b = s.create(t, p)
		}
		if got, want := b.sh(t, "cat /root/kept"), "kept"; got != want {
			t.Errorf("start %d: /root/kept = %q, want %q", round, got, want)
		}
		if got, want := b.sh(t, "tail -n 1 /etc/issue"), "more"; got != want {
			t.Errorf("start %d: last line of /etc/issue = %q, want %q", round, got, want)
		}
		b.sh(t, "test -d /data && ! test -e /usr/bin/nproc")
		b.kill(t)
		b.inst.Close()
		if err := s.backend.Clean(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		mustNotLeak(t, p)
	}
}

func (s *suite) mountShowsAStoppedJail(t *testing.T) {
	b := s.newBox(t)
	b.sh(t, `echo fine > /root/result; echo changed > /etc/issue; rm /usr/bin/nproc; chmod 640 /root/result`)
	b.kill(t)
	b.inst.Close()
	if err := s.backend.Clean(t.Context(), b.plan); err != nil {
		t.Fatal(err)
	}

	for range 2 {
		files := s.openFiles(t, b.plan)
		for file, want := range map[string]string{"/root/result": "fine\n", "/etc/issue": "changed\n", "/etc/group": group} {
			if got, err := readFile(t, files, file); got != want {
				t.Errorf("%s = %q, %v, want %q", file, got, err, want)
			}
		}
		if _, err := files.Stat(t.Context(), "/usr/bin/nproc"); !errors.Is(err, fault.NotFound) {
			t.Errorf("a file that the jail removed exists: %v", err)
		}
		if _, err := files.Write(t.Context(), "/root/put", strings.NewReader("from outside\n"), protocol.WriteOptions{}); err != nil {
			t.Errorf("write into a stopped jail: %v", err)
		}
		s.closeFiles(t, files, b.plan)
	}
	b = s.create(t, b.plan)
	if got, want := b.sh(t, "cat /root/put"), "from outside"; got != want {
		t.Errorf("file written from outside = %q, want %q", got, want)
	}
	b.kill(t)
}

func (s *suite) twoJailsStayApart(t *testing.T) {
	a, b := s.newBox(t), s.newBox(t)
	a.sh(t, "echo mine > /tmp/mine; mkdir /run/mine")
	a.start(t, "exec -a needle sleep 300")
	for _, look := range []string{"test -e /tmp/mine", "test -e /run/mine", "grep -a needl[e] /proc/[0-9]*/cmdline"} {
		if r := b.try(t, look); r.status.Code == 0 {
			t.Errorf("a jail sees resources of another: %s: %v", look, r)
		}
	}
	a.kill(t)
	if got, want := b.sh(t, "echo alive"), "alive"; got != want {
		t.Errorf("after the kill of the other jail: got %q, want %q", got, want)
	}
	b.kill(t)
}

func (s *suite) twentyAtOnce(t *testing.T) {
	plans := make([]jail.Plan, 20)
	for i := range plans {
		plans[i] = s.newPlan(t)
	}
	var wg sync.WaitGroup
	errs := make([]error, len(plans))
	for i, p := range plans {
		wg.Go(func() { errs[i] = s.liveOnce(t.Context(), p) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	for _, p := range plans {
		mustNotLeak(t, p)
	}
}

// liveOnce runs the whole life cycle of a jail.
func (s *suite) liveOnce(ctx context.Context, p jail.Plan) error {
	inst, err := s.backend.Create(ctx, p)
	if err != nil {
		return fmt.Errorf("create %s: %w", p.ID, err)
	}
	defer inst.Close()
	ctl := control.Dial(inst.Control())
	if _, err := ctl.WaitReady(ctx); err != nil {
		return fmt.Errorf("reach %s: %w", p.ID, err)
	}
	e := protocol.Exec{ID: "x-aaaaaaaaaaaa", Argv: []string{"/bin/bash", "-c", "exit 7"}, Env: path}
	if _, _, err := ctl.Exec(ctx, e, nil); err != nil {
		return fmt.Errorf("exec in %s: %w", p.ID, err)
	}
	status, err := ctl.Wait(ctx, e.ID)
	if err != nil || status.Code != 7 {
		return fmt.Errorf("exec in %s ended with %+v, %w", p.ID, status, err)
	}
	if err := inst.Kill(ctx); err != nil {
		return fmt.Errorf("kill %s: %w", p.ID, err)
	}
	return s.backend.Clean(ctx, p)
}

func mustClose(t *testing.T, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatalf("%s is not closed after 30 seconds", what)
	}
}
