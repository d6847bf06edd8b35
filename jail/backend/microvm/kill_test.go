package microvm_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/backend/microvm"
	"glasshouse/jail/init/control"
)

// killedOrder is the environment variable that makes a process of TestMachineOrDaemonIsKilled a daemon with that order.
const killedOrder = "GLASSHOUSE_MICROVM_TEST_ORDER"

// An order is an operation of a daemon that is killed.
type order struct {
	Name   string // of the operation
	Plan   jail.Plan
	Images string // directory of the images that a snapshot writes, or that a branch is restored from
	Cache  string // host.cache
}

// perform performs the operation. It calls begin when what comes before it is done.
func (o order) perform(ctx context.Context, b *microvm.Backend, begin func()) (err error) {
	var i jail.Instance
	switch o.Name {
	case "boot", "create":
		begin()
		i, err = b.Create(ctx, o.Plan)
	case "branch":
		begin()
		i, err = b.Restore(ctx, o.Plan, o.Images)
		if err == nil {
			err = i.Thaw(ctx)
			if err != nil {
				err = errors.Join(err, i.Close(), b.CleanAndRemoveLayer(ctx, o.Plan))
			}
		}
	default:
		i, err = b.Open(ctx, o.Plan)
		begin()
	}
	if err != nil {
		return err
	}
	defer i.Close()
	switch o.Name {
	case "pause", "snapshot":
		ctl := control.Dial(i.Control())
		if err := errors.Join(ctl.Park(ctx, time.Minute), i.Freeze(ctx)); err != nil {
			return err
		}
		if o.Name == "snapshot" {
			if err := b.Dump(ctx, o.Plan, i, o.Images); err != nil {
				return err
			}
			if err := copyLayer(ctx, b, o.Plan, filepath.Join(o.Images, "layer.img")); err != nil {
				return err
			}
		}
		defer ctl.Unpark()
		return i.Thaw(ctx)
	case "stop":
		return errors.Join(i.Kill(ctx), b.Clean(ctx, o.Plan))
	}
	return nil
}

func copyLayer(ctx context.Context, b *microvm.Backend, p jail.Plan, to string) error {
	c, err := b.BeginCopy(ctx, p, to)
	if err != nil {
		return err
	}
	return errors.Join(c.Copy(ctx), c.Close())
}

