package enforce_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/id"
	"glasshouse/internal/thread"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
	"glasshouse/policy"
	"glasshouse/policy/enforce"
)

// askCommand returns a rule that requires approval for command lines that begin with a word.
func askCommand(name string) func(policy.Question) policy.Effect {
	deny := denyCommand(name)
	return func(q policy.Question) policy.Effect {
		if deny(q) == policy.Deny {
			return policy.Ask
		}
		return policy.Allow
	}
}

// background starts a script without waiting for it.
func (b *harness) background(script string) id.Exec {
	b.t.Helper()
	return b.start("/bin/bash", "-c", script)
}

// start starts a command without waiting for it.
func (b *harness) start(argv ...string) id.Exec {
	b.t.Helper()
	e := protocol.Exec{ID: id.NewExec(), Argv: argv, Env: environ}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, _, err := b.ctl.Exec(ctx, e, nil)
	must(b.t, err)
	return e.ID
}

// result waits for a command to end and returns its result.
func (b *harness) result(x id.Exec) result {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	stream, err := b.ctl.Attach(ctx, x, control.AttachOptions{Follow: true, Lossless: true})
	must(b.t, err)
	defer stream.Close()
	r, err := collect(stream)
	must(b.t, err)
	return r
}

func answer(t testing.TB, person chan<- policy.Effect, e policy.Effect) {
	t.Helper()
	select {
	case person <- e:
	case <-time.After(30 * time.Second):
		t.Fatal("no question is waiting for the answer")
	}
}

func TestProcessWaitsForApproval(t *testing.T) {
	forEach(t, func(t *testing.T, b *harness) {
		for _, tt := range []struct {
			answer policy.Effect
			want   result
		}{{policy.Allow, result{"a small tree for tests", 0}}, {policy.Deny, result{"/bin/bash: line 1: /usr/bin/cat: Operation not permitted", 126}}} {
			b.judge.set(askCommand("cat"))
			x := b.background("cat /etc/issue")
			person := b.judge.approver(t, "cat /etc/issue")
			if got := b.mustRun("echo unaffected"); got != "unaffected" { // meanwhile
				t.Errorf("concurrent command printed %q", got)
			}
			answer(t, person, tt.answer)
			if got := b.result(x); got != tt.want {
				t.Errorf("answered %s: %+v, want %+v", tt.answer, got, tt.want)
			}
		}
	})
}

func TestInitialCommandWaitsForApproval(t *testing.T) {
	forEach(t, func(t *testing.T, b *harness) {
		b.judge.set(askCommand("bash"))
		x := b.background("echo began")
		person := b.judge.approver(t, "bash -c 'echo began'")
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if _, err := b.ctl.Hello(ctx); err != nil {
			t.Fatalf("init is blocked, too: %v", err)
		}
		answer(t, person, policy.Allow)
		if got := b.result(x); got.out != "began" {
			t.Errorf("%+v", got)
		}
		x = b.background("echo began")
		answer(t, b.judge.approver(t, "bash -c 'echo began'"), policy.Deny)
		if got := b.result(x); got.code != 126 || !strings.Contains(got.out, "was not started") {
			t.Errorf("denied: %+v", got)
		}
	})
}

func TestQuestionIsWithdrawnWhenProcessExits(t *testing.T) {
	forEach(t, func(t *testing.T, b *harness) {
		withdrawn := make(chan struct{})
		b.judge.set(askCommand("cat"))
		inner := b.judge
		b.stop()
		var once sync.Once
		w := judgeFunc(func(ctx context.Context, q policy.Question) policy.Decision {
			d := inner.Judge(ctx, q)
			if ctx.Err() != nil && strings.HasPrefix(q.Resource, "cat") {
				once.Do(func() { close(withdrawn) })
			}
			return d
		})
		b.watchWith(w)
		x := b.background("cat /etc/issue")
		b.judge.approver(t, "cat /etc/issue")
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		must(t, b.ctl.Signal(ctx, x, "KILL", true))
		select {
		case <-withdrawn:
		case <-time.After(30 * time.Second):
			t.Fatal("the question was not withdrawn")
		}
	})
}

type judgeFunc func(ctx context.Context, q policy.Question) policy.Decision

func (f judgeFunc) Judge(ctx context.Context, q policy.Question) policy.Decision { return f(ctx, q) }

