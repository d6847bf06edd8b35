package test_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"
)

// escapes are shell lines for root in the jail. Each prints "got" and its result if it succeeds;
// none may succeed.
var escapes = map[string]string{
	"the host's passwords":    `for r in / /proc/1/root/ /proc/self/root/ /proc/1/cwd/ /../../; do grep -q "^root:[^*!:]" ${r}etc/shadow && echo got $r; done`,
	"the host's secret":       `for r in "" /proc/1/root /proc/self/root /proc/*/root; do cat $r$SECRET_FILE && echo got $r; done`,
	"the daemon's socket":     `ls $DATA && echo got $DATA; for r in "" /proc/1/root; do [ -S $r$DATA/glasshouse.sock ] && echo got $r; done`,
	"another's environment":   `cat /proc/*/environ | grep -a "HOST_SECRET" && echo got`,
	"another's memory":        `for p in /proc/[0-9]*; do grep -qa "[i]n the neighbour's memory" $p/environ $p/cmdline && echo got $p; done`,
	"processes of others":     `n=$(ls -d /proc/[0-9]* | wc -l); [ $n -gt 8 ] && echo got $n`,
	"a device of a disk":      `mknod /dev/disk b 7 0 && echo got; mknod /root/disk b 254 0 && echo got; dd if=/dev/loop0 count=1 && echo got`,
	"the kernel's memory":     `mknod /root/mem c 1 1 && echo got; head -c 1 /dev/mem && echo got; head -c 1 /proc/kcore && echo got`,
	"namespaces of its own":   `for n in U m n p i u C; do unshare -$n true && echo got $n; done`,
	"namespaces of others":    `nsenter -t 1 -n true && nsenter -t 1 -m ls $DATA && echo got`,
	"the kernel's settings":   `echo x > /proc/sys/kernel/core_pattern && echo got; echo 1 > /proc/sys/vm/drop_caches && echo got; echo pwned > /proc/sys/kernel/hostname && echo got`,
	"the kernel's keys":       `echo h > /proc/sysrq-trigger && echo got`,
	"the kernel's log":        `dd if=/dev/kmsg count=1 && echo got; dd if=/proc/kmsg count=1 && echo got`,
	"mounts":                  `mount -t tmpfs none /mnt && echo got; mount -t proc none /mnt && echo got; mount --bind / /mnt && echo got; mount -o remount,rw /sys && echo got`,
	"the mask over /proc":     `umount /proc/kcore && echo got; umount /proc && echo got`,
	"cgroups":                 `find / -name release_agent 2>/dev/null | grep . && echo got; mkdir /sys/fs/cgroup/own && echo got`,
	"the hardware":            `echo 1 > /sys/class/net/lo/mtu && echo got; echo mem > /sys/power/state && echo got`,
	"a module":                `: > /root/m.ko; echo got > /sys/module/own && echo got`,
	"its own limits":          `echo 0 > /proc/self/oom_score_adj && [ $(cat /proc/self/oom_score_adj) -lt 0 ] && echo got; ulimit -n 10000000 && echo got`,
	"init's socket for users": `[ -w /.glasshouse/init ] && echo > /.glasshouse/init && echo got`,
}

