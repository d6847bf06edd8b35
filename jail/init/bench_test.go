package jailinit_test

import (
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"glasshouse/id"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// BenchmarkExecTrue measures a command through init, from the connection to its exit status.
// BenchmarkBareForkExec measures the kernel's part.
func BenchmarkExecTrue(b *testing.B) {
	j := start(b)
	for b.Loop() {
		s, _, err := j.Exec(b.Context(), protocol.Exec{ID: id.NewExec(), Argv: []string{"/bin/true"}}, &control.AttachOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.Next(); err != io.EOF || s.Status().Code != 0 {
			b.Fatalf("Next = %v, code %d", err, s.Status().Code)
		}
		s.Close()
	}
}

func BenchmarkBareForkExec(b *testing.B) {
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	for b.Loop() {
		pid, err := syscall.ForkExec("/bin/true", []string{"/bin/true"}, &syscall.ProcAttr{Files: []uintptr{null.Fd(), null.Fd(), null.Fd()}})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOutput measures the throughput of a command's output through init.
func BenchmarkOutput(b *testing.B) {
	const size = 64 << 20
	b.SetBytes(size)
	j := start(b)
	for b.Loop() {
		s, _, err := j.Exec(b.Context(), sh("head -c 67108864 /dev/zero"), &control.AttachOptions{Lossless: true})
		if err != nil {
			b.Fatal(err)
		}
		for err == nil {
			_, err = s.Next()
		}
		if got := s.Status().Stdout; got != size {
			b.Fatalf("%d bytes, %v", got, err)
		}
		s.Close()
	}
}

// BenchmarkStart measures the time from the start of init's process to its first reply, which
// is part of every start of a jail.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		j := start(b)
		b.StopTimer()
		j.end()
		b.StartTimer()
	}
}

// BenchmarkPark measures the park that precedes every freeze for a snapshot, with a reader, a
// writer and a Wait in progress.
func BenchmarkPark(b *testing.B) {
	j := start(b)
	e := sh("cat")
	e.Stdin = true
	s, _, err := j.Exec(b.Context(), e, &attachLossless)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	w, err := j.Stdin(b.Context(), e.ID)
	if err != nil {
		b.Fatal(err)
	}
	go j.Wait(b.Context(), e.ID)
	for b.Loop() {
		if err := j.Park(b.Context(), time.Second); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		j.Unpark()
		if _, err := io.WriteString(w, "x"); err != nil {
			b.Fatal(err)
		}
		if _, err := s.Next(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
