package jailinit_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

const parkPatience = 30 * time.Second

// openSockets returns the sockets of process pid, except for listening ones.
func openSockets(t testing.TB, pid int) (sockets []string) {
	t.Helper()
	listening := map[string]bool{}
	table, err := os.ReadFile("/proc/" + itoa(pid) + "/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 6 && f[3] == "00010000" { // __SO_ACCEPTCON: listening
			listening["socket:["+f[6]+"]"] = true
		}
	}
	dir := "/proc/" + itoa(pid) + "/fd/"
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, e := range entries {
		to, _ := os.Readlink(dir + e.Name())
		switch {
		case listening[to]:
			found++
		case strings.HasPrefix(to, "socket:"):
			sockets = append(sockets, to)
		}
	}
	if found != 1 {
		t.Fatalf("listening sockets = %d, want 1", found)
	}
	return sockets
}

// park parks the jail and checks that init has no connections.
func (j *jail) park() {
	j.t.Helper()
	if err := j.Park(j.t.Context(), parkPatience); err != nil {
		j.t.Fatalf("Park: %v", err)
	}
	if left := openSockets(j.t, j.cmd.Process.Pid); len(left) > 0 {
		j.t.Errorf("connections of a parked init = %v, want none", left)
	}
}

// parkRepeatedly parks the jail until stop is closed, and returns the number of parks.
func (j *jail) parkRepeatedly(stop <-chan struct{}, atMost int) (parks int) {
	for ; parks < atMost; parks++ {
		select {
		case <-stop:
			return parks
		case <-time.After(rand.N(10 * time.Millisecond)):
		}
		j.park()
		time.Sleep(rand.N(5 * time.Millisecond))
		j.Unpark()
	}
	return parks
}

// lines checks the order of numbers, one per line.
type lines struct {
	rest []byte
	n    int
}

func (l *lines) add(p []byte) error {
	l.rest = append(l.rest, p...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return nil
		}
		l.n++
		if string(line) != itoa(l.n) {
			return fmt.Errorf("line %d is %q", l.n, line)
		}
		l.rest = rest
	}
}

func TestReadersDuringFiftyParks(t *testing.T) {
	for _, lossless := range []bool{true, false} {
		t.Run(fmt.Sprintf("lossless=%v", lossless), func(t *testing.T) {
			j := start(t)
			e := sh("seq 1 500000 & seq 1 500000 >&2; wait")
			e.Ring = 64 << 10
			if !lossless {
				e.Ring = protocol.MaxRing // large enough to lose nothing while the reader is disconnected
			}
			s, _, err := j.Exec(j.t.Context(), e, &control.AttachOptions{Lossless: lossless, Follow: true})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			done := make(chan struct{})
			go func() {
				defer close(done)
				var got [3]lines
				for at := int64(0); ; {
					c, err := s.Next()
					if err == io.EOF {
						break
					}
					if err != nil || c.Offset != at || c.Lost != 0 {
						t.Errorf("chunk at %d, %d lost, %v; want offset %d", c.Offset, c.Lost, at, err)
						return
					}
					if err := got[c.Stream].add(c.Data); err != nil {
						t.Error(err)
						return
					}
					at += int64(len(c.Data))
					time.Sleep(200 * time.Microsecond) // leaves time for parks
				}
				if got[1].n != 500000 || got[2].n != 500000 {
					t.Errorf("lines = %d and %d, want 500000 each", got[1].n, got[2].n)
				}
			}()
			if parks := j.parkRepeatedly(done, 50); parks < 10 {
				t.Errorf("parks = %d, want more", parks)
			}
			<-done
		})
	}
}

