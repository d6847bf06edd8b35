package backendtest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// kept lists process state by the name of the function in probe that sets it up and checks it. All
// of it must exist in the source jail after a Dump, and in a restored jail.
var kept = []string{
	"identity", "mounts", "memory", "threads", "children", "zombie", "stopped", "session", "pidfd",
	"files", "deleted", "locks", "fifo", "inotify", "epoll", "timers", "sleep",
	"pipe", "unix", "unix-paths", "terminal", "shared", "memfd", "sysv",
	"listener", "loopback", "udp", "netlink", "wiped",
}

// Kept returns the kinds of process state for which the clause Checkpoint/Keeps has a clause.
func Kept() []string {
	return append(slices.Clone(kept), "random-numbers", "identity-of-a-user", "in-a-workspace", "in-mounts", "files-in-memory")
}

func (s *suite) keeps(t *testing.T) {
	for _, name := range kept {
		s.clause(t, name, func(t *testing.T) {
			b := s.newBox(t)
			s.keep(t, b, name, "probe keep "+name)
		})
	}
	s.clause(t, "random-numbers", func(t *testing.T) {
		b := s.newBox(t)
		x := b.hasKept(t, "random", "probe keep random")
		img := b.snapshot(t)
		drawn := map[string]string{}
		draws := func(name string, b *box, where string) {
			t.Helper()
			b.sh(t, "echo "+where+" > /tmp/keep/random.go")
			if st, err := b.ctl.Wait(deadline(t, time.Minute), x); err != nil || st.Code != 0 {
				t.Fatalf("%s ended with code %d, %v", name, st.Code, err)
			}
			got := b.sh(t, "cat /tmp/keep/random.drawn")
			b.kill(t)
			if other, again := drawn[got]; again || len(got) != 64 {
				t.Errorf("%s drew %q, want 64 digits other than those of %s", name, got, other)
			}
			drawn[got] = name
		}
		for _, name := range []string{"copy 1", "copy 2", "copy 3"} {
			c := s.restore(t, img)
			draws(name, c, "copy")
		}
		draws("the source", b, "source")
	})
	s.clause(t, "identity-of-a-user", func(t *testing.T) {
		b := s.newBox(t)
		s.keep(t, b, "identity", "exec probe as 1000 probe keep identity")
	})
	s.clause(t, "in-a-workspace", func(t *testing.T) {
		source := shortTempDir(t)
		put(t, filepath.Join(source, "a.txt"), "original\n")
		before := fingerprint(t, source)
		b := s.newBox(t, func(p *jail.Plan) { p.Workspace = &jail.Workspace{Source: source, Target: "/work/project"} })
		b.sh(t, "cd /work/project; echo changed > a.txt; mkdir sub; echo new > sub/b.txt")
		x := b.start(t, "exec 5> open.txt; cd /work/project/sub; exec 6<> c.txt; echo one >&6; : > /tmp/ready; until test -e /tmp/go; do sleep 0.05; done; echo two >&6; cat /work/project/a.txt b.txt c.txt > /tmp/said; pwd >> /tmp/said")
		eventually(t, "the script is ready", func() bool { return b.try(t, "test -e /tmp/ready").status.Code == 0 })
		copied := s.restore(t, b.snapshot(t))
		for _, b := range []*box{copied, b} {
			b.sh(t, ": > /tmp/go")
			if _, err := b.ctl.Wait(deadline(t, 30*time.Second), x); err != nil {
				t.Fatal(err)
			}
			if got, want := b.sh(t, "cat /tmp/said"), "changed\nnew\none\ntwo\n/work/project/sub"; got != want {
				t.Errorf("the workspace is %q, want %q", got, want)
			}
			b.kill(t)
		}
		if after := fingerprint(t, source); after != before {
			t.Errorf("the host's files have changed:\n%s\nwere\n%s", after, before)
		}
	})
	s.clause(t, "in-mounts", func(t *testing.T) {
		s.lacks(t, "mounts")
		dir := shortTempDir(t)
		put(t, filepath.Join(dir, "in/data"), "of the host\n")
		put(t, filepath.Join(dir, "out/data"), "of the host\n")
		_, readOnly := s.backend.Lacks()["writable_mounts"]
		b := s.newBox(t, func(p *jail.Plan) {
			p.Mounts = []jail.Mount{{Source: filepath.Join(dir, "in"), Target: "/mnt/in"}}
			if !readOnly {
				p.Mounts = append(p.Mounts, jail.Mount{Source: filepath.Join(dir, "out"), Target: "/mnt/out", Write: true})
			}
		})
		b.start(t, "exec 5< /mnt/in/data; mkdir -p /mnt/out; exec 6>> /mnt/out/data; : > /tmp/ready; until test -e /tmp/go; do sleep 0.05; done; cat <&5 > /tmp/said; echo more >&6; : > /tmp/done")
		eventually(t, "the script is ready", func() bool { return b.try(t, "test -e /tmp/ready").status.Code == 0 })
		copied := s.restore(t, b.snapshot(t))
		b.kill(t)
		copied.sh(t, ": > /tmp/go; until test -e /tmp/done; do sleep 0.05; done")
		if got := copied.sh(t, "cat /tmp/said"); got != "of the host" {
			t.Errorf("open file in a mount = %q", got)
		}
		if r := copied.try(t, "echo x > /mnt/in/new"); r.status.Code == 0 {
			t.Error("a read-only mount can be written after Restore")
		}
		if got, err := os.ReadFile(filepath.Join(dir, "out/data")); !readOnly && string(got) != "of the host\nmore\n" {
			t.Errorf("file written by the copy = %q, %v", got, err)
		}
		copied.kill(t)
	})
	s.clause(t, "files-in-memory", func(t *testing.T) {
		b := s.newBox(t)
		b.sh(t, `cd /dev/shm; mkdir -m 750 dir; echo one > dir/file; chmod 604 dir/file; chown 1000:1000 dir/file; ln -s dir/file link; ln dir/file again; mkfifo -m 622 fifo; touch -d @1000000000 old; mkdir /dev/extra; echo two > /dev/extra/file`)
		look := `cd /dev; stat -c '%n %F %a %u:%g %h %s' shm/dir shm/dir/file shm/again shm/fifo shm/old extra extra/file; stat -c %Y shm/old; readlink shm/link; cat shm/link extra/file; test shm/again -ef shm/dir/file && echo same; ls -A shm | sort`
		want := b.sh(t, look)
		copied := s.restore(t, b.snapshot(t))
		if got := copied.sh(t, look); got != want {
			t.Errorf("files in memory are\n%s\nwant\n%s", got, want)
		}
		if got := b.sh(t, look); got != want {
			t.Errorf("files in memory changed to\n%s\nwant\n%s", got, want)
		}
	})
}

