package network_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/eventlog"
	"glasshouse/observe/network"
)

// sink is an on-disk log as sources use it.
type sink struct{ *eventlog.Log }

func (s sink) Kept(since int64, of event.Type, each func(*event.Event)) error {
	c, err := s.Recent(since, of)
	if err != nil {
		return err
	}
	defer c.Close()
	var e event.Event
	for {
		if _, err := c.Next(&e); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		each(&e)
	}
}

func openLog(dir string, t observe.Target) (sink, error) {
	l := eventlog.New(eventlog.Config{Dir: filepath.Join(dir, "events"), Jail: t.Jail})
	return sink{l}, l.Open()
}

// daemonAct PIN TARGET: watches a jail until its input ends, then releases it.
func daemonAct(args []string) error {
	var t observe.Target
	if err := json.Unmarshal([]byte(args[1]), &t); err != nil {
		return err
	}
	l, err := openLog(t.Dir, t)
	if err != nil {
		return err
	}
	s := network.New(network.Config{Pin: args[0]})
	w, err := s.Attach(context.Background(), t, l)
	if err != nil {
		return err
	}
	fmt.Println("watching")
	io.Copy(io.Discard, os.Stdin)
	return errors.Join(w.Release(), l.Close(), s.Close())
}

// A daemon is a process that watches a jail.
type daemon struct {
	*jail
	cmd *exec.Cmd
	in  io.WriteCloser
}

