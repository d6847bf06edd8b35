package backendtest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/protocol"
)

// attacks are typical escape attempts of an agent with a root shell in its jail. Attacks that
// kill the jail come last.
func (s *suite) attacks(t *testing.T) {
	b := s.newBox(t)
	for _, a := range []struct {
		name   string
		attack func(t *testing.T, b *box)
	}{
		{"read-files-of-the-host", readFilesOfTheHost},
		{"write-kernel-settings", writeKernelSettings},
		{"open-devices", openDevices},
		{"setuid-programs", setuidPrograms},
		{"capabilities", capabilities},
		{"processes-of-the-host", processesOfTheHost},
		{"sockets-of-the-host", socketsOfTheHost},
		{"escape-by-cgroup", escapeByCgroup},
		{"reach-init", reachInit},
		{"stop-init", stopInit},
		{"signal-init", signalInit},
		{"replace-the-control-socket", replaceTheControlSocket},
	} {
		s.clause(t, a.name, func(t *testing.T) { a.attack(t, s.living(t, &b)) })
	}
	s.forbiddenCalls(t, s.living(t, &b))
	s.clause(t, "links-before-a-restart", s.linksBeforeARestart)
	s.living(t, &b).kill(t)
}

// living returns a jail to attack: the current one, or a new one if the last attack killed it.
func (s *suite) living(t *testing.T, b **box) *box {
	t.Helper()
	select {
	case <-(*b).inst.Done():
		*b = s.newBox(t)
	default:
	}
	return *b
}

// forbiddenCalls runs one clause for each system call that must be refused.
func (s *suite) forbiddenCalls(t *testing.T, b *box) {
	out := b.sh(t, "probe calls")
	n := 0
	for line := range strings.Lines(out) {
		name, answer, _ := strings.Cut(strings.TrimSpace(line), "=")
		n++
		s.clause(t, name, func(t *testing.T) {
			if errno := atoi(t, answer); errno == 0 {
				t.Errorf("the call is allowed")
			}
		})
	}
	if n < 40 {
		t.Errorf("probe made only %d calls:\n%s", n, out)
	}
}

func readFilesOfTheHost(t *testing.T, b *box) {
	canary := filepath.Join(shortTempDir(t), "canary-"+string(id.NewExec()))
	put(t, canary, "the host's secret\n")
	roots := []string{
		"", "/..", "/../../../../../..", "/proc/1/root", "/proc/self/root", "/proc/thread-self/root", "/proc/1/cwd", "/proc/self/cwd/../../..",
		"/.glasshouse/..", "/.glasshouse/../../..", "/oldroot", "/.oldroot", "/newroot/..", "/dev/fd/../..", "/proc/1/root/..", "/sys/../..",
	}
	for _, root := range roots {
		for _, file := range []string{canary, "/etc/shadow"} {
			r := b.try(t, "cat "+root+file)
			if r.status.Code == 0 && r.stdout != "" {
				t.Errorf("cat %s%s reads %q", root, file, r.stdout)
			}
		}
	}
	r := b.try(t, fmt.Sprintf(`ln -s %[1]s /tmp/link; cat /tmp/link; ln %[1]s /tmp/hard; for p in /proc/[0-9]*; do cat $p/root%[1]s $p/cwd/..%[1]s; for f in $p/fd/*; do cat $f/..%[1]s $f%[1]s; done; done 2> /dev/null`, canary))
	if strings.Contains(r.stdout, "secret") {
		t.Errorf("the host's file is read through a link: %q", r.stdout)
	}
	if got := b.sh(t, "find / -xdev -name 'canary-*' 2> /dev/null; true"); got != "" {
		t.Errorf("the host's file is found at %s", got)
	}
}