// rare lists process state that a backend need not keep. If it does not, it must refuse the dump
// before it changes anything, and report a remedy and whether the obstacle is temporary.
var rare = []string{"semaphore", "traced", "backlog"}

func (s *suite) keepsOrRefuses(t *testing.T) {
	for _, name := range rare {
		s.clause(t, name, func(t *testing.T) {
			cp, b := s.checkpointer(t), s.newBox(t)
			x := b.hasKept(t, name, "probe keep "+name)
			b.freeze(t)
			img := s.newImage(t, b.plan)
			err := cp.Dumpable(t.Context(), b.plan, b.inst)
			if err == nil {
				err = cp.Dump(deadline(t, time.Minute), b.plan, b.inst, img.dir)
			}
			if err == nil {
				err = copyLayer(deadline(t, time.Minute), cp, b.plan, img.layer)
				if err != nil {
					t.Fatalf("copy the layer: %v", err)
				}
				s.restore(t, img).looks(t, "copy", name, x)
			} else if kind := fault.KindOf(err); kind != fault.Unsupported && kind != fault.Unavailable || fault.RemedyOf(err) == "" {
				t.Errorf("refused with %v, want unsupported or unavailable and a remedy", err)
			}
			t.Logf("%v (remedy: %s)", err, fault.RemedyOf(err))
			b.letGo(t)
			b.looks(t, "source", name, x)
		})
	}
}

// keep runs a script that ends in a keeper, dumps the jail, and has both the jail and its copies
// check the state. The first copy is checked while the source jail exists, a second one after
// its removal.
func (s *suite) keep(t *testing.T, b *box, name, script string) {
	t.Helper()
	x := b.hasKept(t, name, script)
	img := b.snapshot(t)
	s.restore(t, img).looks(t, "copy", name, x)
	b.looks(t, "source", name, x)
	if err := s.checkpointer(t).CleanAndRemoveLayer(t.Context(), b.plan); err != nil {
		t.Fatalf("Shed: %v", err)
	}
	s.restore(t, img).looks(t, "copy", name, x)
}

