package backendtest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/jail"
)

// history changes files of a jail, and look prints the result.
const (
	history = `echo one > /root/a; ln /root/a /root/b; echo x >> /etc/issue; rm /usr/bin/nproc; mkdir -m 700 /data; ln -s /nowhere /data/link
chown 1000:1000 /data; rm -r /home/agent; mkdir /home/agent; mv /etc/group /etc/group.old; truncate -s 1M /data/sparse; touch -d @1000000000 /data/old`
	look = `stat -c '%n %F %a %u:%g %h %s' /root/a /root/b /etc/issue /data /data/sparse /home/agent /etc/group.old; stat -c %Y /data/old
test /root/a -ef /root/b && echo same; cat /root/a /etc/issue; readlink /data/link; test -e /usr/bin/nproc || echo gone; test -e /etc/group || echo gone; ls -A /home/agent /data`
)

// copyLayer tests a copy of the layer of a jail that keeps its own.
func (s *suite) copyLayer(t *testing.T) {
	b := s.newBox(t)
	b.sh(t, history)
	b.sh(t, "mkfifo -m 620 /fifo")
	want := b.sh(t, look)
	img := b.snapshot(t)
	b.sh(t, "echo two > /root/a; rm -r /data")
	before, err := os.ReadFile(img.layer)
	if err != nil {
		t.Fatal(err)
	}

	copied := s.restore(t, img)
	if got := copied.sh(t, look); got != want {
		t.Errorf("the copy's files are\n%s\nwant\n%s", got, want)
	}
	copied.sh(t, "test $(stat -c %F-%a /fifo) = fifo-620")
	copied.sh(t, "echo three > /root/b; test $(cat /root/a) = three; rm /etc/issue")
	copied.kill(t)
	b.kill(t)
	fresh := s.create(t, img.newPlan(t, s)) // started, not restored
	if got := fresh.sh(t, look); got != want {
		t.Errorf("files of a jail that starts over the layer are\n%s\nwant\n%s", got, want)
	}
	s.clause(t, "a-named-pipe", func(t *testing.T) { fresh.sh(t, "test $(stat -c %F-%a /fifo) = fifo-620") })
	fresh.kill(t)
	if after, err := os.ReadFile(img.layer); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the layer has changed, %v", err)
	}
	s.clause(t, "a-name-that-is-taken", func(t *testing.T) {
		b := s.newBox(t)
		b.freeze(t)
		to := filepath.Join(shortTempDir(t), "layer.img")
		put(t, to, "somebody's\n")
		if err := copyLayer(t.Context(), s.checkpointer(t), b.plan, to); err == nil {
			t.Error("the layer was copied over a file")
		}
		if got, _ := os.ReadFile(to); string(got) != "somebody's\n" {
			t.Errorf("the existing file now has %d bytes", len(got))
		}
		b.letGo(t)
		b.kill(t)
	})
	s.clause(t, "too-much", func(t *testing.T) {
		b := s.newBox(t)
		b.sh(t, "head -c 24M /dev/urandom > /root/much; mkdir /root/many; for i in $(seq 500); do echo small > /root/many/$i; done")
		b.freeze(t)
		dir := shortTempDir(t)
		to := filepath.Join(dir, "layer.img")
		err := copyLayer(deadline(t, time.Minute), s.checkpointer(t), b.plan, to)
		if err != nil && !errors.Is(err, fault.TooLarge) {
			t.Errorf("copy = %v, want too large or no error", err)
		}
		if entries, _ := os.ReadDir(dir); err != nil && len(entries) > 0 {
			t.Errorf("a refused copy has left %v", entries)
		}
		b.letGo(t)
		if got := b.sh(t, "ls /root/many | wc -l"); got != "500" {
			t.Errorf("the jail has %s files, want 500", got)
		}
		b.kill(t)
	})
	s.clause(t, "disk-full", func(t *testing.T) {
		b := s.newBox(t)
		b.sh(t, "head -c 4M /dev/urandom > /root/much")
		b.freeze(t)
		dir := smallMemory(t, 0, "size=1m")
		if err := copyLayer(deadline(t, time.Minute), s.checkpointer(t), b.plan, filepath.Join(dir, "layer.img")); err == nil {
			t.Error("a copy to a full disk succeeded")
		}
		if entries, _ := os.ReadDir(dir); len(entries) > 0 {
			t.Errorf("a failed copy has left %v", entries)
		}
		b.letGo(t)
		b.sh(t, "test $(wc -c < /root/much) = 4194304; echo more > /root/more")
		b.kill(t)
	})
}