func TestStdinDuringParks(t *testing.T) {
	j := start(t)
	e := protocol.Exec{ID: id.NewExec(), Argv: []string{"sha256sum"}, Stdin: true}
	s, _, err := j.Exec(j.t.Context(), e, &attachLossless)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	data := make([]byte, 24<<20)
	random := rand.NewChaCha8([32]byte{1})
	random.Read(data)

	done := make(chan struct{})
	go func() {
		defer close(done)
		w, err := j.Stdin(j.t.Context(), e.ID)
		if err != nil {
			t.Error(err)
			return
		}
		for left := data; len(left) > 0; {
			n := min(len(left), 1+rand.IntN(300_000))
			if _, err := w.Write(left[:n]); err != nil {
				t.Error(err)
				return
			}
			left = left[n:]
			time.Sleep(rand.N(2 * time.Millisecond))
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	if parks := j.parkRepeatedly(done, 1000); parks < 5 {
		t.Errorf("parks = %d, want more", parks)
	}
	<-done
	if t.Failed() {
		return // the command waits for more
	}
	if got, want := j.collect(s)[protocol.Stdout], fmt.Sprintf("%x  -\n", sha256.Sum256(data)); got != want {
		t.Errorf("input of the command = %q, want %q", got, want)
	}
}

// Keys that are typed during a park reach the command, even if no key follows.
func TestTerminalInputDuringPark(t *testing.T) {
	j := start(t)
	e := protocol.Exec{ID: id.NewExec(), Argv: []string{"cat"}, Stdin: true}
	s, _, err := j.Exec(j.t.Context(), e, &attachLossless)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w, err := j.Stdin(j.t.Context(), e.ID)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		word := fmt.Sprintf("word %d\n", i)
		stopped(t, j, func() { // init does not read it before the park
			done := make(chan error, 2)
			go func() { done <- j.Park(j.t.Context(), parkPatience) }()
			go func() { _, err := io.WriteString(w, word); done <- err }()
			time.Sleep(rand.N(5 * time.Millisecond))
			j.cmd.Process.Signal(syscall.SIGCONT)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			time.Sleep(rand.N(5 * time.Millisecond))
			j.Unpark() // the write ends at the latest after Park
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		})
		j.Unpark()
		got := ""
		for got != word {
			c, err := s.Next()
			if err != nil {
				t.Fatal(err)
			}
			got += string(c.Data)
		}
	}
}

func TestBlockedStdinWriterIsParked(t *testing.T) {
	j := start(t)
	e := sh("read go < " + fifo(t) + "; wc -c")
	e.Stdin = true
	s, _, err := j.Exec(j.t.Context(), e, &attachLossless)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w, err := j.Stdin(j.t.Context(), e.ID)
	if err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := w.Write(make([]byte, 3<<20))
		wrote <- errors.Join(err, w.Close())
	}()
	for range 5 {
		time.Sleep(50 * time.Millisecond)
		ctx, cancel := contextWithTimeout(t, 30*time.Second) // a blocked write would not end
		if err := j.Park(ctx, parkPatience); err != nil {
			t.Fatalf("Park: %v", err)
		}
		cancel()
		if left := openSockets(t, j.cmd.Process.Pid); len(left) > 0 {
			t.Errorf("connections of a parked init = %v, want none", left)
		}
		j.Unpark()
	}
	select {
	case err := <-wrote:
		t.Fatalf("Write before the command reads = %v, want it to block", err)
	default:
	}
	name := strings.TrimSuffix(strings.TrimPrefix(e.Argv[2], "read go < "), "; wc -c")
	if err := os.WriteFile(name, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	if out := j.collect(s)[protocol.Stdout]; out != "3145728\n" {
		t.Errorf("output of wc = %q, want 3145728", out)
	}
}

func fifo(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "fifo")
	if out, err := exec.Command("mkfifo", name).CombinedOutput(); err != nil {
		t.Fatalf("mkfifo: %v: %s", err, out)
	}
	return name
}