// hasKept starts a keeper and waits until it has set up its state.
func (b *box) hasKept(t *testing.T, name, script string) id.Exec {
	t.Helper()
	b.sh(t, "mkdir -p -m 777 /tmp/keep; chmod 777 /tmp/keep")
	x := b.start(t, script+" 2> /tmp/keep/stderr")
	eventually(t, "the probe holds "+name, func() bool {
		if st, err := b.ctl.ExecStatus(t.Context(), x); err != nil || st.Ended != nil {
			t.Fatalf("the probe cannot set up the state: %+v, %v: %s", st, err, b.sh(t, "cat /tmp/keep/stderr"))
		}
		return b.try(t, "test -e /tmp/keep/"+name+".held").status.Code == 0
	})
	return x
}

// looks makes the keeper check its state, and then ends the jail.
func (b *box) looks(t *testing.T, where, name string, x id.Exec) {
	t.Helper()
	b.sh(t, "echo "+where+" > /tmp/keep/"+name+".go")
	st, err := b.ctl.Wait(deadline(t, 60*time.Second), x)
	if err != nil || st.Code != 0 {
		t.Errorf("in the %s: code %d, %v: %s", where, st.Code, err, b.sh(t, "cat /tmp/keep/stderr"))
	}
	b.kill(t)
}

// counts starts a program that writes an increasing counter to a file of the host.
func (s *suite) counts(t *testing.T) (b *box, file string) {
	t.Helper()
	s.lacks(t, "writable_mounts")
	dir := shortTempDir(t)
	b = s.newBox(t, func(p *jail.Plan) { p.Mounts = []jail.Mount{{Source: dir, Target: "/mnt/count", Write: true}} })
	b.start(t, "exec probe part counter /mnt/count/n")
	file = filepath.Join(dir, "n")
	moves(t, file)
	return b, file
}

func countIn(file string) string {
	b, _ := os.ReadFile(file)
	return string(b)
}

// moves waits until the counter increases.
func moves(t *testing.T, file string) {
	t.Helper()
	at := countIn(file)
	eventually(t, "the counter increases", func() bool { return countIn(file) > at })
}