func (j *jail) daemon(pin string) *daemon {
	j.Helper()
	t := j.Target
	target, err := json.Marshal(map[string]any{"Jail": t.Jail, "Dir": t.Dir, "PID": t.PID, "CgroupDir": t.CgroupDir, "Veth": t.Veth, "Selection": t.Selection})
	j.must(err)
	d := &daemon{jail: j, cmd: exec.Command("/proc/self/exe", pin, string(target))}
	d.cmd.Env = append(os.Environ(), actEnv+"=daemon")
	d.cmd.Stderr = os.Stderr
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	d.in, err = d.cmd.StdinPipe()
	j.must(err)
	out, err := d.cmd.StdoutPipe()
	j.must(err)
	j.must(d.cmd.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "watching\n" {
		j.Fatalf("the daemon printed %q, %v", line, err)
	}
	return d
}

func (d *daemon) kill() {
	d.cmd.Process.Kill()
	d.cmd.Wait()
}

func (d *daemon) end() {
	d.Helper()
	d.in.Close()
	d.must(d.cmd.Wait())
}

// pins creates a directory for pins and checks at the end that it is empty.
func pins(t testing.TB) string {
	t.Helper()
	if bpffs == "" {
		t.Skip("there is no BPF file system")
	}
	dir := filepath.Join(bpffs, strings.ReplaceAll(t.Name(), "/", "_"))
	t.Cleanup(func() {
		filepath.WalkDir(dir, func(path string, _ os.DirEntry, _ error) error {
			if path != dir {
				t.Errorf("left pinned: %s", path)
			}
			return nil
		})
		os.RemoveAll(dir)
	})
	return dir
}

func (j *jail) onDisk() (found []event.Event) {
	j.Helper()
	l, err := openLog(j.Dir, j.Target)
	j.must(err)
	defer l.Close()
	c, err := l.Read(j.Context(), eventlog.Query{})
	j.must(err)
	defer c.Close()
	for {
		var e event.Event
		if _, err := c.Next(&e); err == io.EOF {
			return found
		} else {
			j.must(err)
		}
		found = append(found, e)
	}
}

func TestKilledDaemonLosesNothing(t *testing.T) {
	h := newHarness(t, network.Config{})
	pin := pins(t)
	j := h.jail()
	j.acquaint()
	server := j.echoOn(j.host)
	sent := 0
	for range 8 {
		d := j.daemon(pin)
		done := make(chan struct{})
		go func() { defer close(done); j.run("send", server, "300", "100") }()
		time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
		d.kill()
		<-done
		j.run("send", server, "100", "100")
		sent += 400
	}
	j.daemon(pin).end()
	j.finish(pin)

	seen := map[int64]bool{}
	there, back := 0, 0
	for _, e := range j.onDisk() {
		switch {
		case e.Type == event.Gap && e.Lost == 1 && e.Reason == "torn by a crash":
			// The daemon was killed during a write. The log has a gap for the torn line, although
			// its event is recorded again.
		case e.Type == event.Gap:
			t.Errorf("unexpected gap: %s", e.AppendJSON(nil))
		case e.Dst == server:
			there++
		case e.Src == server:
			back++
		}
		if seen[e.NS] {
			t.Errorf("twice: %s", e.AppendJSON(nil))
		}
		seen[e.NS] = true
	}
	if there != sent || back != sent {
		t.Errorf("%d questions and %d answers are recorded of %d each", there, back, sent)
	}
}

// finish takes over from the last daemon and ends all recording.
func (j *jail) finish(pin string) {
	j.Helper()
	s := network.New(network.Config{Pin: pin})
	l, err := openLog(j.Dir, j.Target)
	j.must(err)
	w, err := s.Attach(j.Context(), j.Target, l)
	j.must(err)
	j.must(errors.Join(w.Close(), w.Close(), l.Close(), s.Close(), s.Close()))
}

func TestReleasedJailIsRecordedUntilRingIsFull(t *testing.T) {
	h := newHarness(t, network.Config{})
	pin := pins(t)
	j := h.jail()
	j.acquaint()
	server := j.echoOn(j.host)
	d := j.daemon(pin)
	j.run("send", server, "100", "100")
	d.end()
	time.Sleep(2100 * time.Millisecond) // until the programs consider the daemon dead: the jail then continues without throttling
	j.run("send", server, "8000", "10") // the ring has no room for both directions
	j.finish(pin)

	recorded, lost := 0, 0
	for _, e := range j.onDisk() {
		if e.Type == event.Gap {
			if lost += int(e.Lost); e.Lost <= 0 || e.Source != event.Net {
				t.Errorf("gap %s", e.AppendJSON(nil))
			}
		} else if e.Dst == server || e.Src == server {
			recorded++
		}
	}
	if recorded+lost != 2*8100 || lost == 0 {
		t.Errorf("%d recorded and %d lost of %d", recorded, lost, 2*8100)
	}
}

func TestCollectStoppedJail(t *testing.T) {
	h := newHarness(t, network.Config{})
	pin := pins(t)
	j := h.jail()
	server := j.echoOn(j.host)
	d := j.daemon(pin)
	d.kill()
	j.run("send", server, "50", "100")
	j.kill()

	s := network.New(network.Config{Pin: pin})
	l, err := openLog(j.Dir, j.Target)
	h.must(err)
	h.must(errors.Join(s.Collect(j.Jail, l), s.Collect(j.Jail, l), l.Close(), s.Close()))
	n := 0
	for _, e := range j.onDisk() {
		if e.Dst == server && e.Iface == "eth0" {
			n++
		}
	}
	if n != 50 {
		t.Errorf("%d of 50 packets are recorded", n)
	}
}

func TestFlowsOfKilledDaemonAreReportedLost(t *testing.T) {
	h := newHarness(t, network.Config{})
	pin := pins(t)
	j := h.jail()
	j.Selection.Network = "flows"
	d := j.daemon(pin)
	d.kill()
	j.finish(pin)
	gaps := 0
	for _, e := range j.onDisk() {
		if e.Type == event.Gap && e.Lost == -1 {
			gaps++
		}
	}
	if gaps != 1 {
		t.Errorf("%d gaps, want one", gaps)
	}
}

func TestPinsOfOtherVersionAreRemoved(t *testing.T) {
	h := newHarness(t, network.Config{})
	pin := pins(t)
	j := h.jail()
	h.must(os.MkdirAll(filepath.Join(pin, "network-0", string(j.Jail)), 0o700))
	s := network.New(network.Config{Pin: pin})
	w, err := s.Attach(t.Context(), j.Target, j.log)
	h.must(err)
	h.must(errors.Join(w.Close(), s.Close()))
	if gaps := j.log.all(func(e *event.Event) bool { return e.Type == event.Gap }); len(gaps) != 1 || gaps[0].Lost != -1 {
		t.Errorf("gaps %v", gaps)
	}
}