// Each command of this load must run exactly once: it appends a byte to its file.
func TestShortCallsDuringParkRunOnce(t *testing.T) {
	j := start(t)
	dir := t.TempDir()
	stop := make(chan struct{})
	var load sync.WaitGroup
	var ran [6]int
	for i := range ran {
		load.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					ran[i] = n
					return
				default:
				}
				e := sh("printf x >> " + dir + "/" + itoa(i))
				if _, _, err := j.Exec(j.t.Context(), e, nil); err != nil {
					t.Errorf("Exec: %v", err)
					return
				}
				if s, err := j.Wait(j.t.Context(), e.ID); err != nil || s.Code != 0 {
					t.Errorf("Wait: %+v, %v", s, err)
					return
				}
				if _, err := j.Write(j.t.Context(), dir+"/f"+itoa(i), strings.NewReader("text"), protocol.WriteOptions{}); err != nil {
					t.Errorf("Write: %v", err)
					return
				}
				if r, _, err := j.Read(j.t.Context(), dir+"/f"+itoa(i), 0, -1); err != nil {
					t.Errorf("Read: %v", err)
					return
				} else if b, err := io.ReadAll(r); err != nil || string(b) != "text" {
					t.Errorf("Read: %q, %v", b, err)
				} else {
					r.Close()
				}
				if err := j.Forget(j.t.Context(), e.ID); err != nil {
					t.Errorf("Forget: %v", err)
				}
			}
		})
	}
	j.parkRepeatedly(nil, 40)
	close(stop)
	load.Wait()
	for i, n := range ran {
		b, err := os.ReadFile(dir + "/" + itoa(i))
		if n == 0 || err != nil || len(b) != n {
			t.Errorf("requested commands = %d, executed = %d, %v", n, len(b), err)
		}
	}
}

func TestStuckUploadPreventsPark(t *testing.T) {
	for _, whose := range []string{"this client's", "another client's"} {
		t.Run(whose, func(t *testing.T) {
			j := start(t)
			uploader := j.Client
			if whose == "another client's" {
				uploader = control.Dial(j.dir + "/init.sock")
			}
			s, _, err := j.Exec(j.t.Context(), sh("echo one; sleep 1; echo two; exec sleep 60"), &attachLossless)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			read, write := io.Pipe()
			name, done := t.TempDir()+"/f", make(chan error, 1)
			go func() {
				_, err := uploader.Write(j.t.Context(), name, read, protocol.WriteOptions{})
				done <- err
			}()
			io.WriteString(write, "first, ")
			if err := j.Park(j.t.Context(), 200*time.Millisecond); !errors.Is(err, fault.Conflict) {
				t.Fatalf("Park during a stuck upload = %v, want conflict", err)
			}
			if _, err := j.Hello(j.t.Context()); err != nil {
				t.Errorf("Hello after the failed Park = %v, want nil", err)
			}
			var out strings.Builder
			for out.Len() < len("one\ntwo\n") {
				c, err := s.Next()
				if err != nil {
					t.Fatal(err)
				}
				out.Write(c.Data)
			}
			if out.String() != "one\ntwo\n" {
				t.Errorf("output %q", out.String())
			}
			io.WriteString(write, "then the rest")
			write.Close()
			if err := <-done; err != nil {
				t.Errorf("upload = %v, want nil", err)
			}
			if b, _ := os.ReadFile(name); string(b) != "first, then the rest" {
				t.Errorf("content = %q", b)
			}
			j.park()
			j.Unpark()
		})
	}
}

func TestWaitAndWatchContinueAfterPark(t *testing.T) {
	j := start(t)
	e := sh("read x; exit 7")
	e.Stdin = true
	if _, _, err := j.Exec(j.t.Context(), e, nil); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		s, err := j.Wait(j.t.Context(), e.ID)
		if err == nil && s.Code != 7 {
			err = fmt.Errorf("status %+v", s)
		}
		waited <- err
	}()
	dir := t.TempDir()
	events, err := j.Watch(j.t.Context(), dir, false)
	if err != nil {
		t.Fatal(err)
	}
	event := func(op, name string) {
		t.Helper()
		for e := range events {
			if e.Op == op {
				if e.Path != filepath.Join(dir, name) {
					t.Errorf("event %s of %s, want %s", op, e.Path, name)
				}
				return
			}
		}
		t.Fatalf("the watch ended before %s of %s", op, name)
	}
	for i := range 10 {
		j.park()
		os.WriteFile(filepath.Join(dir, fmt.Sprint("missed", i)), nil, 0o644)
		j.Unpark()
		event("overflow", "")
		os.WriteFile(filepath.Join(dir, fmt.Sprint("seen", i)), nil, 0o644)
		event("create", fmt.Sprint("seen", i))
	}
	w, err := j.Stdin(j.t.Context(), e.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Error(err)
	}
}