// stands checks that the counter in file does not change.
func stands(t *testing.T, file, at string) {
	t.Helper()
	for range 10 {
		if now := countIn(file); now != at {
			t.Errorf("counter = %q, want %q: a process has run", now, at)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (s *suite) dumpLeavesFrozenAndUnharmed(t *testing.T) {
	b, file := s.counts(t)
	for range 3 {
		b.freeze(t)
		at := countIn(file)
		img := b.take(t)
		stands(t, file, at)
		if err := s.checkpointer(t).Dumpable(t.Context(), b.plan, b.inst); err != nil {
			t.Errorf("Dumpable of a frozen jail: %v", err)
		}
		private(t, img)
		b.letGo(t)
		moves(t, file)
		if _, err := b.ctl.WaitReady(deadline(t, 30*time.Second)); err != nil {
			t.Errorf("init after a Dump: %v", err)
		}
	}
	if got := b.sh(t, "echo fine"); got != "fine" {
		t.Errorf("after three dumps the jail printed %q", got)
	}
	b.kill(t)
}

// private checks that only root can read the images, by the mode of the directory or of its
// parents.
func private(t *testing.T, img *image) {
	t.Helper()
	st, err := os.Stat(img.dir)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm()&0o077 != 0 {
		t.Errorf("mode of the images' directory = %v", st.Mode())
	}
}

func (s *suite) restoreIsFrozenUntilThawed(t *testing.T) {
	b, file := s.counts(t)
	b.freeze(t)
	at := countIn(file)
	img := b.take(t)
	b.kill(t)
	before := fingerprint(t, img.dir)

	dir := shortTempDir(t)
	theirs := filepath.Join(dir, "n")
	put(t, theirs, at)
	copied := s.frozen(t, img, img.newPlan(t, s, func(p *jail.Plan) {
		p.Mounts = []jail.Mount{{Source: dir, Target: "/mnt/count", Write: true}}
	}))
	stands(t, theirs, at)
	if copied.inst.PID() == b.inst.PID() || copied.inst.Control() == b.inst.Control() {
		t.Errorf("the copy is pid %d at %s, as its source was", copied.inst.PID(), copied.inst.Control())
	}
	again, err := s.open(t).Open(t.Context(), copied.plan)
	if err != nil {
		t.Fatalf("Open of a frozen copy: %v", err)
	}
	defer again.Close()
	if again.PID() != copied.inst.PID() {
		t.Errorf("Open finds pid %d, want %d", again.PID(), copied.inst.PID())
	}
	stands(t, theirs, at)
	ours, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	// The process that restored the jail is no longer in its cgroup.
	strangers := processes(func(dir string, _ []byte) bool {
		ns, err := os.Readlink(filepath.Join(dir, "ns/pid"))
		return err == nil && ns == ours && strings.Contains(string(readProc(dir, "cgroup")), string(copied.plan.ID))
	})
	if len(strangers) > 0 {
		t.Errorf("foreign processes in the copy's cgroup: %v", strangers)
	}
	copied.thaw(t)
	moves(t, theirs)
	if got, want := copied.sh(t, "uname -n"), copied.plan.Hostname; got != want {
		t.Errorf("the copy's host name is %q, want %q", got, want)
	}
	if countIn(file) != at {
		t.Error("the copy counts in its source's file")
	}
	copied.kill(t)
	if after := fingerprint(t, img.dir); after != before {
		t.Errorf("the images have changed:\n%s\nwere\n%s", after, before)
	}
}

// severalFromOne concurrently restores several jails from one image while their source runs.
func (s *suite) severalFromOne(t *testing.T) {
	b := s.newBox(t)
	x := b.hasKept(t, "pipe", "probe keep pipe")
	b.sh(t, "echo before > /root/file")
	tells := slices.Equal(b.idMaps(t), idMaps(b.plan)) // a jail with its own kernel has different id maps
	img := b.snapshot(t)
	b.sh(t, "echo after > /root/file")
	before := fingerprint(t, img.dir)

	const n = 6
	plans, insts, errs := make([]jail.Plan, n), make([]jail.Instance, n), make([]error, n)
	for i := range plans {
		plans[i] = img.newPlan(t, s)
	}
	done := make(chan int)
	cp := s.checkpointer(t)
	for i := range plans {
		go func() {
			insts[i], errs[i] = cp.Restore(deadline(t, time.Minute), plans[i], img.dir)
			done <- i
		}()
	}
	for range plans {
		<-done
	}
	for i, inst := range insts {
		if errs[i] != nil {
			t.Errorf("Restore: %v", errs[i])
			continue
		}
		t.Cleanup(func() { inst.Close() })
		c := &box{suite: s, plan: plans[i], inst: inst, ctl: control.Dial(inst.Control())}
		c.thaw(t)
		if got, want := c.sh(t, "uname -n; cat /root/file"), plans[i].Hostname+"\nbefore"; got != want {
			t.Errorf("host name and file of copy %d = %q, want %q", i, got, want)
		}
		if got, want := c.idMaps(t), idMaps(plans[i]); tells && !slices.Equal(got, want) {
			t.Errorf("copy %d has the ids %v, want %v", i, got, want)
		}
		c.sh(t, fmt.Sprintf("echo %d > /root/file", i))
		if uid := uidOf(t, inst.PID()); uid != plans[i].IDs.First {
			t.Errorf("copy %d runs as %d, want %d", i, uid, plans[i].IDs.First)
		}
		c.looks(t, "copy", "pipe", x)
	}
	if got := b.sh(t, "cat /root/file"); got != "after" {
		t.Errorf("the source's file is %q", got)
	}
	b.looks(t, "source", "pipe", x)
	if after := fingerprint(t, img.dir); after != before {
		t.Errorf("the images have changed:\n%s\nwere\n%s", after, before)
	}
}

// idMaps returns the id maps that the jail's own /proc shows.
func (b *box) idMaps(t *testing.T) []string {
	t.Helper()
	return strings.Fields(b.sh(t, "cat /proc/1/uid_map /proc/1/gid_map"))
}

func idMaps(p jail.Plan) []string {
	return strings.Fields(fmt.Sprintf("0 %[1]d %[2]d 0 %[1]d %[2]d", p.IDs.First, p.IDs.Count))
}

// copyOfACopy dumps and restores a restored jail, three times.
func (s *suite) copyOfACopy(t *testing.T) {
	b := s.newBox(t)
	x := b.hasKept(t, "terminal", "probe keep terminal")
	for i := range 3 {
		b.sh(t, fmt.Sprintf("echo %d >> /root/file; echo %d >> /dev/shm/file", i, i))
		img := b.snapshot(t)
		b.kill(t)
		b = s.restore(t, img)
	}
	if got, want := b.sh(t, "cat /root/file /dev/shm/file"), "0\n1\n2\n0\n1\n2"; got != want {
		t.Errorf("files of the third copy are %q, want %q", got, want)
	}
	b.looks(t, "copy", "terminal", x)
}

// commandsGoOn tests the state of init: a command whose output is being read, one that waits for
// input, and one on a terminal.
func (s *suite) commandsGoOn(t *testing.T) {
	b := s.newBox(t)
	talk := protocol.Exec{ID: id.NewExec(), Argv: []string{"/bin/bash", "-c", `read line; echo "got $line"; exit 5`}, Env: path, Stdin: true}
	shell := protocol.Exec{ID: id.NewExec(), Argv: []string{"/bin/bash", "-c", `echo ready; read line; echo "got $line"; stty size 2>/dev/null; exit 6`}, Env: path, Stdin: true, PTY: &protocol.Size{Cols: 99, Rows: 22}}
	for _, e := range []protocol.Exec{talk, shell} {
		if _, _, err := b.ctl.Exec(deadline(t, 30*time.Second), e, nil); err != nil {
			t.Fatal(err)
		}
	}
	finished := b.start(t, "echo done; exit 3")
	if _, err := b.ctl.Wait(deadline(t, 30*time.Second), finished); err != nil {
		t.Fatal(err)
	}
	copied := s.restore(t, b.snapshot(t))
	for _, b := range []*box{copied, b} {
		if st, err := b.ctl.ExecStatus(t.Context(), finished); err != nil || st.Code != 3 {
			t.Errorf("status of the finished command = %+v, %v", st, err)
		}
		for e, code := range map[*protocol.Exec]int{&talk: 5, &shell: 6} {
			in, err := b.ctl.Stdin(deadline(t, 30*time.Second), e.ID)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(in, "word\n"); err != nil {
				t.Fatal(err)
			}
			st, err := b.ctl.Wait(deadline(t, 30*time.Second), e.ID)
			if err != nil || st.Code != code {
				t.Errorf("%q ended with %+v, %v, want code %d", e.Argv, st, err, code)
			}
			stream, err := b.ctl.Attach(deadline(t, 30*time.Second), e.ID, control.AttachOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var output strings.Builder
			for {
				chunk, err := stream.Next()
				if err != nil {
					break
				}
				output.Write(chunk.Data)
			}
			stream.Close()
			in.Close()
			if !strings.Contains(output.String(), "got word") {
				t.Errorf("%q said %q", e.Argv, output.String())
			}
		}
		b.kill(t)
	}
}

// outward tests a connection to a peer outside the jail. The peer must not notice the dump.
func (s *suite) outward(t *testing.T) {
	s.lacks(t, "network")
	peer := newPeer(t)
	b := s.newBox(t, func(p *jail.Plan) { p.Network = jail.Full })
	s.keep(t, b, "outward", "probe keep outward "+peer)
}

// newPeer starts a server that echoes lines, in a network namespace behind the host, and returns
// its address.
func newPeer(t *testing.T) string {
	t.Helper()
	const host, peer = "198.18.77.1/30", "198.18.77.2/30" // from the benchmarking range (RFC 2544)
	link := netlink.NewVeth(netlink.NewLinkAttrs())
	link.Name, link.PeerName = fmt.Sprintf("ghp%d", os.Getpid()), "eth0"
	made := make(chan error)
	var l net.Listener
	up := func(name, addr string) error {
		at, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr(addr)
		if err != nil {
			return err
		}
		return errors.Join(netlink.AddrAdd(at, a), netlink.LinkSetUp(at))
	}
	outside, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer outside.Close()
	var own *os.File // keeps the namespace, and with it the link, until the link is removed
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends in its namespace
		made <- func() (err error) {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			own, err = os.Open("/proc/thread-self/ns/net")
			if err != nil {
				return err
			}
			if err := unix.Setns(int(outside.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
			link.PeerNamespace = netlink.NsFd(own.Fd())
			if err := errors.Join(netlink.LinkAdd(link), up(link.Name, host), unix.Setns(int(own.Fd()), unix.CLONE_NEWNET)); err != nil {
				return err
			}
			if err := up("eth0", peer); err != nil {
				return err
			}
			l, err = net.Listen("tcp", "0.0.0.0:7100")
			return err
		}()
	}()
	err = <-made
	t.Cleanup(func() {
		if err := netlink.LinkDel(link); err != nil {
			t.Errorf("remove the peer's link: %v", err)
		}
		own.Close()
	})
	if err != nil {
		t.Fatalf("create a network for the peer: %v", err)
	}
	var talks sync.WaitGroup
	talks.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			talks.Go(func() {
				defer c.Close()
				io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); talks.Wait() })
	addr, _, _ := strings.Cut(peer, "/")
	return addr + ":7100"
}