// sealLayer tests SealLayer: the jail continues as a restored copy over the sealed layer.
func (s *suite) sealLayer(t *testing.T) {
	cp := s.checkpointer(t)
	b := s.newBox(t)
	b.sh(t, history)
	want := b.sh(t, look)
	x := b.start(t, "exec 5> /root/open; echo one >&5; until test -e /tmp/go; do sleep 0.05; done; echo two >&5; rm /root/b; echo three > /root/a")
	eventually(t, "a file is open", func() bool { return b.try(t, "test -s /root/open").status.Code == 0 })

	b.freeze(t)
	img := s.newImage(t, b.plan)
	if err := cp.Dump(deadline(t, time.Minute), b.plan, b.inst, img.dir); err != nil {
		t.Fatalf("Dump: %v", err)
	}
	if err := cp.SealLayer(t.Context(), b.plan, img.layer); err != nil {
		t.Fatalf("SealLayer: %v", err)
	}
	// The jail still has the layer mounted.
	from := b.plan
	next := img.newPlan(t, s, func(p *jail.Plan) { p.From = &from })
	on := s.frozen(t, img, next)
	b.kill(t)
	b.inst.Close()
	if err := cp.CleanAndRemoveLayer(t.Context(), b.plan); err != nil {
		t.Fatalf("Shed: %v", err)
	}
	on.thaw(t)
	on.plan.From = nil
	if got := on.sh(t, look); got != want {
		t.Errorf("files after SealLayer are\n%s\nwant\n%s", got, want)
	}
	on.sh(t, ": > /tmp/go")
	if st, err := on.ctl.Wait(deadline(t, 20*time.Second), x); err != nil || st.Code != 0 {
		t.Errorf("the process with an open file ended with %+v, %v", st, err)
	}
	if got, want := on.sh(t, "cat /root/open /root/a; ls /root"), "one\ntwo\nthree\na\nopen"; got != want {
		t.Errorf("files written after SealLayer = %q, want %q", got, want)
	}
	before, err := os.ReadFile(img.layer)
	if err != nil {
		t.Fatal(err)
	}

	// Restore another jail from the same image after the first is removed.
	copied := s.restore(t, img)
	if got := copied.sh(t, look); got != want {
		t.Errorf("files of another copy are\n%s\nwant\n%s", got, want)
	}
	copied.kill(t)
	second := on.snapshot(t)
	on.kill(t)
	third := s.restore(t, second)
	if got, want := third.sh(t, "cat /root/open /root/a; ls /root; test -e /root/b || echo gone"), "one\ntwo\nthree\na\nopen\ngone"; got != want {
		t.Errorf("files over two sealed layers = %q, want %q", got, want)
	}
	third.kill(t)
	if after, err := os.ReadFile(img.layer); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the sealed layer has changed, %v", err)
	}

	s.clause(t, "nothing-to-seal", func(t *testing.T) {
		p := s.newPlan(t)
		if err := cp.SealLayer(t.Context(), p, filepath.Join(shortTempDir(t), "layer.img")); !errors.Is(err, fault.NotFound) {
			t.Errorf("SealLayer of a jail that never was = %v, want not found", err)
		}
	})
}

// sealAtRest seals the layer of a stopped jail, which then starts over it.
func (s *suite) sealAtRest(t *testing.T) {
	cp := s.backend.(jail.Checkpointer)
	b := s.newBox(t)
	b.sh(t, history)
	want := b.sh(t, look)
	b.kill(t)
	b.inst.Close()
	if err := s.backend.Clean(t.Context(), b.plan); err != nil {
		t.Fatal(err)
	}
	img := s.newImage(t, b.plan)
	if err := cp.SealLayer(t.Context(), b.plan, img.layer); err != nil {
		t.Fatalf("SealLayer: %v", err)
	}
	if err := cp.CleanAndRemoveLayer(t.Context(), b.plan); err != nil {
		t.Fatalf("Shed: %v", err)
	}
	p := b.plan
	p.Sealed = []string{img.layer}
	for range 2 {
		files := s.openFiles(t, p)
		if got, err := readFile(t, files, "/root/a"); got != "one\n" {
			t.Errorf("/root/a over a sealed layer = %q, %v", got, err)
		}
		s.closeFiles(t, files, p)
	}
	for range 2 {
		b = s.create(t, p)
		if got := b.sh(t, look); got != want {
			t.Errorf("files of a jail that starts over its sealed layer are\n%s\nwant\n%s", got, want)
		}
		b.kill(t)
		b.inst.Close()
		if err := s.backend.Clean(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
}

// sealThenCrash omits CleanAndRemoveLayer: the jail starts over the sealed layer while its own name for it
// still exists.
func (s *suite) sealThenCrash(t *testing.T) {
	b := s.newBox(t)
	b.sh(t, "echo one > /root/a")
	b.kill(t)
	b.inst.Close()
	img := s.newImage(t, b.plan)
	if err := s.backend.(jail.Checkpointer).SealLayer(t.Context(), b.plan, img.layer); err != nil {
		t.Fatal(err)
	}
	daemon := s.open(t)
	p := b.plan
	p.Sealed = []string{img.layer}
	if err := daemon.Clean(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(img.layer)
	if err != nil {
		t.Fatal(err)
	}
	b = s.create(t, p)
	if got := b.sh(t, "cat /root/a; echo two > /root/a"); got != "one" {
		t.Errorf("/root/a = %q, want %q", got, "one")
	}
	b.kill(t)
	if after, err := os.ReadFile(img.layer); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the sealed layer was written to, %v", err)
	}
}

// copyLayer copies a layer in one call.
func copyLayer(ctx context.Context, cp jail.Checkpointer, p jail.Plan, to string) error {
	c, err := cp.BeginCopy(ctx, p, to)
	if err != nil {
		return err
	}
	return errors.Join(c.Copy(ctx), c.Close())
}
