package interpreter

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// served is the program, run by this host's python3 at a port of its own.
func served(t *testing.T) (url string) {
	t.Helper()
	url, _ = started(t)
	return url
}

func started(t *testing.T) (url string, p *os.Process) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3")
	}
	cmd := exec.Command(python, "-c", boot, "serve", "0")
	cmd.Dir = t.TempDir()
	cmd.Stdin = strings.NewReader(program())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // its contexts end when it does
		cmd.Process.Kill()
		cmd.Wait()
	})
	var port int
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	} else if _, err := fmt.Sscanf(line, "ready %d\n", &port); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return fmt.Sprint("http://127.0.0.1:", port), cmd.Process
}

// executed runs code and returns what it said, in short.
func executed(t *testing.T, url, code string) string {
	t.Helper()
	return executedIn(t, url, "python", code)
}

func executedIn(t *testing.T, url, language, code string) string {
	t.Helper()
	body, err := json.Marshal(map[string]string{"code": code, "language": language})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(url+"/execute", "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var said []string
	var last string
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		var m struct{ Type, Text, Name, Value string }
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
		switch m.Type {
		case "stdout", "stderr", "result":
			if m.Type == last && m.Type != "result" { // however it was cut
				said[len(said)-1] += m.Text
				continue
			}
			said = append(said, m.Type+" "+m.Text)
		case "error":
			said = append(said, m.Name)
		}
		last = m.Type
	}
	return strings.Join(said, "|")
}

func TestCodeIsRunAsInANotebook(t *testing.T) {
	url := served(t)
	for _, try := range []struct{ code, want string }{
		{"x = 3\nx", "result 3"},
		{"x;", ""},
		{"x; # quietly", ""},
		{"None", ""},
		{"", ""},
		{"# nothing", ""},
		{"  if x:\n    y = 4\n  y", "result 4"},
		{"_ + 1", "result 5"},
		{"Out[1], In[1]", `result (3, 'x = 3\nx')`},
		{"%cd /\n!echo {x} $x", "stdout /\n3 3\n"},
		{"names = !echo a; echo b\nnames", "result ['a', 'b']"},
		{"%%bash\necho in bash", "stdout in bash\n"},
		{"%nosuch", "UsageError"},
		{"'''\n!not a command\n'''", `result \n!not a command\n`},
		{"print('before'); display(1); print('after')", "stdout before\n|result 1|stdout after\n"},
		{"{'a': 'x' * 60, 'b': ['y' * 30]}", "result {'a': '" + strings.Repeat("x", 60) + "',\n 'b': ['" + strings.Repeat("y", 30) + "']}"},
		{"l = [1]; l.append(l); l", "result [1, [...]]"},
		{"{3, 1, 2}", "result {1, 2, 3}"},
		{"class C:\n  def __repr__(self): raise ValueError\nC()", "result <C that cannot be shown: ValueError>"},
		{"class M:\n  def __getattr__(self, n): return lambda *a, **k: 'mock'\n  def __repr__(self): return 'M'\nM()", "result M"},
		{"import pickle\nclass P: pass\npickle.loads(pickle.dumps(P())).__class__.__name__", "result P"},
		{"import asyncio\nasync def f(): return 7\nawait f()", "result 7"},
		{"class B(BaseException): pass\nraise B", "B"},
	} {
		if got := executed(t, url, try.code); got != try.want {
			t.Errorf("%q:\n got %q\nwant %q", try.code, got, try.want)
		}
	}
}

// Whoever kills the program leaves no context behind that works for nobody.
func TestContextsEndWithTheProgram(t *testing.T) {
	for language, code := range map[string]string{
		"python":     "import threading, time, os\ndef tick():\n  while True: print(1, flush=True); time.sleep(0.01)\nthreading.Thread(target=tick, daemon=True).start()\nos.getpid()",
		"javascript": "setInterval(() => console.log(1), 10); process.pid",
		"bash":       "echo $$",
	} {
		t.Run(language, func(t *testing.T) {
			if language == "javascript" {
				if _, err := exec.LookPath("node"); err != nil {
					t.Skip(err)
				}
			}
			url, program := started(t)
			got := executedIn(t, url, language, code)
			pid, err := strconv.Atoi(regexp.MustCompile(`\d{2,}`).FindString(strings.ReplaceAll(got, "stdout 1\n", "")))
			if err != nil {
				t.Fatalf("%q: %v", got, err)
			}
			program.Kill()
			for end := time.Now().Add(20 * time.Second); syscall.Kill(pid, 0) == nil && !isZombie(pid); time.Sleep(20 * time.Millisecond) {
				if time.Now().After(end) {
					syscall.Kill(pid, syscall.SIGKILL)
					t.Fatalf("its process %d is still there", pid)
				}
			}
		})
	}
}

// isZombie reports whether a process has ended, and only nobody asked how.
func isZombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

// What code does to its own context is its own loss: the next finds a new one.
func TestAContextThatIsBrokenBeginsAnew(t *testing.T) {
	url := served(t)
	for _, code := range []string{
		"import os; os._exit(0)",
		"import os; os.kill(os.getpid(), 11)",
		"import os; os.closerange(3, 1000)",
		"import os\nfor fd in range(3, 100):\n  try: os.write(fd, b'nonsense\\n')\n  except OSError: pass\nimport time; time.sleep(60)",
		"import os\nfor fd in range(3, 100):\n  try: os.write(fd, b'[1]\\n')\n  except OSError: pass\nimport time; time.sleep(60)",
	} {
		if got := executed(t, url, code); !strings.HasSuffix(got, "UnexpectedEndOfExecution") {
			t.Errorf("%q: %q", code, got)
		}
		if got := executed(t, url, "'still there'"); got != "result still there" {
			t.Errorf("after %q: %q", code, got)
		}
	}
	if got := executed(t, url, "import os\nif os.fork(): os.wait()\nelse: print('child')\n'parent'"); !strings.HasSuffix(got, "result parent") || strings.Count(got, "result") != 1 {
		t.Errorf("a child that comes to the end of a cell: %q", got)
	}
}

func TestWhatIsNoRequestIsRefused(t *testing.T) {
	url := served(t)
	for _, try := range []struct{ request, want string }{
		{"POST /execute HTTP/1.1\r\nContent-Length: 3\r\n\r\n{1}", "422"},
		{"POST /execute HTTP/1.1\r\nContent-Length: 4\r\n\r\nnull", "422"},
		{"POST /execute HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", "422"},
		{"POST /execute HTTP/1.1\r\nContent-Length: 10\r\n\r\n{\"code\":1}", "422"},
		{"POST /execute HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "413"},
		{"POST /execute HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", "413"},
		{"POST /execute HTTP/1.1\r\nContent-Length: x\r\n\r\n", "413"},
		{"POST /execute HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "400"},
		{"POST /execute HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n", "413"},
		{"POST /execute HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n", "413"},
		{"POST /contexts HTTP/1.1\r\nContent-Length: 16\r\n\r\n{\"language\":\"r\"}", "500"},
		{"GET /contexts/x/y/z HTTP/1.1\r\n\r\n", "404"},
		{"GET /execute HTTP/1.1\r\n\r\n", "404"},
		{"nonsense\r\n\r\n", ""},
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, try.request); err != nil {
			t.Fatal(err)
		}
		line, _ := bufio.NewReader(conn).ReadString('\n')
		if !strings.Contains(line, " "+try.want) && try.want != "" {
			t.Errorf("%q: %q, want %s", try.request, line, try.want)
		}
		conn.Close()
	}
	if got := executed(t, url, "1"); got != "result 1" {
		t.Errorf("after all that: %q", got)
	}
}