// TestMachineOrDaemonIsKilled kills the daemon, or QEMU, at random moments of each operation on a machine. Then
// the jail must be usable, or a later daemon must be able to remove it, and nothing of it may be left.
func TestMachineOrDaemonIsKilled(t *testing.T) {
	if text := os.Getenv(killedOrder); text != "" {
		beKilled(t, text)
		return
	}
	backendtest.Repeats(t)
	points, operations := 1, []string{"create", "branch", "snapshot"}
	if backendtest.Thorough {
		points, operations = 30, append(operations, "pause", "stop", "boot")
	}
	seed := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("GLASSHOUSE_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("GLASSHOUSE_SEED=%d", seed)
	h := newHost(t)
	b := h.ready(t)
	first := h.plan(t, b) // makes the template for the operations except boot
	(&kills{}).start(t, b, first)
	if err := b.Clean(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	for n, name := range operations {
		k := &kills{h: h, name: name, rand: rand.New(rand.NewPCG(seed, uint64(n)))}
		t.Run(name, func(t *testing.T) { k.run(t, points) })
	}
}

// TestCleanRemovesIncompleteWorkspace checks what a daemon leaves that was killed while it copied a workspace.
func TestCleanRemovesIncompleteWorkspace(t *testing.T) {
	h := newHost(t)
	b := h.ready(t)
	p := h.plan(t, b)
	if err := errors.Join(os.MkdirAll(filepath.Join(p.Dir, "workspace.img.files/root"), 0o700), os.WriteFile(filepath.Join(p.Dir, "workspace.img.part"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := b.Clean(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(p.Dir); err != nil || len(left) > 0 {
		t.Errorf("left in the directory of the jail: %v, %v", left, err)
	}
}

// kills are those of one operation.
type kills struct {
	h    *host
	name string
	rand *rand.Rand

	o    order
	took time.Duration // by the first operation, which is not killed
}

func (k *kills) run(t *testing.T, points int) {
	h := *k.h
	if k.name == "boot" { // each boots, so the template is removed before
		h.cache = filepath.Join(h.dir, "own")
	}
	k.h = &h
	b := h.daemon()
	k.o = order{Name: k.name, Plan: h.plan(t, b), Cache: h.cache}
	if k.name == "branch" {
		source := order{Name: "snapshot", Plan: h.plan(t, b), Images: t.TempDir()}
		k.start(t, b, source.Plan)
		if err := source.perform(t.Context(), b, func() {}); err != nil {
			t.Fatal(err)
		}
		k.o.Images, k.o.Plan.Sealed = source.Images, []string{filepath.Join(source.Images, "layer.img")}
	}
	k.prepare(t, b)
	k.daemon(t, time.Hour)
	k.recover(t, b, "at the end")
	for n := range points {
		after := time.Duration(k.rand.Int64N(int64(k.took + k.took/8)))
		t.Run(fmt.Sprintf("daemon-%02d", n), func(t *testing.T) {
			k.prepare(t, b)
			k.daemon(t, after)
			k.recover(t, h.daemon(), fmt.Sprintf("daemon killed after %v of %v", after, k.took))
		})
	}
	for n := range points {
		after := time.Duration(k.rand.Int64N(int64(k.took)))
		t.Run(fmt.Sprintf("qemu-%02d", n), func(t *testing.T) {
			k.prepare(t, b)
			before := k.templates(t)
			k.qemu(t, b, after)
			if now := k.templates(t); k.name == "create" && !slices.Equal(now, before) {
				t.Errorf("files of templates after QEMU was killed = %q, want %q", now, before)
			}
		})
	}
	if err := b.Clean(t.Context(), k.o.Plan); err != nil {
		t.Error(err)
	}
}

// templates returns the files of templates.
func (k *kills) templates(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(k.h.cache, "cache/template-*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// onRunning reports whether the operation needs a jail that runs.
func (k *kills) onRunning() bool {
	return slices.Contains([]string{"pause", "snapshot", "stop"}, k.name)
}

// start starts a jail that counts, and leaves it running.
func (k *kills) start(t *testing.T, b *microvm.Backend, p jail.Plan) {
	t.Helper()
	i, err := b.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	counting(t, i)
	output(t, i, "sh", "-c", "echo kept > /root/kept; sync")
}

// prepare makes what the next operation needs.
func (k *kills) prepare(t *testing.T, b *microvm.Backend) {
	t.Helper()
	if k.name == "boot" {
		templates := k.templates(t)
		if len(templates) != 2 && k.took > 0 {
			t.Errorf("files of templates = %q, want two", templates)
		}
		for _, name := range templates {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if k.name == "snapshot" {
		k.o.Images = t.TempDir()
	}
	if !k.onRunning() {
		return
	}
	i, err := b.Open(t.Context(), k.o.Plan)
	if errors.Is(err, fault.NotFound) {
		if err := b.Clean(t.Context(), k.o.Plan); err != nil {
			t.Fatal(err)
		}
		k.start(t, b, k.o.Plan)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	i.Close()
}

// daemon runs a daemon in another process, and kills it some time after the operation has begun, or at
// its end.
func (k *kills) daemon(t *testing.T, after time.Duration) {
	t.Helper()
	text, err := json.Marshal(k.o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestMachineOrDaemonIsKilled$")
	cmd.Env = append(os.Environ(), killedOrder+"="+string(text))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	var began time.Time
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said = append(said, lines.Text())
		switch lines.Text() {
		case "begins":
			began = time.Now()
			timer := time.AfterFunc(after, func() { cmd.Process.Kill() })
			defer timer.Stop()
		case "ends":
			if k.took == 0 {
				k.took = time.Since(began)
			}
			cmd.Process.Kill()
		}
	}
	cmd.Wait()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
		t.Fatalf("the other daemon: %v\n%s", cmd.ProcessState, strings.Join(said, "\n"))
	}
}

// beKilled is the daemon in the other process.
func beKilled(t *testing.T, text string) {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	h := newHost(t)
	h.cache = o.Cache
	if err := o.perform(t.Context(), h.daemon(), func() { fmt.Println("begins") }); err != nil {
		t.Fatal(err)
	}
	fmt.Println("ends")
	select {} // until it is killed
}

// recover is what a later daemon does: it uses a jail that ran before the operation, and removes another one.
func (k *kills) recover(t *testing.T, b *microvm.Backend, when string) {
	t.Helper()
	i, err := b.Open(t.Context(), k.o.Plan)
	switch {
	case err == nil && k.onRunning():
		defer i.Close()
		err := i.Thaw(t.Context())
		if err == nil {
			control.Dial(i.Control()).Unpark()
			counts(t, i)
			return
		}
		if k.name != "stop" {
			t.Errorf("%s: Thaw: %v", when, err)
			break
		}
		select {
		case <-i.Done(): // its machine was about to end
		case <-time.After(time.Minute):
			t.Errorf("%s: Thaw: %v, and the machine does not end", when, err)
		}
	case err == nil:
		i.Close()
	case !errors.Is(err, fault.NotFound) || k.name == "pause" || k.name == "snapshot":
		t.Errorf("%s: Open: %v", when, err)
	}
	k.clean(t, b, when)
	k.again(t, b, when)
}

// clean removes a jail. The disk of a branch that was not made must not be used.
func (k *kills) clean(t *testing.T, b *microvm.Backend, when string) {
	t.Helper()
	remove := b.Clean
	if k.name == "branch" {
		remove = b.CleanAndRemoveLayer
	}
	if err := remove(t.Context(), k.o.Plan); err != nil {
		t.Errorf("%s: Clean: %v", when, err)
	}
}

// qemu kills QEMU during an operation of this process. If the operation should create a jail, it must have
// removed it.
func (k *kills) qemu(t *testing.T, b *microvm.Backend, after time.Duration) {
	t.Helper()
	killed := make(chan time.Duration, 1)
	done, began := make(chan struct{}), time.Now()
	err := k.o.perform(t.Context(), b, func() {
		began = time.Now()
		go func() {
			time.Sleep(after)
			for {
				pid := machineOf(k.o.Plan)
				if pid != 0 && unix.Kill(pid, unix.SIGKILL) == nil {
					killed <- time.Since(began)
					return
				}
				select {
				case <-done:
					killed <- 0
					return
				case <-time.After(time.Millisecond):
				}
			}
		}()
	})
	took := time.Since(began)
	close(done)
	at := <-killed
	when := fmt.Sprintf("QEMU killed after %v of %v: %v", at, took, err)
	t.Log(strings.SplitN(when, "\n", 2)[0])
	switch limit := k.took + 40*time.Second; {
	case took > limit:
		t.Errorf("%s; want an error within %v", when, limit)
	case err != nil && at == 0:
		t.Errorf("failed, although QEMU was not killed: %v", err)
	case err == nil || k.onRunning():
		k.clean(t, b, when)
	}
	k.again(t, b, when)
}

// again checks that nothing of a removed jail is left, and that the jail can be created.
func (k *kills) again(t *testing.T, b *microvm.Backend, when string) {
	t.Helper()
	p := k.o.Plan
	if leaks := backendtest.LeaksAfter(p, 30*time.Second); len(leaks) > 0 {
		t.Errorf("%s: left %q", when, leaks)
	}
	filepath.WalkDir(p.Dir, func(path string, e fs.DirEntry, err error) error {
		if name := strings.TrimSuffix(filepath.Base(path), ".part"); path != p.Dir && name != filepath.Base(k.h.disk(p)) {
			t.Errorf("%s: left the file %s, %v", when, path, err)
		}
		return nil
	})
	var i jail.Instance
	var err error
	if k.name == "branch" {
		i, err = b.Restore(t.Context(), p, k.o.Images)
		if err == nil {
			err = i.Thaw(t.Context())
		}
	} else {
		i, err = b.Create(t.Context(), p)
	}
	if err != nil {
		t.Fatalf("%s: the next start: %v", when, err)
	}
	defer i.Close()
	if k.name == "branch" {
		counts(t, i)
	}
	if k.onRunning() {
		output(t, i, "grep", "-q", "kept", "/root/kept")
		counting(t, i)
		return
	}
	output(t, i, "true")
	if err := errors.Join(i.Kill(t.Context()), b.Clean(t.Context(), p)); err != nil {
		t.Errorf("%s: stop the next one: %v", when, err)
	}
	if err := os.RemoveAll(k.h.disk(p)); err != nil {
		t.Error(err)
	}
	for _, dir := range []string{"cache", "templates"} {
		if left, _ := filepath.Glob(filepath.Join(k.h.cache, dir, "*.part*")); len(left) > 0 {
			t.Errorf("%s: left %q in the cache", when, left)
		}
	}
}

// machineOf returns the process of a jail's machine, or 0.
func machineOf(p jail.Plan) int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		args, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if strings.Contains(string(args), "\x00-name\x00"+string(p.ID)+"\x00") {
			return pid
		}
	}
	return 0
}
