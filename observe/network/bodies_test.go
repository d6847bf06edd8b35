package network_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/network"
)

// another creates another instance of a jail: other processes in another cgroup and in the same
// network namespace.
func (j *jail) another() *jail {
	j.Helper()
	k := &jail{harness: j.harness, Target: j.Target, host: j.host, own: j.own, host6: j.host6, own6: j.own6, log: j.log}
	k.cmd = exec.Command("/proc/self/exe")
	k.cmd.Env = append(os.Environ(), actEnv+"=init")
	k.cmd.Stderr = os.Stderr
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS}
	if j.CgroupDir != "" {
		k.CgroupDir = j.CgroupDir + "-b"
		j.must(os.Mkdir(k.CgroupDir, 0o755))
		j.Cleanup(func() { j.must(removeCgroup(k.CgroupDir)) })
		f, err := os.Open(k.CgroupDir)
		j.must(err)
		defer f.Close()
		k.cmd.SysProcAttr.UseCgroupFD, k.cmd.SysProcAttr.CgroupFD = true, int(f.Fd())
	}
	var err error
	k.in, err = k.cmd.StdinPipe()
	j.must(err)
	out, err := k.cmd.StdoutPipe()
	j.must(err)
	k.out = json.NewDecoder(out)
	j.must(j.enter(k.cmd.Start))
	k.PID = k.cmd.Process.Pid
	j.Cleanup(func() { k.in.Close(); k.cmd.Process.Kill(); k.cmd.Wait() })
	return k
}

// to counts the recorded packets to or from a server, and the number of them without a process.
func (l *log) to(server string) (n, nobodys int) {
	for _, e := range l.all(isNet) {
		if e.Dst == server || e.Src == server {
			n++
			if e.PID == 0 {
				nobodys++
			}
		}
	}
	return n, nobodys
}

func TestMoveWithinNetwork(t *testing.T) {
	for _, pin := range []string{"", pins(t)} {
		h := newHarness(t, network.Config{Pin: pin})
		j := h.jail().attach()
		j.acquaint()
		server := j.echoOn(j.host)
		j.run("send", server, "100", "64")
		j.must(j.watch.Mute(true))
		k := j.another()
		moved, err := j.watch.(observe.Mover).Move(t.Context(), k.Target)
		if err != nil || !moved {
			t.Fatalf("Move: %v, %v", moved, err)
		}
		j.must(j.watch.Mute(false))
		j.in.Close()
		sender := k.run("send", server, "70", "64")
		k.start("echo", "127.0.0.1:0") // a socket of the new instance, which the hooks of the first cgroup do not observe
		j.drain()
		if n, nobodys := j.log.to(server); n != 340 || nobodys > 0 {
			t.Errorf("%d of 340 packets are recorded, %d without a process", n, nobodys)
		}
		all := j.log.all(func(e *event.Event) bool { return isNet(e) && (e.Dst == server || e.Src == server) })
		if last := all[len(all)-1]; int(last.PID) != sender.PID || last.Flags != 0 {
			t.Errorf("the last packet is recorded as %s, but process %d sent it", last.AppendJSON(nil), sender.PID)
		}
		if pin != "" {
			left, _ := filepath.Glob(filepath.Join(pin, "*", string(j.Jail)+"-*", "create*"))
			if len(left) != 1 {
				t.Errorf("pinned hooks: %q, want those of one cgroup", left)
			}
		}
		other := h.jail()
		if moved, err := j.watch.(observe.Mover).Move(t.Context(), other.Target); moved || err != nil {
			t.Errorf("Move to another network: %v, %v", moved, err)
		}
	}
}

// hooks returns how many programs for new sockets are attached to a cgroup.
func (j *jail) hooks(cgroup string) int {
	j.Helper()
	f, err := os.Open(cgroup)
	j.must(err)
	defer f.Close()
	found, err := link.QueryPrograms(link.QueryOptions{Target: int(f.Fd()), Attach: ebpf.AttachCGroupInetSockCreate})
	j.must(err)
	return len(found.Programs)
}

