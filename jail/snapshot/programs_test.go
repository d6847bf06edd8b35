package snapshot_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/protocol"
)

// A program is a typical program in a jail, with a check that it has kept its state after a
// snapshot.
type program struct {
	name  string
	needs string                              // required program of the host
	start func(h *harness, j id.Jail) id.Exec // starts it and brings it to the state to preserve
	check func(h *harness, j id.Jail, x id.Exec)
}

var programs = []program{
	{"a Go program with threads", "go", func(h *harness, j id.Jail) id.Exec {
		h.install(j, "./testdata/threads", "/tmp/threads")
		x := h.background(j, "exec /tmp/threads").ID
		h.checkCounting(j, 50)
		return x
	}, func(h *harness, j id.Jail, _ id.Exec) {
		if n := h.checkCounting(j, h.count(j)); n < 50 {
			h.t.Errorf("%s: the program restarted at %d", j, n)
		}
	}},
	{"a python REPL with state", "python3", func(h *harness, j id.Jail) id.Exec {
		return h.talk(j, "python3 -iq", "x = 41")
	}, func(h *harness, j id.Jail, x id.Exec) { h.answers(j, x, "print('it is', x + 1)", "it is 42") }},
	{"node with a timer", "node", func(h *harness, j id.Jail) id.Exec {
		x := h.background(j, `exec node -e 'let n=0; setInterval(() => require("fs").writeFileSync("/tmp/count", ""+ ++n), 20)'`).ID
		h.checkCounting(j, 5)
		return x
	}, func(h *harness, j id.Jail, _ id.Exec) { h.checkCounting(j, h.count(j)) }},
	{"a server that listens and remembers", "node", func(h *harness, j id.Jail) id.Exec {
		x := h.background(j, `exec node -e 'let n=0; require("http").createServer((q,r)=>r.end("visit "+ ++n)).listen(8000,()=>require("fs").writeFileSync("/tmp/up","1"))'`).ID
		h.eventually(j, "cat /tmp/up", "1")
		h.eventually(j, visit, "visit 1")
		return x
	}, func(h *harness, j id.Jail, _ id.Exec) { h.eventually(j, visit, "visit 2") }},
	{"two processes on a unix socket", "node", func(h *harness, j id.Jail) id.Exec {
		h.background(j, `exec node -e 'require("net").createServer(c=>c.on("data",d=>c.write(d))).listen("/tmp/s",()=>require("fs").writeFileSync("/tmp/up","1"))'`)
		h.eventually(j, "cat /tmp/up", "1")
		x := h.background(j, `exec node -e 'let n=0,c=require("net").connect("/tmp/s",()=>c.write("x")); c.on("data",()=>{require("fs").writeFileSync("/tmp/count",""+ ++n); setTimeout(()=>c.write("x"),10)})'`).ID
		h.checkCounting(j, 5)
		return x
	}, func(h *harness, j id.Jail, _ id.Exec) { h.checkCounting(j, h.count(j)) }},
	{"a file that is watched", "node", func(h *harness, j id.Jail) id.Exec {
		x := h.background(j, `mkdir /tmp/w; exec node -e 'const fs=require("fs"); fs.watch("/tmp/w",(e,f)=>fs.appendFileSync("/tmp/seen",f+"\n")); fs.writeFileSync("/tmp/up","1")'`).ID
		h.eventually(j, "cat /tmp/up", "1")
		return x
	}, func(h *harness, j id.Jail, _ id.Exec) {
		h.sh(j, "echo x > /tmp/w/new-file")
		h.eventually(j, "sort -u /tmp/seen", "new-file")
	}},
	{"sqlite in WAL mode in a transaction", "sqlite3", func(h *harness, j id.Jail) id.Exec {
		return h.talk(j, "sqlite3 /tmp/db", "PRAGMA journal_mode=WAL; CREATE TABLE t(n); INSERT INTO t VALUES (1); BEGIN; INSERT INTO t VALUES (2);")
	}, func(h *harness, j id.Jail, x id.Exec) {
		h.answers(j, x, "SELECT 'rows ' || count(*) FROM t; COMMIT; PRAGMA integrity_check;", "rows 2\nok")
		if got := strings.TrimSpace(h.sh(j, `sqlite3 /tmp/db 'SELECT sum(n) FROM t'`)); got != "3" {
			h.t.Errorf("%s: the database contains %q", j, got)
		}
	}},
	{"tmux", "tmux", func(h *harness, j id.Jail) id.Exec {
		h.sh(j, `export TERM=xterm; tmux -L t -f /dev/null new-session -d -s s bash; tmux -L t send-keys -t s 'v=kept' Enter`)
		return ""
	}, func(h *harness, j id.Jail, _ id.Exec) {
		h.sh(j, `tmux -L t send-keys -t s 'echo [$v]' Enter`)
		h.eventually(j, `tmux -L t capture-pane -p -t s | grep -x '\[kept\]'`, "[kept]")
	}},
	{"a pipeline", "sh", func(h *harness, j id.Jail) id.Exec {
		x := h.background(j, `i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done | sed -u 's/$/ /' | while read n; do echo $n > /tmp/count; done`).ID
		h.checkCounting(j, 5)
		return x
	}, func(h *harness, j id.Jail, _ id.Exec) { h.checkCounting(j, h.count(j)) }},
	{"a file deleted while open", "sh", func(h *harness, j id.Jail) id.Exec {
		x := h.background(j, `exec 3<>/tmp/gone; echo still here >&3; rm /tmp/gone; touch /tmp/up; while :; do sleep 0.02; [ -e /tmp/ask ] && cat /proc/$$/fd/3 > /tmp/answer; done`).ID
		h.eventually(j, "ls /tmp/up", "/tmp/up")
		return x
	}, func(h *harness, j id.Jail, _ id.Exec) {
		h.sh(j, "touch /tmp/ask")
		h.eventually(j, "cat /tmp/answer", "still here")
	}},
	{"a zombie", "sh", func(h *harness, j id.Jail) id.Exec {
		x := h.background(j, `sleep 0.05 & exec sleep 1000`).ID
		h.eventually(j, zombies, "1")
		return x
	}, func(h *harness, j id.Jail, _ id.Exec) { h.eventually(j, zombies, "1") }},
	{"memory shared by two processes", "python3", func(h *harness, j id.Jail) id.Exec {
		x := h.background(j, `exec python3 -c '
import mmap, os, struct, time
m = mmap.mmap(os.open("/dev/shm/m", os.O_CREAT|os.O_RDWR), 4096) if os.ftruncate(os.open("/dev/shm/m", os.O_CREAT|os.O_RDWR), 4096) is None else 0
if os.fork() == 0:
    while True:
        m[:8] = struct.pack("q", struct.unpack("q", m[:8])[0] + 1)
        time.sleep(0.01)
while True:
    open("/tmp/count", "w").write(str(struct.unpack("q", m[:8])[0]))
    time.sleep(0.01)'`).ID
		h.checkCounting(j, 5)
		return x
	}, func(h *harness, j id.Jail, _ id.Exec) { h.checkCounting(j, h.count(j)) }},
}