// All clients except the parking one, including clients that do not read, are disconnected and
// reconnect.
func TestOtherClientsReconnectAfterPark(t *testing.T) {
	j := start(t)
	e := sh("seq 1 200000")
	e.Ring = 64 << 10
	own, _, err := j.Exec(j.t.Context(), e, &attachLossless) // from the start: the command waits for this reader
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	other, err := control.Dial(j.dir+"/init.sock").Attach(j.t.Context(), e.ID, attachLossless)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for range 3 {
		time.Sleep(20 * time.Millisecond) // writes are blocked in the middle of frames
		j.park()
		j.Unpark()
	}
	var wg sync.WaitGroup
	for name, s := range map[string]*control.Stream{"own": own, "other": other} {
		wg.Go(func() {
			var l lines
			for {
				c, err := s.Next()
				if err == io.EOF {
					break
				}
				if err == nil {
					err = l.add(c.Data)
				}
				if err != nil || c.Lost > 0 {
					t.Errorf("%s client: %v, %d lost; want no loss", name, err, c.Lost)
					return
				}
			}
			if l.n != 200000 {
				t.Errorf("lines of the %s client = %d, want all", name, l.n)
			}
		})
	}
	wg.Wait()
}

func TestConcurrentParks(t *testing.T) {
	j := start(t)
	clients := []*control.Client{j.Client, control.Dial(j.dir + "/init.sock")}
	var mu sync.Mutex
	var wg sync.WaitGroup
	parked := 0
	for _, c := range clients {
		wg.Go(func() {
			for range 30 {
				switch err := c.Park(j.t.Context(), parkPatience); {
				case err == nil:
					mu.Lock()
					parked++
					mu.Unlock()
				case !errors.Is(err, fault.Conflict):
					t.Errorf("Park = %v, want nil or conflict", err)
				}
				c.Unpark()
			}
		})
	}
	wg.Wait()
	if parked == 0 {
		t.Error("parks = 0, want more")
	}
	if _, err := j.Hello(j.t.Context()); err != nil {
		t.Error(err)
	}
}

func TestParkTwice(t *testing.T) {
	j := start(t)
	j.Unpark()
	j.park()
	j.park()
	ctx, cancel := contextWithTimeout(t, 50*time.Millisecond)
	defer cancel()
	if _, err := j.Hello(ctx); !errors.Is(err, fault.Timeout) {
		t.Errorf("Hello while parked = %v, want a timeout", err)
	}
	began := make(chan error, 1)
	go func() {
		_, err := j.Hello(j.t.Context())
		began <- err
	}()
	j.Unpark()
	if err := <-began; err != nil {
		t.Error(err)
	}
}

func TestParkWithoutInit(t *testing.T) {
	c := control.Dial(filepath.Join(t.TempDir(), "init.sock"))
	if err := c.Park(t.Context(), time.Second); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Park: %v, want unavailable", err)
	}
	if _, err := c.Hello(t.Context()); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Hello after a failed Park = %v, want unavailable at once", err)
	}
}

