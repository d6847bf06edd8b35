package jailinit_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// maxResident is the maximal resident memory of init in kB, whatever its commands write. The
// test binary alone uses about 20 MB.
const maxResident = 80 << 10

const gigabyte = 1 << 30

func zeros() protocol.Exec {
	return protocol.Exec{ID: id.NewExec(), Argv: []string{"head", "-c", fmt.Sprint(gigabyte), "/dev/zero"}}
}

func (j *jail) wantSmall() {
	j.t.Helper()
	most := maxResident
	if raceDetector {
		most *= 5
	}
	if kb := statusField(j.t, j.cmd.Process.Pid, "VmHWM"); kb > most {
		j.t.Errorf("resident memory of init = %d kB, want at most %d", kb, most)
	}
}

func TestGigabyteWithoutReader(t *testing.T) {
	j := start(t)
	e := zeros()
	if _, _, err := j.Exec(j.t.Context(), e, nil); err != nil {
		t.Fatal(err)
	}
	s, err := j.Wait(j.t.Context(), e.ID)
	if err != nil || s.Code != 0 || s.Stdout != gigabyte || s.Next != gigabyte || s.Oldest != gigabyte-protocol.DefaultRing {
		t.Errorf("status %+v, %v; want 1 GiB written, the last MiB kept", s, err)
	}
	j.wantSmall()

	stream, err := j.Attach(j.t.Context(), e.ID, control.AttachOptions{From: 0, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	c, err := stream.Next()
	if err != nil || c.Lost != gigabyte-protocol.DefaultRing || c.Offset != s.Oldest {
		t.Errorf("first chunk at %d with %d lost, %v; want the gap reported", c.Offset, c.Lost, err)
	}
}

func TestGigabyteWithFastReader(t *testing.T) {
	j := start(t)
	s, _, err := j.Exec(j.t.Context(), zeros(), &attachLossless)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got := int64(0)
	for {
		c, err := s.Next()
		if err == io.EOF {
			break
		}
		if err != nil || c.Lost != 0 || c.Offset != got {
			t.Fatalf("chunk at %d, %d lost, after %d bytes, %v; want no loss", c.Offset, c.Lost, got, err)
		}
		got += int64(len(c.Data))
	}
	if got != gigabyte {
		t.Errorf("output = %d bytes, want 1 GiB", got)
	}
	j.wantSmall()
}

func TestGigabyteWithStalledReaders(t *testing.T) {
	j := start(t, "TEST_INIT_GRACE=300ms")
	lossless, _, err := j.Exec(j.t.Context(), zeros(), &attachLossless)
	if err != nil {
		t.Fatal(err)
	}
	defer lossless.Close()
	x := lossless.Status().ID
	careless, err := j.Attach(j.t.Context(), x, control.AttachOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer careless.Close()

	began := time.Now()
	s, err := j.Wait(j.t.Context(), x)
	if err != nil || s.Stdout != gigabyte {
		t.Fatalf("status %+v, %v; want 1 GiB written", s, err)
	}
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("the command ended after %v, want at least the grace time of the lossless reader", took)
	}
	j.wantSmall()
	for name, s := range map[string]*control.Stream{"lossless": lossless, "careless": careless} {
		got, lost := int64(0), int64(0)
		for {
			c, err := s.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got, lost = got+int64(len(c.Data)), lost+c.Lost
		}
		if lost == 0 || got+lost != gigabyte {
			t.Errorf("the %s reader got %d bytes and %d lost, want 1 GiB together", name, got, lost)
		}
	}
}

// A reader that reads nothing, but sends acknowledgements, makes the command wait longer than
// the grace time.
func TestRenewedLosslessReader(t *testing.T) {
	const grace = time.Second
	j := start(t, "TEST_INIT_GRACE="+grace.String())
	e := sh("seq 1 400000")
	e.Ring = 64 << 10
	s, _, err := j.Exec(j.t.Context(), e, &attachLossless)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	renew := time.NewTicker(grace / 10)
	defer renew.Stop()
	for began := time.Now(); time.Since(began) < 5*grace/2; <-renew.C {
		s.Renew()
	}
	if st, err := j.ExecStatus(j.t.Context(), e.ID); err != nil || st.Ended != nil {
		t.Errorf("status = %+v, %v; want a command that waits", st, err)
	}
	read, write := io.Pipe()
	go func() {
		for {
			c, err := s.Next()
			if err == nil && c.Lost != 0 {
				err = fmt.Errorf("%d bytes were lost", c.Lost)
			}
			if err != nil {
				write.CloseWithError(err)
				return
			}
			write.Write(c.Data)
		}
	}()
	wantNumbers(t, read, 400000)
}

func TestSlowLosslessReader(t *testing.T) {
	j := start(t, "TEST_INIT_GRACE=5s")
	e := sh("seq 1 400000")
	e.Ring = 64 << 10
	s, _, err := j.Exec(j.t.Context(), e, &attachLossless)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	read, write := io.Pipe()
	go func() {
		for n := 0; ; n++ {
			c, err := s.Next()
			if err != nil || c.Lost != 0 {
				write.CloseWithError(err)
				return
			}
			if n%8 == 0 {
				time.Sleep(5 * time.Millisecond)
			}
			write.Write(c.Data)
		}
	}()
	wantNumbers(t, read, 400000)
}

// wantNumbers checks that r has the numbers from 1 to want, one per line.
func wantNumbers(t *testing.T, r io.Reader, want int) {
	t.Helper()
	lines := bufio.NewScanner(r)
	n := 0
	for lines.Scan() {
		n++
		if lines.Text() != itoa(n) {
			t.Fatalf("line %d is %q", n, lines.Text())
		}
	}
	if n != want || lines.Err() != nil {
		t.Errorf("lines = %d, %v; want %d", n, lines.Err(), want)
	}
}

func TestTwoReadersAndLateReader(t *testing.T) {
	j := start(t)
	e := sh("for i in 1 2 3 4 5; do seq 1 2000; seq 1 2000 >&2; sleep 0.05; done")
	first, _, err := j.Exec(j.t.Context(), e, &attachLossless)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	results := make([]map[protocol.Stream]string, 3)
	read := func(i int, s *control.Stream) {
		wg.Go(func() { defer s.Close(); results[i] = j.collect(s) })
	}
	read(0, first)
	second, err := j.Attach(j.t.Context(), e.ID, attachLossless)
	if err != nil {
		t.Fatal(err)
	}
	read(1, second)
	if _, err := j.Wait(j.t.Context(), e.ID); err != nil {
		t.Fatal(err)
	}
	later, err := j.Attach(j.t.Context(), e.ID, control.AttachOptions{From: -1, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	read(2, later)
	wg.Wait()
	var numbers strings.Builder
	for i := range 2000 {
		fmt.Fprintln(&numbers, i+1)
	}
	want := strings.Repeat(numbers.String(), 5)
	for i, r := range results {
		if r[protocol.Stdout] != want || r[protocol.Stderr] != want {
			t.Errorf("reader %d got %d and %d bytes, want %d each", i, len(r[protocol.Stdout]), len(r[protocol.Stderr]), len(want))
		}
	}
}

func TestAttachWithoutFollow(t *testing.T) {
	j := start(t)
	e := sh("echo now; sleep 60")
	if _, _, err := j.Exec(j.t.Context(), e, nil); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if s, _ := j.ExecStatus(j.t.Context(), e.ID); s.Next == 4 {
			break
		}
	}
	s, err := j.Attach(j.t.Context(), e.ID, control.AttachOptions{From: -1})
	if err != nil {
		t.Fatal(err)
	}
	if out := j.collect(s)[protocol.Stdout]; out != "now\n" || s.Status().Ended != nil {
		t.Errorf("output %q, status %+v; want the present output of a running command", out, s.Status())
	}
	if _, err := j.Attach(j.t.Context(), e.ID, control.AttachOptions{From: 100}); !errors.Is(err, fault.Invalid) {
		t.Errorf("Attach past the end = %v, want invalid", err)
	}
	// A background process that writes without pause must not block such a reader.
	busy := sh("yes")
	if _, _, err := j.Exec(j.t.Context(), busy, nil); err != nil {
		t.Fatal(err)
	}
	s, err = j.Attach(j.t.Context(), busy.ID, control.AttachOptions{From: -1})
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = s.Next()
	}
	if err != io.EOF {
		t.Error(err)
	}
}

// TestCommandEndsDuringAttachWithoutFollow tests a command that writes more output and ends
// while the present output is sent.
func TestCommandEndsDuringAttachWithoutFollow(t *testing.T) {
	j := start(t)
	const before = 3 << 20 // more than the socket buffer
	e := sh("head -c 3145728 /dev/zero; read -r x; echo end")
	e.Ring, e.Stdin = 4<<20, true
	s, _, err := j.Exec(j.t.Context(), e, &control.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	for st := s.Status(); st.Next < before; time.Sleep(time.Millisecond) {
		st, err = j.ExecStatus(j.t.Context(), e.ID)
		if err != nil {
			t.Fatal(err)
		}
	}
	s, err = j.Attach(j.t.Context(), e.ID, control.AttachOptions{From: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	in, err := j.Stdin(j.t.Context(), e.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	in.Close()
	for st, err := j.ExecStatus(j.t.Context(), e.ID); st.Ended == nil; st, err = j.ExecStatus(j.t.Context(), e.ID) {
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	var last []byte
	for {
		c, err := s.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		last = c.Data
	}
	if st := s.Status(); st.Ended == nil || !bytes.HasSuffix(last, []byte("end\n")) {
		t.Errorf("ended at %v, output ends with %q; want an end time and %q", st.Ended, last[max(0, len(last)-10):], "end\n")
	}
}

// clientMain is a client in its own process, which the test kills. It copies a command's
// output to stdout.
func clientMain(socket string, args []string) int {
	opts := attachLossless
	fmt.Sscan(args[1], &opts.From)
	s, err := control.Dial(socket).Attach(context.Background(), id.Exec(args[0]), opts)
	for err == nil {
		var c protocol.Chunk
		if c, err = s.Next(); err == nil && c.Lost == 0 {
			_, err = os.Stdout.Write(c.Data)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func TestReattachAfterClientKill(t *testing.T) {
	j := start(t)
	e := sh("seq 1 3000000") // 22 MB through a ring of 128 kB
	e.Ring = 128 << 10
	s, _, err := j.Exec(j.t.Context(), e, &attachLossless)
	if err != nil {
		t.Fatal(err)
	}
	s.Detach()
	read, write := io.Pipe()
	go func() {
		var at int64
		for range 5 {
			// The output of the killed client shows how much it had received.
			n, err := killClientAfter(j, e.ID, at, 2<<20, write)
			at += n
			if err != nil {
				write.CloseWithError(err)
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
		opts := attachLossless
		opts.From = at
		s, err := j.Attach(j.t.Context(), e.ID, opts)
		for err == nil {
			var c protocol.Chunk
			if c, err = s.Next(); c.Lost != 0 {
				err = fmt.Errorf("%d bytes lost before %d", c.Lost, c.Offset)
			}
			write.Write(c.Data)
		}
		if err == io.EOF {
			err = nil
		}
		write.CloseWithError(err)
	}()
	wantNumbers(t, read, 3000000)
}

// killClientAfter runs a client from offset at, kills it while it copies, and returns the number of
// bytes that it has written.
func killClientAfter(j *jail, x id.Exec, at, enough int64, w io.Writer) (int64, error) {
	cmd := exec.Command(os.Args[0], string(x), fmt.Sprint(at))
	cmd.Env = []string{"TEST_CLIENT_SOCKET=" + j.dir + "/init.sock"}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	n, err := io.CopyN(w, out, enough)
	cmd.Process.Kill()
	rest, restErr := io.Copy(w, out) // bytes in the pipe when it was killed
	cmd.Wait()
	return n + rest, errors.Join(err, restErr)
}

// A freeze that is longer than the grace time does not count for readers.
func TestFreezeLosesNoOutput(t *testing.T) {
	j := start(t, "TEST_INIT_GRACE=1500ms")
	e := sh("seq 1 200000")
	e.Ring = 64 << 10
	s, _, err := j.Exec(j.t.Context(), e, &attachLossless)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	time.Sleep(100 * time.Millisecond) // the pump waits for the first acknowledgement
	stopped(t, j, func() { time.Sleep(4 * time.Second) })
	read, write := io.Pipe()
	go func() {
		for {
			c, err := s.Next()
			if c.Lost != 0 {
				err = fmt.Errorf("%d bytes lost", c.Lost)
			}
			if err == io.EOF {
				write.Close()
				return
			}
			if err != nil {
				write.CloseWithError(err)
				return
			}
			write.Write(c.Data)
		}
	}()
	wantNumbers(t, read, 200000)
}

func TestDetachKeepsPosition(t *testing.T) {
	j := start(t)
	e := sh("seq 1 300000")
	e.Ring = 64 << 10
	s, _, err := j.Exec(j.t.Context(), e, &attachLossless)
	if err != nil {
		t.Fatal(err)
	}
	read, write := io.Pipe()
	go func() {
		for n := 0; err == nil; n++ {
			if n == 10 {
				s.Detach()
				time.Sleep(100 * time.Millisecond)
				opts := attachLossless
				opts.From = s.Offset()
				s, err = j.Attach(j.t.Context(), e.ID, opts)
				if err != nil {
					break
				}
			}
			var c protocol.Chunk
			if c, err = s.Next(); c.Lost != 0 {
				err = fmt.Errorf("%d bytes lost", c.Lost)
			}
			write.Write(c.Data)
		}
		if err == io.EOF {
			err = nil
		}
		write.CloseWithError(err)
	}()
	wantNumbers(t, read, 300000)
}

func TestClosedReaderDoesNotBlock(t *testing.T) {
	j := start(t, "TEST_INIT_GRACE=50s")
	s, _, err := j.Exec(j.t.Context(), sh("head -c 10000000 /dev/zero"), &attachLossless) // more than the ring's size
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	began := time.Now()
	if _, err := j.Wait(j.t.Context(), s.Status().ID); err != nil || time.Since(began) > 30*time.Second {
		t.Errorf("the command ended after %v, %v; want immediately", time.Since(began), err)
	}
}

func TestReaderWithoutFollowDoesNotBlock(t *testing.T) {
	j := start(t, "TEST_INIT_GRACE=50s")
	e := sh("echo first; read go; head -c 10000000 /dev/zero")
	e.Stdin = true
	if _, _, err := j.Exec(j.t.Context(), e, nil); err != nil {
		t.Fatal(err)
	}
	s, err := j.Attach(j.t.Context(), e.ID, control.AttachOptions{Lossless: true})
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = s.Next()
	}
	s.Close()
	began := time.Now()
	w, err := j.Stdin(j.t.Context(), e.ID)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(w, "go\n")
	w.Close()
	if _, err := j.Wait(j.t.Context(), e.ID); err != nil || time.Since(began) > 30*time.Second {
		t.Errorf("the command ended after %v, %v; want immediately", time.Since(began), err)
	}
}

// Alternating single bytes to both streams need the most memory for segments.
func TestAlternatingStreamsAreBounded(t *testing.T) {
	j := start(t)
	e := protocol.Exec{ID: id.NewExec(), Ring: protocol.MaxRing, Argv: []string{"python3", "-c", "import os\nfor i in range(400000): os.write(1+i%2, b'x')"}}
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip(err)
	}
	_, _, status := j.run(e)
	if status.Stdout != 200000 || status.Stderr != 200000 {
		t.Errorf("status = %+v, want code 0", status)
	}
	j.wantSmall()
}