func TestRootCannotEscape(t *testing.T) {
	t.Setenv("HOST_SECRET", "of the daemon's environment")
	h := open(t, "")
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("the host's"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, backend := range []string{"oci", "bwrap"} {
		neighbour := h.running(wire.CreateJail{Backend: backend})
		if _, err := h.Exec(t.Context(), neighbour.ID, wire.ExecRequest{Argv: []string{"sleep", "1000"}, Env: map[string]string{"A": "in the neighbour's memory"}, Detach: true}); err != nil {
			t.Fatal(err)
		}
		j := h.running(wire.CreateJail{Backend: backend, Env: map[string]string{"SECRET_FILE": secret, "DATA": h.data}})
		for what, line := range escapes {
			if got := h.sh(j.ID, "bash -c '{ "+strings.ReplaceAll(line, "'", `'\''`)+"; } 2>/dev/null' | grep '^got'"); got != "" {
				t.Errorf("%s: escape by %s succeeded: %q", backend, what, got)
			}
		}
		if got := h.sh(j.ID, "cp $(command -v id) /id && chmod 6755 /id && stat -c %a /id"); got != "6755" {
			t.Errorf("%s: mode of a set-user-ID program = %q, want 6755", backend, got)
		}
		x, err := h.Exec(t.Context(), j.ID, wire.ExecRequest{Argv: []string{"/id", "-u"}, User: "1000:1000"})
		if err != nil || strings.TrimSpace(x.Stdout) != "1000" {
			t.Errorf("%s: set-user-ID program run by a user printed %q %q, %v; want 1000", backend, x.Stdout, x.Stderr, err)
		}
		if got := h.sh(neighbour.ID, "echo fine"); got != "fine" {
			t.Errorf("%s: after the attempts the neighbour printed %q, want fine", backend, got)
		}
	}
}

func TestListManyFilesInPages(t *testing.T) {
	h := open(t, "")
	j := h.running(wire.CreateJail{Limits: wire.Limits{DiskMB: 4096}})
	tens := 2
	if thorough {
		tens = 10
	}
	n, end := 10_000*tens, fmt.Sprintf("f%d9999", tens-1)
	h.sh(j.ID, fmt.Sprintf(`mkdir /many && cd /many && for i in $(seq 0 %d); do touch $(seq -f "f$i%%04.0f" 0 9999); done`, tens-1))
	before := h.rss()
	got := 0
	last := ""
	for f, err := range h.Files(t.Context(), j.ID, "/many") {
		if err != nil {
			t.Fatal(err)
		}
		if f.Name <= last {
			t.Fatalf("%s is listed after %s", f.Name, last)
		}
		last = f.Name
		got++
	}
	if got != n || last != end {
		t.Errorf("got %d files, the last %s; want %d", got, last, n)
	}
	if grown := h.rss() - before; grown > 64<<20 {
		t.Errorf("daemon memory grew by %d MiB, want at most 64", grown>>20)
	}
}

// rss returns the resident memory of the daemon.
func (h *daemonHarness) rss() int64 {
	h.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.cmd.Process.Pid))
	if err != nil {
		h.Fatal(err)
	}
	var kb int64
	for line := range strings.Lines(string(data)) {
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kb); err == nil {
			return kb << 10
		}
	}
	h.Fatal("no VmRSS")
	return 0
}