func TestWaitingCallSurvivesDaemonRestart(t *testing.T) {
	forEach(t, func(t *testing.T, b *harness) {
		b.judge.set(askCommand("cat"))
		x := b.background("cat /etc/issue; echo then")
		b.judge.approver(t, "cat /etc/issue")
		b.stop() // the daemon exits,
		must(t, b.inst.Close())
		y := b.background("echo during >/tmp/during; cat /tmp/during") // a command blocks,
		time.Sleep(50 * time.Millisecond)
		b.judge.mu.Lock()
		b.judge.answers = nil
		b.judge.mu.Unlock()
		inst, err := b.backend.Open(t.Context(), b.plan) // Now another daemon opens the jail.
		must(t, err)
		b.inst = inst
		t.Cleanup(func() { inst.Close() })
		b.watch()
		t.Cleanup(b.stop)
		answer(t, b.judge.approver(t, "cat /etc/issue"), policy.Allow)
		answer(t, b.judge.approver(t, "cat /tmp/during"), policy.Allow)
		if got := b.result(x); got.out != "a small tree for tests\nthen" {
			t.Errorf("%+v", got)
		}
		if got := b.result(y); got.out != "during" {
			t.Errorf("%+v", got)
		}
	})
}

func TestFrozenJailIsJudgedOnce(t *testing.T) {
	forEach(t, func(t *testing.T, b *harness) {
		if why, ok := b.backend.Lacks()["freeze"]; ok {
			t.Skip(why)
		}
		b.judge.set(askCommand("cat"))
		x := b.background("cat /etc/issue")
		person := b.judge.approver(t, "cat /etc/issue")
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		for range 5 {
			must(t, b.inst.Freeze(ctx))
			must(t, b.inst.Thaw(ctx))
		}
		must(t, b.inst.Freeze(ctx))
		answer(t, person, policy.Allow) // while it is frozen
		must(t, b.inst.Thaw(ctx))
		if got := b.result(x); got.out != "a small tree for tests" {
			t.Errorf("%+v", got)
		}
		if n := strings.Count(strings.Join(b.judge.questions(policy.ActionRun), "\n"), "cat /etc/issue"); n != 2 { // bash's, and its own
			t.Errorf("asked %d times: %q", n, b.judge.questions(policy.ActionRun))
		}
	})
}

// A frozen thread cannot be detached from its tracer, so Watch must not wait for it.
func TestWatchEndsWhileJailIsFrozen(t *testing.T) {
	forEach(t, func(t *testing.T, b *harness) {
		if why, ok := b.backend.Lacks()["freeze"]; ok {
			t.Skip(why)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		b.judge.set(askCommand("cat"))
		x := b.background("cat /etc/issue")
		b.judge.approver(t, "cat /etc/issue")
		must(t, b.inst.Freeze(ctx))
		for range 2 { // the first Watch receives the call, the second restarts it
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				b.stop()
			}()
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				t.Error("Watch does not end while the jail is frozen")
				must(t, b.inst.Thaw(ctx))
				<-ended
			}
			b.watch()
		}
		must(t, b.inst.Thaw(ctx))
		answer(t, b.judge.approver(t, "cat /etc/issue"), policy.Allow)
		if got := b.result(x); got.out != "a small tree for tests" {
			t.Errorf("%+v", got)
		}
	})
}

func TestConcurrentCalls(t *testing.T) {
	forEach(t, func(t *testing.T, b *harness) {
		fds := func() int {
			e, err := os.ReadDir("/proc/self/fd")
			must(t, err)
			return len(e)
		}
		b.mustRun("true")
		before := fds()
		out := b.mustRun("mkdir -p /work; for i in $(seq 200); do (cat /etc/issue >/work/$i; cat /work/$i) & done; wait")
		if n := strings.Count(out, "a small tree"); n != 200 {
			t.Errorf("%d of 200 ran", n)
		}
		eventually(t, "descriptors are closed", func() bool { return fds() <= before })
		if lies := b.mismatches(); len(lies) > 0 {
			t.Errorf("unexpected mismatches: %+v", lies)
		}
	})
}

