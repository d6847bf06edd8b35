package microvm_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/backend/microvm"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/guest"
	"glasshouse/observe/observetest"
)

// jailSocket is the environment variable that makes a process of this test run a program in the jail whose
// init has that socket.
const jailSocket = "GLASSHOUSE_MICROVM_TEST_SOCKET"

// work is the environment variable with the name of a work of package observetest.
const work = "GLASSHOUSE_OBSERVE_WORK"

func TestMain(m *testing.M) {
	if socket := os.Getenv(jailSocket); socket != "" {
		os.Exit(runInJail(socket))
	}
	observetest.Main(m)
}

func runInJail(socket string) int {
	e := protocol.Exec{ID: id.NewExec(), Argv: os.Args[1:], Env: []string{"PATH=/usr/bin:/bin", work + "=" + os.Getenv(work)}}
	stream, _, err := control.Dial(socket).Exec(context.Background(), e, &control.AttachOptions{Lossless: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer stream.Close()
	for {
		chunk, err := stream.Next()
		if err == io.EOF {
			return stream.Status().Code
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		os.Stdout.Write(chunk.Data)
	}
}

// A watched is a jail whose events are recorded. It implements observetest.Jail.
type watched struct {
	inst jail.Instance
	plan jail.Plan
}

// works returns a layer with the works of package observetest, which the tests share.
var works = sync.OnceValues(func() (string, error) {
	shared, err := sharedDir()
	if err != nil {
		return "", err
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return "", err
	}
	layer := filepath.Join(shared, "works-of-events")
	return layer, errors.Join(os.MkdirAll(filepath.Join(layer, "works"), 0o755), os.WriteFile(filepath.Join(layer, "works/work"), self, 0o755))
})

// observable returns the plan of a jail with the works of package observetest.
func (h *host) observable(t *testing.T, b *microvm.Backend) jail.Plan {
	t.Helper()
	layer, err := works()
	if err != nil {
		t.Fatal(err)
	}
	p := h.plan(t, b)
	p.Lower = append([]string{layer}, p.Lower...)
	return p
}

func (h *host) watched(t *testing.T, b *microvm.Backend) *watched {
	t.Helper()
	p := h.observable(t, b)
	i, err := b.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Close() })
	return &watched{i, p}
}

func (w *watched) Target(s event.Selection) observe.Target {
	info := w.inst.HostInfo()
	return observe.Target{Jail: w.plan.ID, Dir: w.plan.Dir, Guest: info.Guest, PID: w.inst.PID(), CgroupDir: info.CgroupDir, Selection: s, Events: info.Events}
}

func (w *watched) Command(argv ...string) *exec.Cmd {
	// The shell makes arguments that are not UTF-8, which init does not accept.
	script, args := "exec", []string{}
	for _, arg := range argv {
		if utf8.ValidString(arg) {
			args = append(args, arg)
			script += fmt.Sprintf(` "${%d}"`, len(args))
			continue
		}
		script += ` "$(printf '`
		for _, c := range []byte(arg) {
			script += fmt.Sprintf(`\%03o`, c)
		}
		script += `')"`
	}
	if len(args) < len(argv) {
		argv = append([]string{"sh", "-c", script, "sh"}, args...)
	}
	cmd := exec.Command(os.Args[0], argv...)
	cmd.Env = append(os.Environ(), jailSocket+"="+w.inst.Control())
	return cmd
}

func (w *watched) Work(name string, args ...string) *exec.Cmd {
	cmd := w.Command(append([]string{"/works/work"}, args...)...)
	cmd.Env = append(cmd.Env, work+"="+name)
	return cmd
}

// TestEventsContract runs the tests of sources in virtual machines.
func TestEventsContract(t *testing.T) {
	if !backendtest.Thorough {
		t.Skip("takes minutes with an emulated processor, and package observe/guest checks the same without machines: set GLASSHOUSE_TEST=all")
	}
	h := newHost(t)
	b := h.ready(t)
	observetest.Run(t, observetest.Suite{
		Open:   func(*testing.T) observe.Source { return guest.New(guest.Config{Dir: h.dir}) },
		Jail:   func(t *testing.T) observetest.Jail { return h.watched(t, b) },
		Pinned: true, // by the machine itself
		Slow:   true,
		Differs: map[string]string{
			"WhatGlasshouseDoesIsMarked": "a checkpoint of a machine executes nothing in its processes",
		},
	})
}

// record starts to record a jail, as a daemon does.
func record(t *testing.T, h *host, w *watched, sel event.Selection, log *observetest.Log) observe.Watch {
	t.Helper()
	watch, err := guest.New(guest.Config{Dir: h.dir}).Attach(t.Context(), w.Target(sel), log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { watch.Release() })
	return watch
}

func drain(t *testing.T, w observe.Watch) {
	t.Helper()
	if err := w.Drain(t.Context()); err != nil {
		t.Fatalf("Drain: %v", err)
	}
}

// calls returns the calls of the works. The shell makes the same call.
func calls(log *observetest.Log) []event.Event {
	return slices.DeleteFunc(log.Events(event.Syscall, "getppid"), func(e event.Event) bool { return e.Comm != "work" })
}

// onlyCalls selects the calls that a test counts.
var onlyCalls = event.Selection{Syscalls: "off", Allow: []string{"getppid"}, Files: "off"}

// TestEventsSurviveTheDaemon checks that while no daemon runs, each event is recorded or counted.
func TestEventsSurviveTheDaemon(t *testing.T) {
	backendtest.Repeats(t)
	const forks, made = 1000, 100_000
	h := newHost(t)
	w := h.watched(t, h.ready(t))
	log := &observetest.Log{}
	log.LimitWritten(60) // the daemon is killed before it has written the others
	first := record(t, h, w, onlyCalls, log)
	observetest.Output(t, w.Work("getppid", "100"))
	drain(t, first)
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	observetest.Output(t, w.Work("forks", strconv.Itoa(forks)))
	observetest.Output(t, w.Work("getppid", strconv.Itoa(made)))

	log = log.After()
	second := record(t, h, w, onlyCalls, log)
	drain(t, second)
	observetest.Output(t, w.Work("getppid", "10"))
	drain(t, second)
	recorded, lost := len(calls(log)), log.Lost(event.Syscall)
	t.Logf("%d calls recorded, %d missing", recorded, lost)
	if want := 100 + made + 10; int64(recorded)+lost != int64(want) || lost == 0 {
		t.Errorf("%d calls are recorded and %d are missing, want %d together, and some missing", recorded, lost, want)
	}
	parents := map[int32]int{}
	for _, e := range log.Events(event.Proc, event.OpFork) {
		if e.Flags&event.Thread == 0 {
			parents[e.PPID]++
		}
	}
	if most := slices.Max(slices.Collect(maps.Values(parents))); most != forks {
		t.Errorf("%d forks are recorded, want %d", most, forks)
	}
}

// TestEventsOfBranches checks that all events before a snapshot are in the log of the jail, and all later
// ones in that of the branch that made them.
func TestEventsOfBranches(t *testing.T) {
	backendtest.Repeats(t)
	h := newHost(t)
	b := h.ready(t)
	parent := &watched{plan: h.observable(t, b)}
	p := parent.plan
	var err error
	parent.inst, err = b.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	defer parent.inst.Close()
	log := &observetest.Log{}
	watch := record(t, h, parent, onlyCalls, log)
	begin(t, parent.inst, "while :; do sleep 0.05; done") // there are always events on their way
	observetest.Output(t, parent.Work("getppid", "1000"))
	freeze(t, parent.inst)
	drain(t, watch) // does not need the frozen machine
	if n := len(calls(log)); n != 1000 {
		t.Errorf("%d calls are recorded before the snapshot, want 1000", n)
	}
	before := log.Last()
	dir := t.TempDir()
	if err := b.Dump(t.Context(), p, parent.inst, dir); err != nil {
		t.Fatal(err)
	}
	layer := filepath.Join(dir, "layer.img")
	c, err := b.BeginCopy(t.Context(), p, layer)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Copy(t.Context()), c.Close()); err != nil {
		t.Fatal(err)
	}
	if log.Last() != before {
		t.Errorf("%d events were recorded while the machine was frozen", log.Last()-before)
	}
	for n := range 2 {
		branch := &watched{plan: h.plan(t, b)}
		branch.plan.Lower, branch.plan.Sealed = p.Lower, []string{layer}
		branch.inst, err = b.Restore(t.Context(), branch.plan, dir)
		if err != nil {
			t.Fatal(err)
		}
		defer branch.inst.Close()
		own := &observetest.Log{}
		w := record(t, h, branch, onlyCalls, own)
		if n == 1 { // the daemon ends before the branch runs
			if err := w.Release(); err != nil {
				t.Fatal(err)
			}
			w = record(t, h, branch, onlyCalls, own)
		}
		thawed := observe.Now()
		thaw(t, branch.inst)
		observetest.Output(t, branch.Work("getppid", "500"))
		drain(t, w)
		made := calls(own)
		if len(made) != 500 || own.Gaps() > 0 || made[0].NS < thawed {
			t.Errorf("%d calls and %d gaps are recorded in the branch, want 500 and none, all after the restore", len(made), own.Gaps())
		}
		if err := branch.inst.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		ends := 0
		for _, e := range own.Events(event.Proc, event.OpExit) {
			if e.PID == 1 && e.Flags&event.Thread == 0 {
				ends++
			}
		}
		if ends != 1 || own.Gaps() > 0 {
			t.Errorf("%d ends of init and %d gaps are recorded, want 1 and none", ends, own.Gaps())
		}
	}
	thaw(t, parent.inst)
	observetest.Output(t, parent.Work("getppid", "300"))
	drain(t, watch)
	if n := len(calls(log)); n != 1300 || log.Gaps() > 0 {
		t.Errorf("%d calls and %d gaps are recorded, want 1300 and none", n, log.Gaps())
	}

	// The machine is killed, so what its last events were is not known.
	if err := unix.Kill(parent.inst.PID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-parent.inst.Done()
	if err := watch.Close(); err != nil {
		t.Error(err)
	}
	if gaps := log.Events(event.Gap, ""); len(gaps) != 2 || gaps[0].Lost != -1 {
		t.Errorf("%d gaps are recorded, want one for calls and one for processes, of unknown size", len(gaps))
	}
}

// attacks on the observation, as root in the jail. Each command succeeds if the attack does.
var observerAttacks = []struct{ name, command string }{
	{"processes of the machine", "test $(ls -d /proc/[0-9]* | wc -l) -gt 20 || grep -l glasshouse-guest /proc/[0-9]*/comm"},
	{"kill process 1", "kill -9 1; sleep 0.2; ! kill -0 1"},
	{"memory of process 1", "head -c1 /proc/1/mem"},
	{"physical memory", "head -c1 /dev/mem || head -c1 /dev/kmem || head -c1 /proc/kcore || head -c1 /dev/port"},
	{"memory by a device node", "mknod /tmp/mem c 1 1 && head -c1 /tmp/mem"},
	{"port of the daemon", "ls /dev/vport* || ls /dev/virtio-ports/*"},
	{"port by a device node", "d=$(cat /sys/class/virtio-ports/*/dev) && mknod /tmp/port c ${d%:*} ${d#*:} && echo x > /tmp/port"},
	{"modules", "insmod /x || modprobe overlay || rmmod virtio_console"},
	{"tracefs", "mount -t tracefs none /mnt || echo 0 > /sys/kernel/tracing/tracing_on || ls /sys/kernel/tracing/events"},
	{"debugfs", "mount -t debugfs none /mnt || ls /sys/kernel/debug/tracing"},
	{"bpf file system", "mount -t bpf none /mnt || ls /sys/fs/bpf/*"},
	{"kernel settings", "echo 0 > /proc/sys/kernel/ftrace_enabled || echo '|/x' > /proc/sys/kernel/core_pattern || echo /x > /proc/sys/kernel/modprobe || " +
		"echo 0 > /proc/sys/kernel/perf_event_paranoid"},
	{"sysrq", "echo c > /proc/sysrq-trigger"},
	{"remounting", "mount -o remount,rw /sys || mount -o remount,rw /proc/sys || umount /proc"},
	{"leaving the cgroup", "mount -t cgroup2 none /mnt && echo $$ > /mnt/cgroup.procs || echo $$ > /sys/fs/cgroup/cgroup.procs"},
	{"init", "probe reach | grep ."},
	{"namespaces", "unshare -U true || unshare -m true || nsenter -t 1 -m -u true"},
	{"disks of the machine", "head -c1 /dev/vda || mknod /tmp/vda b 254 0 && head -c1 /tmp/vda"},
}

// observerCalls are attempts of probe that would stop or falsify the observation.
var observerCalls = []string{
	"bpf", "perf-event-open", "init-module", "finit-module", "delete-module", "kexec-load", "reboot", "keyctl", "add-key", "mknod-char", "setns",
	"clone-user", "unshare-mount", "settimeofday", "clock-settime", "iopl", "take-capabilities", "raw-socket", "vsock", "pivot-root", "open-by-handle-at",
}

// TestRootCannotStopTheObservers attacks the observation from a jail. All events are recorded nevertheless,
// those of the attacks too.
func TestRootCannotStopTheObservers(t *testing.T) {
	backendtest.Repeats(t)
	h := newHost(t)
	w := h.watched(t, h.ready(t))
	log := &observetest.Log{}
	watch := record(t, h, w, event.Selection{Syscalls: "off", Allow: []string{"getppid", "bpf"}, Files: "off"}, log)
	script := ""
	for _, a := range observerAttacks {
		script += fmt.Sprintf("if { %s; } > /tmp/out 2>&1; then echo '%s:'; cat /tmp/out; fi\n", a.command, a.name)
	}
	if got := output(t, w.inst, "sh", "-c", script); got != "" {
		t.Errorf("attacks have succeeded:\n%s", got)
	}
	answers := map[string]string{}
	for line := range strings.Lines(output(t, w.inst, "probe", "calls")) {
		name, answer, _ := strings.Cut(strings.TrimSpace(line), "=")
		answers[name] = answer
	}
	for _, name := range observerCalls {
		if answers[name] == "" || answers[name] == "0" {
			t.Errorf("the call %s = %q, want an error", name, answers[name])
		}
	}
	observetest.Output(t, w.Work("getppid", "1000"))
	drain(t, watch)
	if n := len(calls(log)); n != 1000 || log.Gaps() > 0 || watch.Status().Err != "" {
		t.Errorf("%d calls and %d gaps are recorded after the attacks, with error %q; want 1000 and none", n, log.Gaps(), watch.Status().Err)
	}
	denied := log.Events(event.Syscall, "bpf")
	if len(denied) == 0 || denied[0].Ret >= 0 {
		t.Errorf("%d attempts of bpf are recorded, want one that failed", len(denied))
	}
	if n := len(log.Events(event.Proc, event.OpExec)); n < len(observerAttacks) {
		t.Errorf("%d programs are recorded, want those of %d attacks", n, len(observerAttacks))
	}
}