// failedMove moves a watch to k while the programs' map cannot be changed.
func (k *jail) failedMove(s *network.Source, w observe.Watch) {
	k.Helper()
	repair, err := network.BreakJails(s)
	k.must(err)
	moved, err := w.(observe.Mover).Move(k.Context(), k.Target)
	repair()
	if moved || err == nil {
		k.Fatalf("Move with a broken map = %v, %v, want an error", moved, err)
	}
}

func TestFailedMoveKeepsCgroup(t *testing.T) {
	for _, pin := range []string{"", pins(t)} {
		h := newHarness(t, network.Config{Pin: pin})
		j := h.jail().attach()
		if j.CgroupDir == "" {
			t.Skip("cgroup v2 is not mounted")
		}
		k := j.another()
		k.failedMove(h.source, j.watch)
		if first, second := j.hooks(j.CgroupDir), j.hooks(k.CgroupDir); first != 1 || second != 0 {
			t.Errorf("after a failed Move, %d hooks are at the first cgroup and %d at the second, want 1 and 0", first, second)
		}
		moved, err := j.watch.(observe.Mover).Move(t.Context(), k.Target)
		if err != nil || !moved {
			t.Fatalf("second Move: %v, %v", moved, err)
		}
		if first, second := j.hooks(j.CgroupDir), j.hooks(k.CgroupDir); first != 0 || second != 1 {
			t.Errorf("after the second Move, %d hooks are at the first cgroup and %d at the second, want 0 and 1", first, second)
		}
	}
}

func TestFailedMoveKeepsPinsOfEarlierDaemon(t *testing.T) {
	h := newHarness(t, network.Config{})
	pin := pins(t)
	j := h.jail()
	if j.CgroupDir == "" {
		t.Skip("cgroup v2 is not mounted")
	}
	j.daemon(pin).kill()
	s := network.New(network.Config{Pin: pin})
	l, err := openLog(j.Dir, j.Target)
	h.must(err)
	w, err := s.Attach(t.Context(), j.Target, l)
	h.must(err)
	hooks := func() []string {
		names, err := filepath.Glob(filepath.Join(pin, "*", string(j.Jail)+"-*", "create*"))
		h.must(err)
		return names
	}
	before := hooks()
	j.another().failedMove(s, w)
	after := hooks()
	h.must(errors.Join(w.Close(), l.Close(), s.Close()))
	if len(before) != 1 || !slices.Equal(before, after) {
		t.Errorf("pinned hooks: %q before and %q after a failed Move, want one that stays", before, after)
	}
}

func TestTwoNetworksAreRecordedOnce(t *testing.T) {
	for _, pin := range []string{"", pins(t)} {
		h := newHarness(t, network.Config{Pin: pin})
		j, k := h.jail(), h.jail()
		k.Jail, k.Dir, k.log = j.Jail, j.Dir, j.log
		j.Selection.Packets, k.Selection.Packets = 200, 200
		j.acquaint()
		k.acquaint()
		first, err := h.source.Attach(t.Context(), j.Target, j.log)
		h.must(err)
		here, there := j.echoOn(j.host), k.echoOn(k.host)
		j.run("send", here, "100", "64")
		k.attach()
		k.run("send", there, "70", "64")
		h.must(first.Close())
		k.run("send", there, "30", "64")
		k.drain()
		a, _ := j.log.to(here)
		b, _ := j.log.to(there)
		if a != 200 || b != 200 || len(j.log.all(isNet)) != 400 {
			t.Errorf("%d and %d packets are recorded, want 200 of each:\n%s", a, b, j.log)
		}
		capture, err := os.ReadFile(filepath.Join(j.Dir, "events", "packets.pcapng"))
		h.must(err)
		kept := 0
		for at := 0; at < len(capture); {
			kind, size := binary.LittleEndian.Uint32(capture[at:]), int(binary.LittleEndian.Uint32(capture[at+4:]))
			if size < 12 || size > len(capture)-at {
				t.Fatalf("invalid block of %d bytes at %d of %d", size, at, len(capture))
			}
			if at += size; kind == 6 {
				kept++
			}
		}
		if kept != 400 {
			t.Errorf("the bytes of %d packets are captured, want 400", kept)
		}
	}
}