func TestSwappedNameIsDetected(t *testing.T) {
	forEach(t, func(t *testing.T, b *harness) {
		b.mustRun("mkdir -p /work /kept; echo kept >/kept/file; cp /kept/file /work/file")

		b.mustRun("cp /usr/bin/ls /usr/bin/tac")
		b.judge.set(denyCommand("cat"))
		b.sh("attack race-exec /usr/bin/tac /usr/bin/cat 40 </etc/issue")
		ran := 0
		for _, l := range b.mismatches() {
			if strings.Contains(l.Observed.Attributes["exe"], "/cat") {
				ran++
			}
		}
		t.Logf("%d program mismatches", ran)

		b.judge.set(denyEdit("/kept"))
		b.sh("attack race-open /work/file /kept/file 60")
		opened := len(b.mismatches()) - ran
		b.judge.set(nil)
		kept := b.mustRun("cat /kept/file")
		t.Logf("%d file mismatches", opened)
		if kept != "kept" {
			t.Errorf("the protected file contains %q; %d mismatches were reported", kept, opened)
		}

		before := len(b.mismatches())
		b.judge.set(denyEdit("/kept"))
		b.sh("attack race-unlink /work/file /kept/file 60")
		b.judge.set(nil)
		if gone := b.sh("test -e /kept/file").code != 0; gone && len(b.mismatches()) == before {
			t.Error("the protected file was removed without a mismatch")
		}
	})
}

// inNetns runs f in the network namespace of the jail.
func (b *harness) inNetns(f func() error) {
	b.t.Helper()
	ns, err := os.Open("/proc/" + strconv.Itoa(b.inst.PID()) + "/ns/net")
	must(b.t, err)
	defer ns.Close()
	must(b.t, thread.Alone(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	}))
}

func TestConnectionIsJudgedByAddress(t *testing.T) {
	forEach(t, func(t *testing.T, b *harness) {
		var tcp net.Listener
		var udp net.PacketConn
		b.inNetns(func() (err error) {
			if tcp, err = net.Listen("tcp", "127.0.0.1:7001"); err == nil {
				udp, err = net.ListenPacket("udp", "127.0.0.1:7002")
			}
			return err
		})
		defer tcp.Close()
		defer udp.Close()
		go func() {
			for {
				c, err := tcp.Accept()
				if err != nil {
					return
				}
				c.Close()
			}
		}()
		attempts := map[string]string{
			"tcp":      "attack connect tcp 127.0.0.1:7001",
			"tcp6":     "attack connect tcp [::ffff:127.0.0.1]:7001",
			"bash":     "exec 3<>/dev/tcp/127.0.0.1/7001",
			"python":   `python3 -S -c 'import _socket; s = _socket.socket(2, 1, 0); s.connect(("127.0.0.1", 7001))'`,
			"udp":      "attack connect udp 127.0.0.1:7002",
			"sendto":   "attack sendto 127.0.0.1:7002",
			"sendmmsg": "attack sendmmsg 127.0.0.1:7002",
		}
		for way, script := range attempts {
			t.Run(way, func(t *testing.T) {
				b.judge.set(nil)
				if r := b.sh(script); r.code != 0 || way == "sendmmsg" && r.out != "2 8 8" {
					t.Fatalf("allowed, but got %+v", r)
				}
				if got := fmt.Sprint(b.judge.questions(policy.ActionConnect)); !strings.Contains(got, "127.0.0.1:700") {
					t.Errorf("judged connections: %s, want the address", got)
				}
				b.judge.set(func(q policy.Question) policy.Effect {
					if q.Action == policy.ActionConnect && q.Attributes["host"] == "127.0.0.1" {
						return policy.Deny
					}
					return policy.Allow
				})
				if r := b.sh(script); r.code == 0 || !strings.Contains(strings.ToLower(r.out), "operation not permitted") {
					t.Errorf("denied, but got %+v", r)
				}
			})
		}
		b.judge.set(nil)
		if r := b.sh("attack connect tcp 127.0.0.1:7009"); r.code == 0 || !strings.Contains(r.out, "refused") {
			t.Errorf("connect without a listener: got %+v, want refused", r)
		}
	})
}

func TestGVisorReportsNoEnforcement(t *testing.T) {
	b := &harness{t: t, dir: t.TempDir(), prefix: "glasshouse-enforce-none"}
	if why := b.daemon("runsc").Lacks()["enforcement"]; why == "" {
		t.Error("runsc does not report missing enforcement")
	}
}

var (
	_ = jail.Isolated
	_ = enforce.Watch
)