// A connection without a request does not prevent a park.
func TestSilentConnectionsAreParked(t *testing.T) {
	j := start(t)
	var all []net.Conn
	for _, text := range []string{"", "\x01\x00\x00", "\x01\x00\x00\x10\x00{\"v\":"} {
		c, err := net.Dial("unix", j.dir+"/init.sock")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, text)
		all = append(all, c)
	}
	j.park()
	j.Unpark()
	for _, c := range all {
		if kind, _, err := protocol.NewReader(c).Next(); kind != protocol.FrameParked || err != nil {
			t.Errorf("frame kind %d, %v; want Parked", kind, err)
		}
	}
}

// The jail continues under another socket path, possibly restored from an earlier state.
func TestMovedJail(t *testing.T) {
	j, stranger := start(t), start(t)
	e := sh("echo 12345; exec sleep 60")
	e.Stdin = true
	open := func() (*control.Stream, io.WriteCloser) {
		s, err := j.Attach(j.t.Context(), e.ID, attachLossless)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := s.Next(); err != nil || string(c.Data) != "12345\n" {
			t.Fatalf("output %q, %v", c.Data, err)
		}
		w, err := j.Stdin(j.t.Context(), e.ID)
		if err != nil {
			t.Fatal(err)
		}
		given := w.(interface{ Given() int64 }).Given()
		if _, err := io.WriteString(w, "input"); err != nil {
			t.Fatal(err)
		}
		for now, end := given, time.Now().Add(20*time.Second); now != given+int64(len("input")); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("bytes written to the command = %d, want %d more", now, len("input")) // written by init to the command
			}
			another, err := j.Stdin(j.t.Context(), e.ID)
			if err != nil {
				t.Fatal(err)
			}
			if err := another.(interface{ Leave() error }).Leave(); err != nil {
				t.Fatal(err)
			}
			now = another.(interface{ Given() int64 }).Given()
		}
		return s, w
	}
	if _, _, err := j.Exec(j.t.Context(), e, nil); err != nil {
		t.Fatal(err)
	}
	wants := func(what string, kind fault.Kind, s *control.Stream, w io.WriteCloser, path string) {
		t.Helper()
		j.park()
		j.SetPath(path)
		j.Unpark()
		if c, err := s.Next(); !errors.Is(err, kind) {
			t.Errorf("Next %s = %q, %v; want %v", what, c.Data, err, kind)
		}
		if err := w.Close(); !errors.Is(err, kind) {
			t.Errorf("Write %s = %v, want %v", what, err, kind)
		}
		s.Close()
	}

	s, w := open()
	if err := os.Rename(j.dir+"/init.sock", j.dir+"/moved.sock"); err != nil {
		t.Fatal(err)
	}
	j.SetPath(j.dir + "/moved.sock") // before Park, which must use the new path
	j.park()
	j.Unpark()
	if out := make(chan error, 1); true {
		go func() { _, err := s.Next(); out <- err }()
		if err := w.Close(); err != nil {
			t.Errorf("stdin at another path: %v", err)
		}
		if err := j.Signal(j.t.Context(), e.ID, "KILL", true); err != nil {
			t.Fatal(err)
		}
		if err := <-out; err != io.EOF {
			t.Errorf("output at another path: %v", err)
		}
	}

	e.ID = id.NewExec()
	if _, _, err := j.Exec(j.t.Context(), e, nil); err != nil {
		t.Fatal(err)
	}
	s, w = open()
	wants("of a command that is not known", fault.NotFound, s, w, stranger.dir+"/init.sock")

	j.SetPath(j.dir + "/moved.sock")
	s, w = open()
	// The state of the jail before the command had written or read anything.
	early := e
	early.Argv = []string{"sleep", "60"}
	if _, _, err := stranger.Exec(j.t.Context(), early, nil); err != nil {
		t.Fatal(err)
	}
	wants("of a command as it was before", fault.Conflict, s, w, stranger.dir+"/init.sock")
}