func writeKernelSettings(t *testing.T, b *box) {
	before := settings(t)
	for _, file := range []string{
		"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname", "/proc/sys/kernel/sysrq",
		"/proc/sys/kernel/yama/ptrace_scope", "/proc/sys/vm/drop_caches", "/proc/sys/vm/overcommit_memory", "/proc/sys/fs/binfmt_misc/register",
		"/proc/sys/net/ipv4/ip_forward", "/proc/sys/user/max_user_namespaces", "/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/proc/bus/pci/00/00.0",
		"/proc/kcore", "/proc/timer_list", "/proc/acpi/wakeup",
		"/sys/kernel/uevent_helper", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/power/state", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/release_agent",
		"/sys/class/net/lo/mtu", "/sys/block/vda/queue/scheduler", "/sys/module/kernel/parameters/panic", "/sys/firmware/efi/vars/del_var", "/sys/kernel/debug/x", "/sys/new",
	} {
		// A file that is masked by /dev/null accepts writes without effect.
		if r := b.try(t, fmt.Sprintf("test ! -c %[1]s && { echo 1 > %[1]s; } 2>&1", file)); r.status.Code == 0 {
			t.Errorf("%s can be written", file)
		}
	}
	if r := b.try(t, `find /proc/sys /sys -xdev -type f -writable 2> /dev/null | while read -r f; do (: >> $f) 2> /dev/null && echo $f; done | head`); r.stdout != "" {
		t.Errorf("root in the jail can open for writing:\n%s", r.stdout)
	}
	if after := settings(t); after != before {
		t.Errorf("the host's settings have changed:\n%s\nwere\n%s", after, before)
	}
}

// settings returns host settings that an attack would change.
func settings(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, file := range []string{"kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "vm/overcommit_memory", "net/ipv4/ip_forward", "user/max_user_namespaces"} {
		value, _ := os.ReadFile("/proc/sys/" + file)
		fmt.Fprintf(&b, "%s = %s", file, value)
	}
	return b.String()
}

func openDevices(t *testing.T, b *box) {
	out := b.sh(t, `for f in $(find /dev -type b -o -type c); do (: < $f) 2> /dev/null && echo $f; done; true`)
	harmless := map[string]bool{}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "pts/ptmx", "net/tun"} {
		harmless["/dev/"+name] = true
	}
	for f := range strings.FieldsSeq(out) {
		if !harmless[f] && !strings.HasPrefix(f, "/dev/pts/") {
			t.Errorf("%s can be opened", f)
		}
	}
	if r := b.try(t, "head -c 1 /proc/kcore"); r.status.Code == 0 && r.stdout != "" {
		t.Error("the kernel's memory can be read from /proc/kcore")
	}
}

// setuidPrograms runs a set-user-ID program of root as an ordinary user of the jail.
func setuidPrograms(t *testing.T, b *box) {
	b.sh(t, "cp /usr/bin/setuid-probe /tmp/setuid-probe; chmod 4755 /tmp/setuid-probe")
	for _, program := range []string{"/usr/bin/setuid-probe", "/tmp/setuid-probe"} {
		r := b.try(t, "probe as 1000 "+program)
		if r.status.Code != 0 {
			t.Skipf("this jail has one user: %v", r)
		}
		if !strings.Contains(r.stdout, "euid=1000\n") || !strings.Contains(r.stdout, "CapEff=0000000000000000\n") {
			t.Errorf("a setuid program run by a user got:\n%s", r.stdout)
		}
	}
}

// powerful are the capabilities, by number, that are dangerous even in a user namespace: they
// reach kernel code or the whole machine.
var powerful = map[int]string{
	12: "NET_ADMIN", 13: "NET_RAW", 16: "SYS_MODULE", 17: "SYS_RAWIO", 19: "SYS_PTRACE", 20: "SYS_PACCT", 21: "SYS_ADMIN", 22: "SYS_BOOT",
	23: "SYS_NICE", 24: "SYS_RESOURCE", 25: "SYS_TIME", 26: "SYS_TTY_CONFIG", 27: "MKNOD", 30: "AUDIT_CONTROL", 32: "MAC_OVERRIDE", 33: "MAC_ADMIN",
	34: "SYSLOG", 35: "WAKE_ALARM", 37: "AUDIT_READ", 38: "PERFMON", 39: "BPF", 40: "CHECKPOINT_RESTORE",
}