const (
	visit   = `exec 3<>/dev/tcp/127.0.0.1/8000; printf 'GET / HTTP/1.0\r\n\r\n' >&3; grep -o 'visit [0-9]*' <&3`
	zombies = `grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l`
)

// TestProgramsResumeAfterSnapshot takes a snapshot of each program and checks it in the jail,
// in two branches, and in the jail again.
func TestProgramsResumeAfterSnapshot(t *testing.T) {
	for n, p := range programs {
		for m, how := range layerings {
			if testing.Short() && n%len(layerings) != m {
				continue // one layering of each program
			}
			t.Run(p.name+"/"+string(how), func(t *testing.T) {
				if _, err := exec.LookPath(p.needs); err != nil {
					t.Skip("needs ", p.needs)
				}
				h := newHarness(t)
				h.root = "/" // all programs of this host
				h.reopen()
				j := h.running(func(s *jail.Spec) { s.Limits.MaxPIDs = 512 })
				x := p.start(h, j)
				s := h.take(j, how)
				kids := h.branch(s.ID, 2)
				for _, k := range kids {
					p.check(h, k, x)
				}
				p.check(h, j, x)
			})
		}
	}
}

// install builds a test program and copies it into a jail.
func (h *harness) install(j id.Jail, pkg, at string) {
	h.t.Helper()
	bin := filepath.Join(h.t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-o", bin, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		h.t.Fatalf("%v: %s", err, out)
	}
	f, err := os.Open(bin)
	if err != nil {
		h.t.Fatal(err)
	}
	defer f.Close()
	files, err := h.jails.Files(h.t.Context(), j)
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := files.Write(h.t.Context(), at, f, protocol.WriteOptions{Mode: 0o755}); err != nil {
		h.t.Fatal(err)
	}
}

// talk starts a command and writes lines to it.
func (h *harness) talk(j id.Jail, line, say string) id.Exec {
	h.t.Helper()
	_, st, err := h.jails.Exec(h.t.Context(), j, jail.ExecRequest{Argv: []string{"bash", "-c", "exec " + line + " 2>&1"}, Stdin: true}, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	h.say(j, st.ID, say)
	return st.ID
}

func (h *harness) say(j id.Jail, x id.Exec, line string) {
	h.t.Helper()
	w, err := h.jails.Stdin(h.t.Context(), j, x)
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := fmt.Fprintln(w, line); err != nil {
		h.t.Fatal(err)
	}
	if err := w.(interface{ Leave() error }).Leave(); err != nil {
		h.t.Fatal(err)
	}
}

// answers writes a line to a command and waits for its response.
func (h *harness) answers(j id.Jail, x id.Exec, line, want string) {
	h.t.Helper()
	h.say(j, x, line)
	var got string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		got = ""
		if _, err := h.jails.Output(h.t.Context(), j, x, func(c protocol.Chunk) error {
			got += string(c.Data)
			return nil
		}); err != nil {
			h.t.Fatal(err)
		}
		if strings.Contains(got, want) {
			return
		}
	}
	h.t.Errorf("%s: response to %q = %q, want %q", j, line, got, want)
}

// eventually waits until a shell line prints the expected output.
func (h *harness) eventually(j id.Jail, line, want string) {
	h.t.Helper()
	var got string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(30 * time.Millisecond) {
		got, _ = h.try(j, line)
		if strings.TrimSpace(got) == want {
			return
		}
	}
	h.t.Errorf("%s: %q prints %q, want %q", j, line, got, want)
}