func TestGigabyteOfOutputIsBounded(t *testing.T) {
	h := open(t, "")
	const size = 1 << 30
	j := h.running(wire.CreateJail{Limits: wire.Limits{MemoryMB: 64}})
	x, err := h.Exec(t.Context(), j.ID, wire.ExecRequest{Cmd: "tr '\\0' x < /dev/zero | head -c 1073741824; echo end", Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	before := h.rss()
	var peak int64
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		peak = max(peak, h.rss())
		if got := h.sh(j.ID, "echo answers"); got != "answers" { // concurrently
			t.Fatalf("during the output the jail printed %q, want answers", got)
		}
		x, err = h.ExecResult(t.Context(), j.ID, x.ID)
		if err != nil {
			t.Fatal(err)
		}
		if !x.Running {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("after two minutes the command has written only %d bytes", x.StdoutBytes)
		}
	}
	if x.StdoutBytes != size+4 || x.ExitCode == nil || *x.ExitCode != 0 || !x.Truncated || !strings.HasSuffix(x.Stdout, "end\n") {
		t.Errorf("command wrote %d bytes, exit code %v, truncated %v, end %q", x.StdoutBytes, x.ExitCode, x.Truncated, x.Stdout[max(0, len(x.Stdout)-10):])
	}
	if peak-before > 64<<20 {
		t.Errorf("daemon memory grew by %d MiB, want at most 64", (peak-before)>>20)
	}
	if got, err := h.Jail(t.Context(), j.ID); err != nil || got.Usage == nil || got.Usage.OOMKills != 0 || got.Usage.MemoryBytes > 32<<20 {
		t.Errorf("jail usage = %+v, %v", got.Usage, err)
	}
}

// A screen is a terminal session and its output.
type screen struct {
	*testing.T
	term *client.Terminal
	seen strings.Builder
}

func (h *daemonHarness) screen(j id.Jail, argv ...string) *screen {
	h.Helper()
	term, err := h.Terminal(h.Context(), j, client.TerminalOptions{Argv: argv, Size: wire.Size{Cols: 90, Rows: 25}})
	if err != nil {
		h.Fatal(err)
	}
	return &screen{T: h.T, term: term}
}

// shows waits until the screen shows a text that it has not shown since the last call.
func (s *screen) shows(want string) {
	s.Helper()
	defer time.AfterFunc(20*time.Second, func() { s.term.Close() }).Stop()
	buf := make([]byte, 4096)
	for !strings.Contains(s.seen.String(), want) {
		n, err := s.term.Read(buf)
		s.seen.Write(buf[:n])
		if err != nil {
			text := s.seen.String()
			s.Fatalf("%v, waiting for %q after %q", err, want, text[max(0, len(text)-300):])
		}
	}
	s.seen.Reset()
}

func (s *screen) types(text string) { io.WriteString(s.term, text) }

func (s *screen) ends(code int) {
	s.Helper()
	defer time.AfterFunc(20*time.Second, func() { s.term.Close() }).Stop()
	io.Copy(io.Discard, s.term)
	if got := s.term.Exec().ExitCode; got == nil || *got != code {
		s.Errorf("exit code %v, want %d", got, code)
	}
}

func TestFullScreenPrograms(t *testing.T) {
	h := open(t, "")
	j := h.running(wire.CreateJail{})
	// A full-screen program queries the cursor position and reads the response byte by byte,
	// without echo.
	s := h.screen(j.ID, "bash", "--norc", "-c", `shopt -s checkwinsize; trap 'sleep 0.01; echo "now ${LINES}x$COLUMNS"; exit 4' WINCH; printf '\033[2J\033[6n'; IFS= read -rsd R at; echo "at ${at#*[}"; while :; do sleep 0.05; (:); done`)
	s.shows("\x1b[6n")
	s.types("\x1b[5;7R")
	s.shows("at 5;7")
	if err := s.term.Resize(wire.Size{Cols: 91, Rows: 26}); err != nil {
		t.Fatal(err)
	}
	s.shows("now 26x91")
	s.ends(4)

	// Editors of the host, if installed.
	host := h.running(wire.CreateJail{Backend: "bwrap", Rootfs: wire.Rootfs{Host: true}})
	if _, err := exec.LookPath("top"); err == nil {
		s := h.screen(host.ID, "env", "TERM=xterm", "top", "-d", "0.2")
		s.shows("PID")
		s.types("q")
		s.ends(0)
	}
	for _, vi := range []string{"vim", "vi"} {
		if _, err := exec.LookPath(vi); err != nil {
			continue
		}
		s := h.screen(host.ID, "env", "TERM=xterm", vi, "/root/file")
		s.shows("file")
		s.types("ityped\x1b:wq\r")
		s.ends(0)
		if got := h.read(host.ID, "/root/file"); got != "typed\n" {
			t.Errorf("%s wrote %q, want typed", vi, got)
		}
		break
	}
}

func TestThirdInterruptEndsCommandLine(t *testing.T) {
	h := open(t, "")
	// bash treats an interrupt as handled, and runs no trap, if the foreground program ends at
	// that moment.
	cmd := exec.Command(h.bin, "run", "--no-workspace", "--", "bash", "-c", "trap 'echo deaf' INT; echo up; while :; do :; done")
	cmd.Env = append(os.Environ(), "GLASSHOUSE_DATA="+h.data)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	heard := make([]byte, 5)
	for _, want := range []string{"up\n", "deaf\n", "deaf\n"} {
		if _, err := io.ReadFull(out, heard[:len(want)]); err != nil || string(heard[:len(want)]) != want {
			t.Errorf("read %q, %v; want %q", heard[:len(want)], err, want)
		}
		cmd.Process.Signal(syscall.SIGINT)
	}
	ended := make(chan struct{})
	go func() { io.Copy(io.Discard, out); cmd.Wait(); close(ended) }()
	for range 150 {
		select {
		case <-ended:
			return
		case <-time.After(200 * time.Millisecond):
			cmd.Process.Signal(syscall.SIGINT)
		}
	}
	cmd.Process.Kill()
	t.Error("the command line still runs after 150 interrupts")
	<-ended
}