func capabilities(t *testing.T, b *box) {
	for line := range strings.Lines(b.sh(t, "probe powers")) {
		set, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if !strings.HasPrefix(set, "Cap") {
			continue
		}
		has, err := strconv.ParseUint(value, 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		for n, name := range powerful {
			if has&(1<<n) != 0 {
				t.Errorf("%s holds CAP_%s", set, name)
			}
		}
	}
}

func processesOfTheHost(t *testing.T, b *box) {
	victim := exec.Command("sleep", "300")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	defer victim.Wait()
	defer victim.Process.Kill()

	for _, script := range []string{
		fmt.Sprintf("kill -0 %d", victim.Process.Pid),
		fmt.Sprintf("cat /proc/%d/cmdline", os.Getpid()),
	} {
		if r := b.try(t, script); r.status.Code == 0 {
			t.Errorf("a process of the host is reachable: %s: %v", script, r)
		}
	}
	b.try(t, "probe kill-all")
	if err := victim.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("kill -9 -1 in the jail reached a process of the host: %v", err)
	}
	if got, want := b.sh(t, "echo alive"), "alive"; got != want {
		t.Errorf("after kill -9 -1 the jail printed %q, want %q", got, want)
	}
	if r := b.try(t, "kill -9 1; sleep 0.1; echo alive"); r.stdout != "alive\n" {
		t.Errorf("the jail's root killed its init: %v", r)
	}
}

func socketsOfTheHost(t *testing.T, b *box) {
	name := "glasshouse-" + string(b.plan.ID)
	abstract, err := net.Listen("unix", "@"+name)
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	file := filepath.Join(shortTempDir(t), "daemon.sock")
	daemon, err := net.Listen("unix", file)
	if err != nil {
		t.Fatal(err)
	}
	defer daemon.Close()
	if err := os.Chmod(file, 0o777); err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	_, port, _ := net.SplitHostPort(tcp.Addr().String())

	targets := []string{"unix @" + name, "unix " + file, "unix /proc/1/root" + file, "tcp 127.0.0.1:" + port, "tcp [::1]:" + port, "tcp 169.254.169.254:80", "tcp 192.0.2.1:80"}
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil {
			targets = append(targets, "tcp "+net.JoinHostPort(ip.IP.String(), port))
		}
	}
	for _, target := range targets {
		if r := b.try(t, "probe dial "+target); r.status.Code == 0 {
			t.Errorf("from an isolated jail, %s is reached", target)
		}
	}
}

func escapeByCgroup(t *testing.T, b *box) {
	r := b.try(t, `
for d in /sys/fs/cgroup /sys/fs/cgroup/*; do
	mkdir $d/escape && echo made $d/escape
	echo /bin/true > $d/release_agent && echo wrote $d/release_agent
	echo 1 > $d/notify_on_release && echo wrote $d/notify_on_release
	echo max > $d/memory.max && echo wrote $d/memory.max
	echo 1 > $d/cgroup.freeze && echo wrote $d/cgroup.freeze
done 2> /dev/null
mkdir /tmp/cg; mount -t cgroup -o memory none /tmp/cg && echo mounted cgroup; mount -t cgroup2 none /tmp/cg && echo mounted cgroup2
true`)
	if r.stdout != "" {
		t.Errorf("the jail reaches its cgroup's settings:\n%s", r.stdout)
	}
	if got := b.sh(t, "cat /proc/self/cgroup"); strings.Contains(got, string(b.plan.ID)) {
		t.Errorf("the jail sees its place among the host's cgroups: %q", got)
	}
}

// In reachInit, root in the jail tries to slow, starve, stop and change the jail's init. The daemon
// must still run commands and enforce their timeouts.
func reachInit(t *testing.T, b *box) {
	for line := range strings.Lines(b.try(t, "probe reach").stdout) {
		name, _, _ := strings.Cut(line, " ")
		if b.suite.opts.Runtime == "runsc" && unusedByGVisor[name] {
			continue
		}
		t.Errorf("root in the jail reached its init by %s", strings.TrimSpace(line))
	}
	initAnswers(t, b)
}