// The slot of an ended watch may belong to another jail, and its memory is unmapped with the source.
func TestEndedWatchTouchesNothing(t *testing.T) {
	h := newHarness(t, network.Config{})
	s := network.New(network.Config{})
	j := h.jail()
	j.acquaint()
	server := j.echoOn(j.host)
	w, err := s.Attach(t.Context(), j.Target, j.log)
	h.must(err)
	j.run("send", server, "10", "64")
	h.must(w.Drain(t.Context()))
	before := w.Status()
	h.must(w.Close())
	h.must(w.Mute(true))
	h.must(s.Close())
	if after := w.Status(); after != before || before.Seen == 0 {
		t.Errorf("status before the end of the watch: %+v, after: %+v", before, after)
	}
}

func TestKilledDaemonWithTwoNetworksLosesNothing(t *testing.T) {
	h := newHarness(t, network.Config{})
	pin := pins(t)
	j, k := h.jail(), h.jail()
	k.Jail, k.Dir = j.Jail, j.Dir
	j.acquaint()
	k.acquaint()
	here, there := j.echoOn(j.host), k.echoOn(k.host)
	s := network.New(network.Config{Pin: pin})
	l, err := openLog(j.Dir, j.Target)
	h.must(err)
	_, err = s.Attach(t.Context(), j.Target, l)
	h.must(err)
	j.run("send", here, "50", "64")
	last, err := s.Attach(t.Context(), k.Target, l)
	h.must(err)
	h.must(last.Mute(true)) // no daemon remains to unmute it
	h.must(l.Close())
	h.must(s.Close()) // its watches are discarded
	j.run("send", here, "10", "64")
	k.run("send", there, "40", "64")

	k.finish(pin)
	a, b := 0, 0
	for _, e := range k.onDisk() {
		switch {
		case e.Type == event.Gap:
			t.Errorf("unexpected gap: %s", e.AppendJSON(nil))
		case e.Dst == here || e.Src == here:
			a++
		case e.Dst == there || e.Src == there:
			b++
		}
	}
	if a != 120 || b != 80 {
		t.Errorf("%d and %d packets are recorded, want 120 and 80", a, b)
	}
	if left, _ := filepath.Glob(filepath.Join(pin, "*")); len(left) > 0 {
		t.Errorf("pins were not removed: %q", left)
	}
}

func TestKilledDaemonDuringMove(t *testing.T) {
	h := newHarness(t, network.Config{})
	pin := pins(t)
	j := h.jail()
	j.acquaint()
	server := j.echoOn(j.host)
	d := j.daemon(pin)
	j.run("send", server, "50", "64")
	d.kill()
	k := j.another()
	j.in.Close()
	s := network.New(network.Config{Pin: pin})
	l, err := openLog(j.Dir, j.Target)
	h.must(err)
	w, err := s.Attach(t.Context(), k.Target, l)
	h.must(err)
	hooks, _ := filepath.Glob(filepath.Join(pin, "*", string(j.Jail)+"-*", "create*"))
	sender := k.run("send", server, "40", "64")
	h.must(errors.Join(w.Close(), l.Close(), s.Close()))
	if len(hooks) != 1 {
		t.Errorf("pinned hooks: %q, want those of one cgroup", hooks)
	}
	n, its := 0, 0
	for _, e := range j.onDisk() {
		if e.Dst == server || e.Src == server {
			n++
			if int(e.PID) == sender.PID {
				its++
			}
		}
	}
	if n != 180 || its < 80 {
		t.Errorf("%d of 180 packets are recorded, %d with a process of the new instance, want 80", n, its)
	}
}