func TestParkAtTheProcessLimit(t *testing.T) {
	enter := cgroup(t, "pids", "pids.max", "40")
	j := startIn(t, t.TempDir(), exec.Command("sh", "-c", enter+`exec "$0"`, os.Args[0]))
	s, _, err := j.Exec(j.t.Context(), sh("while :; do echo tick; done"), &attachLossless)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	crowd := protocol.Exec{ID: id.NewExec(), Argv: []string{"python3", "-c", `
import os, time
while True:
    try:
        if os.fork() == 0: break
    except OSError:
        time.sleep(0.001)
time.sleep(600)
`}}
	if _, _, err := j.Exec(j.t.Context(), crowd, nil); err != nil {
		t.Fatal(err)
	}
	full := false
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, _, err := j.Exec(j.t.Context(), sh("true"), nil); errors.Is(err, fault.Exhausted) {
			full = true
			break
		}
	}
	if !full {
		t.Fatal("the process limit was not reached")
	}
	for range 20 {
		j.park()
		j.Unpark()
		for range 10 {
			if _, err := s.Next(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestParkAtTheMemoryLimit(t *testing.T) {
	enter := cgroup(t, "memory", memoryLimitFile(), "134217728")
	j := startIn(t, t.TempDir(), exec.Command("sh", "-c", enter+`exec "$0"`, os.Args[0]))
	bomb := sh("while :; do python3 -c 'x=[]\nwhile True: x.append(bytearray(1<<20))'; echo boom; done")
	s, _, err := j.Exec(j.t.Context(), bomb, &attachLossless)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 5 { // memory is mostly full, and briefly free after each line
		if _, err := s.Next(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(100 * time.Millisecond))
		j.park()
		j.Unpark()
	}
}

// The timeout of a command does not run while the jail is parked.
func TestTimeoutIsStoppedWhileParked(t *testing.T) {
	j := start(t)
	e := sh("exec sleep 60")
	e.Timeout = 4 * time.Second // long enough to park within it on a busy machine
	began := time.Now()
	if _, _, err := j.Exec(j.t.Context(), e, nil); err != nil {
		t.Fatal(err)
	}
	j.park()
	time.Sleep(time.Second)
	j.Unpark()
	if s, err := j.Wait(j.t.Context(), e.ID); err != nil || !s.TimedOut {
		t.Errorf("status %+v, %v; want timed out", s, err)
	}
	if took := time.Since(began); took < e.Timeout+time.Second {
		t.Errorf("timed out after %v, want %v and the second for which it was parked", took, e.Timeout)
	}
}

// The position of an interrupted reader is retained as long as the jail is parked.
func TestReaderPositionIsKeptWhileParked(t *testing.T) {
	j := start(t, "TEST_INIT_GRACE=2s")
	e := sh("seq 1 100000")
	e.Ring = 64 << 10
	s, _, err := j.Exec(j.t.Context(), e, &attachLossless)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var l lines
	for i := 0; ; i++ {
		if i == 1 {
			j.park()
			time.Sleep(3 * time.Second)
			j.Unpark()
		}
		c, err := s.Next()
		if err == io.EOF {
			break
		}
		if err != nil || c.Lost > 0 {
			t.Fatalf("%v, %d lost", err, c.Lost)
		}
		if err := l.add(c.Data); err != nil {
			t.Fatal(err)
		}
	}
	if l.n != 100000 {
		t.Errorf("lines = %d, want 100000", l.n)
	}
}

func TestParkCancelled(t *testing.T) {
	j := start(t)
	read, write := io.Pipe()
	done := make(chan error, 1)
	name := t.TempDir() + "/f"
	go func() {
		_, err := control.Dial(j.dir+"/init.sock").Write(j.t.Context(), name, read, protocol.WriteOptions{})
		done <- err
	}()
	io.WriteString(write, "x")
	ctx, cancel := context.WithCancel(j.t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if err := j.Park(ctx, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("Park = %v, want cancelled", err)
	}
	if _, err := j.Hello(j.t.Context()); err != nil {
		t.Errorf("Hello after that: %v", err)
	}
	write.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	j.park()
	j.Unpark()
}