// unusedByGVisor are the calls whose values gVisor's kernel stores without using them
// (pkg/sentry/syscalls/linux/sys_sched.go, sys_task.go), and its /proc/1/ns, whose links are
// useless because setns is refused.
var unusedByGVisor = map[string]bool{
	"setpriority": true, "sched_setscheduler": true, "sched_setparam": true, "sched_setattr": true, "sched_setaffinity": true,
	"ioprio_set": true, "ioprio_set-user": true, "ioprio_set-group": true, "open-ns/net": true,
}

// In stopInit, root in the jail sends SIGSTOP to init with every possible call.
func stopInit(t *testing.T, b *box) {
	b.sh(t, "probe signal stop")
	initAnswers(t, b)
}

// In signalInit, root in the jail sends every signal to init.
func signalInit(t *testing.T, b *box) {
	b.start(t, "probe signal; probe signal")
	time.Sleep(200 * time.Millisecond)
	initAnswers(t, b)
}

// initAnswers checks that commands run and that their timeouts are enforced.
func initAnswers(t *testing.T, b *box) {
	t.Helper()
	begun := time.Now()
	if got, want := b.sh(t, "echo alive"), "alive"; got != want {
		t.Errorf("after the attempts on its init the jail printed %q, want %q", got, want)
	}
	r := b.exec(t, protocol.Exec{Argv: []string{"/bin/sleep", "60"}, Timeout: 500 * time.Millisecond})
	if !r.status.TimedOut {
		t.Errorf("a command with a time limit of 500 ms ended as %v, want a timeout", r)
	}
	if took, most := time.Since(begun), 40*time.Second; took > most {
		t.Errorf("two commands took %v after the attempts on init, want at most %v", took, most)
	}
}

// replaceTheControlSocket replaces init's control socket with links to a socket of the host. The
// daemon must not connect to that one.
func replaceTheControlSocket(t *testing.T, b *box) {
	file := filepath.Join(shortTempDir(t), "victim.sock")
	victim, err := net.Listen("unix", file)
	if err != nil {
		t.Fatal(err)
	}
	defer victim.Close()
	reached := make(chan struct{})
	go func() {
		if c, err := victim.Accept(); err == nil {
			c.Close()
			close(reached)
		}
	}()
	b.start(t, fmt.Sprintf("rm -f /.glasshouse/init.sock; ln -s %s /.glasshouse/init.sock", file))
	time.Sleep(200 * time.Millisecond)
	b.tryExec(t, protocol.Exec{Argv: []string{"/bin/true"}})
	select {
	case <-reached:
		t.Error("the daemon connected to a host socket instead of the jail's")
	case <-time.After(200 * time.Millisecond):
	}
	b.kill(t)
}

// linksBeforeARestart replaces files that a backend touches at the next start by links that lead
// out of the jail.
func (s *suite) linksBeforeARestart(t *testing.T) {
	outside := shortTempDir(t)
	if err := os.Chmod(outside, 0o777); err != nil {
		t.Fatal(err)
	}
	before := fingerprint(t, outside)
	p := s.newPlan(t, func(p *jail.Plan) {
		p.Workspace = &jail.Workspace{Source: shortTempDir(t), Target: "/work/project"}
	})
	b := s.create(t, p)
	b.try(t, fmt.Sprintf(`
cd /
rm -rf /.glasshouse/* /tmp /run /home /var
for d in tmp run home var; do ln -s %[1]s /$d; done
ln -sf %[1]s/hosts /etc/hosts; ln -sf %[1]s/resolv.conf /etc/resolv.conf; ln -sf %[1]s/hostname /etc/hostname
ln -s %[1]s /.glasshouse/init; ln -s %[1]s/init.sock /.glasshouse/init.sock
for up in /oldroot /newroot/../oldroot ../../../../..; do ln -s $up%[1]s /etc/$(echo $up | tr -d /); done
true`, outside))
	b.kill(t)
	b.inst.Close()
	if err := s.backend.Clean(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	inst, err := s.backend.Create(t.Context(), p)
	if err == nil {
		b = s.adopt(t, p, inst)
		b.try(t, "echo x > /etc/hosts")
		b.kill(t)
		inst.Close()
	}
	if err := s.backend.Clean(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if after := fingerprint(t, outside); after != before {
		t.Errorf("a directory of the host has changed:\n%s\nwas\n%s", after, before)
	}
}
