package interpreter

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// served runs the program with this host's python3 on its own port.
func served(t *testing.T) (url string) {
	t.Helper()
	url, _ = started(t)
	return url
}

func started(t *testing.T, env ...string) (url string, p *os.Process) {
	t.Helper()
	return startedWith(t, func(cmd *exec.Cmd) { cmd.Env = append(os.Environ(), env...) })
}

// startedWith changes how python3 is started.
func startedWith(t *testing.T, change func(*exec.Cmd)) (url string, p *os.Process) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	cmd := exec.Command(python, "-c", boot, "serve", "0")
	cmd.Dir = t.TempDir()
	change(cmd)
	cmd.Stdin = strings.NewReader(program())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // its contexts end with it
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

// executed runs code and returns a summary of its output.
func executed(t *testing.T, url, code string) string {
	t.Helper()
	return executedIn(t, url, "python", code)
}

func executedIn(t *testing.T, url, language, code string) string {
	t.Helper()
	var said []string
	var last string
	for _, line := range itemsOf(t, url, language, code) {
		var m struct{ Type, Text, Name, Value string }
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		switch m.Type {
		case "stdout", "stderr", "result":
			if m.Type == last && m.Type != "result" { // output may arrive in several parts
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

// itemsOf runs code and returns the lines of the response.
func itemsOf(t *testing.T, url, language, code string) (items []json.RawMessage) {
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
	for d := json.NewDecoder(resp.Body); ; {
		var item json.RawMessage
		if err := d.Decode(&item); err == io.EOF {
			return items
		} else if err != nil {
			t.Fatal(err)
		}
		items = append(items, item)
	}
}

func TestNotebookSemantics(t *testing.T) {
	url, dir := served(t), t.TempDir()
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
		{"%%capture got\nimport sys\nprint('out'); print('err', file=sys.stderr); display(7)\n8", ""},
		{"got.stdout, got.stderr, len(got.outputs)", `result ('out\n', 'err\n', 2)`},
		{"got.show()", "stdout out\n|stderr err\n|result 7|result 8"},
		{"import os\nhome = os.getcwd()\n%cd " + dir + "\n%pwd", "stdout " + dir + "\n|result " + dir},
		{"%%writefile of.py\nimport sys\nran = sys.argv[1:]\n", "stdout Writing of.py\n"},
		{"%%writefile -a of.py\nran += ['more']\n", "stdout Appending to of.py\n"},
		{"%run of.py 'a b' c\nran", "result ['a b', 'c', 'more']"},
		{"%%timeit -n 1 -r 2 y = 1\ny += 1", ""},
		{"%ls of.py", "stdout of.py\n"},
		{"%%html\n<b>", "result <IPython.core.display.HTML object>"},
		{"one = 1\n%who_ls\n'one' in get_ipython().run_line_magic('who_ls', '')", "result True"},
		{"import sys\nfor i in range(3): print(i); print(-i, file=sys.stderr)", "stdout 0\n|stderr 0\n|stdout 1\n|stderr -1\n|stdout 2\n|stderr -2\n"},
		{"%reset -f\n'one' in dir(), 'In' in dir()", "result (False, True)"},
	} {
		if got := executed(t, url, try.code); got != try.want && !(strings.HasPrefix(try.code, "%%timeit") && strings.Contains(got, "per loop")) {
			t.Errorf("%q:\n got %q\nwant %q", try.code, got, try.want)
		}
	}
}

// TestResultFormats runs code with packages that imitate matplotlib, pandas and PIL; the test of
// E2B's own package uses the real ones.
func TestResultFormats(t *testing.T) {
	packages, err := filepath.Abs("testdata/packages")
	if err != nil {
		t.Fatal(err)
	}
	url, _ := started(t, "PYTHONPATH="+packages)
	png := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	picture := png("\x89PNG\r\n\x1a\nof 1")
	const draw = "import datetime, matplotlib.pyplot as plt\nfrom matplotlib import dates\nfrom matplotlib.artists import *\nfrom matplotlib.figure import *\nax = plt.figure().axes[0]\n"
	for _, try := range []struct {
		code string
		want []string // fields of the results, in JSON
	}{
		{draw + "ax.lines.append(Line2D([1, 2, 3], [1, 4, 9]))\nplt.show()\nplt.figure(); 1", []string{
			`{"png": "` + picture + `", "text": "<Figure size 640x480 with 1 Axes>", "is_main_result": false, "chart": {"type": "line", "title": null,
			  "elements": [{"label": "", "points": [[1, 1], [2, 4], [3, 9]]}], "x_label": null, "y_label": null, "x_unit": null, "y_unit": null,
			  "x_ticks": [], "x_tick_labels": [], "x_scale": "linear", "y_ticks": [], "y_tick_labels": [], "y_scale": "linear"}}`,
			`{"text": "1", "is_main_result": true}`, `{"png": "` + picture + `"}`,
		}},
		{draw + "1/0", []string{`{"png": "` + picture + `"}`}}, // figures from before the error
		{"Figure(Axes()).show()", []string{`{"png": "` + picture + `", "is_main_result": false}`}},
		{"f = Figure(Axes())\nf", []string{`{"png": "` + picture + `", "is_main_result": true}`}},
		{draw + `
ax.xaxis.converter, ax.xaxis.label, ax.yaxis.label, ax.title = dates.DateConverter(), 'Time (s)', 'Height [m]', 'Over time'
ax.xaxis.ticks, ax.xaxis.words, ax.yaxis.ticks, ax.yaxis.words = [0, 1], ['a', 'b'], [0.0, 1.0], ['low', 'high']
line = Line2D([datetime.date(1970, 1, 1), datetime.datetime(1970, 1, 2, 3)], [float('nan'), 2])
line.label = '_child7'
ax.lines += [line, Line2D([0, 9], [5, 5])]`, []string{
			`{"chart": {"type": "line", "title": "Over time", "x_label": "Time (s)", "x_unit": "s", "y_label": "Height [m]", "y_unit": "m",
			  "x_scale": "datetime", "x_ticks": ["1970-01-01T00:00:00+00:00", "1970-01-02T00:00:00+00:00"], "x_tick_labels": ["a", "b"],
			  "y_scale": "categorical", "y_ticks": [0.0, 1.0], "y_tick_labels": ["low", "high"],
			  "elements": [{"label": "Line 7", "points": [["1970-01-01", null], ["1970-01-02T03:00:00", 2]]}]}}`,
		}},
		{draw + "ax.xaxis.scale = 'log'\nax.collections.append(PathCollection([(1, 2), (3, 4)])); ax.lines.append(Line2D([1, 1], [0, 9]))", []string{
			`{"chart": {"type": "scatter", "x_scale": "log", "elements": [{"label": "", "points": [[1, 2], [3, 4]]}]}}`,
		}},
		{draw + `
rects = BarContainer([Rectangle(0.6, 0, 0.8, 5), Rectangle(1.6, 0, 0.8, 5)])
ax.containers.append(rects); ax.patches += rects
ax.xaxis.ticks, ax.xaxis.words = [0, 1, 2, 3], ['', 'one', '', '']`, []string{
			`{"chart": {"type": "bar", "elements": [{"label": "one", "group": "Group 0", "value": 5.0}, {"label": "2", "group": "Group 0", "value": 5.0}]}}`,
		}},
		{draw + `
rects = BarContainer([Rectangle(0, 0, 5, 1), Rectangle(0, 1, 6, 1)])
rects.orientation, rects.label, ax.xaxis.label = 'horizontal', 'mine', 'Count'
ax.containers.append(rects); ax.patches += rects; ax.yaxis.words = ['a', 'b']`, []string{
			`{"chart": {"type": "bar", "x_label": null, "y_label": "Count", "elements": [{"label": "a", "group": "mine", "value": 5.0}, {"label": "b", "group": "mine", "value": 6.0}]}}`,
		}},
		{draw + "ax.patches += [Wedge(0, 90.0000021, 1), Wedge(90, 30, 0.5)]", []string{
			`{"chart": {"type": "pie", "title": null, "elements": [{"label": "", "angle": 90.0, "radius": 1.0}, {"label": "", "angle": 60.0, "radius": 0.5}]}}`,
		}},
		{draw + `
def box(*ends): return [PathPatch([(x, y) for x in (1, 2) for y in (10, 20)]), Line2D([1, 2], [15, 15]), Line2D([1.5, 1.5], [10, 5]), Line2D([1.5, 1.5], [20, 30]), Line2D([1.2, 1.8], [5, 5]), Line2D([1.2, 1.8], [30, 30]), Line2D([1.5, 1.5], [1, 40], 'None')]
patch, *more = box()
ax.patches.append(patch); ax.lines += more; ax.xaxis.words = ['A']`, []string{
			`{"chart": {"type": "box_and_whisker", "elements": [{"label": "A", "min": 5.0, "first_quartile": 10.0, "median": 15.0, "third_quartile": 20.0, "max": 30.0, "outliers": [1.0, 40.0]}]}}`,
		}},
		{draw + `
patch, *more = box()
patch.path.vertices = [(y, x) for x, y in patch.path.vertices]
for line in more: line.xs, line.ys = line.ys, line.xs
ax.patches.append(patch); ax.lines += more; ax.xaxis.label = 'Height'`, []string{
			`{"chart": {"type": "box_and_whisker", "y_label": "Height", "elements": [{"label": "1.5", "min": 5.0, "median": 15.0, "max": 30.0, "outliers": [1.0, 40.0]}]}}`,
		}},
		{draw + "plt.close('all')\na, b = Axes(), Axes()\na.patches.append(Wedge(0, 360, 1)); b.images.append(Artist()); b.title = 'What'\nf = Figure(a, b); f._suptitle = Text('Both')\nf", []string{
			`{"chart": {"type": "superchart", "title": "Both", "elements": [{"type": "pie", "elements": [{}]}, {"type": "unknown", "title": "What", "elements": []}]}}`,
		}},
		{draw + "ax.lines.append(Line2D(7, 7))", []string{`{"png": "` + picture + `"}`}}, // an unreadable chart is a picture only
		{"import pandas\npandas.DataFrame({'n': [1, float('nan')], 'at': [pandas.Timestamp(2024, 1, 2)]})", []string{
			`{"text": "a table", "html": "<table></table>", "data": {"n": [1, null], "at": ["2024-01-02T00:00:00"]}, "is_main_result": true}`,
		}},
		{"import PIL.Image, io\nimage = PIL.Image.Image()\nimage.show()", []string{`{"png": "` + png("\x89PNG image") + `"}`}},
		{"image.save('a.png')", []string{`{"png": "` + png("\x89PNG image") + `"}`}},
		{"image.save(io.BytesIO())", nil},
		{"[1, {'a': None}]", []string{`{"json": [1, {"a": null}], "text": "[1, {'a': None}]"}`}},
		{"{'a': {1}}", []string{`{"text": "{'a': {1}}"}`}},
	} {
		var results []map[string]any
		for _, item := range itemsOf(t, url, "python", try.code) {
			var got map[string]any
			if err := json.Unmarshal(item, &got); err != nil {
				t.Fatal(err)
			}
			if got["type"] == "result" {
				results = append(results, got)
			} else if got["type"] == "error" && got["name"] != "ZeroDivisionError" {
				t.Errorf("%s\n%v", try.code, got["traceback"])
			}
		}
		if len(results) != len(try.want) {
			t.Errorf("%s\nhas %d results, want %d: %v", try.code, len(results), len(try.want), results)
			continue
		}
		for i, text := range try.want {
			var want map[string]any
			if err := json.Unmarshal([]byte(text), &want); err != nil {
				t.Fatal(text, err)
			}
			if why := lacks(results[i], want, ""); why != "" {
				t.Errorf("%s\nresult %d: %s", try.code, i, why)
			}
			for _, field := range []string{"chart", "json", "data"} {
				if results[i][field] != nil && want[field] == nil && want["png"] == nil {
					t.Errorf("%s\nresult %d has %s: %v", try.code, i, field, results[i][field])
				}
			}
		}
	}
}

// lacks describes the first difference between got and want; got may have more members.
func lacks(got, want any, at string) string {
	switch want := want.(type) {
	case map[string]any:
		for k, v := range want {
			g, ok := got.(map[string]any)
			if !ok || g[k] == nil && v != nil {
				return at + "." + k + " is missing"
			}
			if why := lacks(g[k], v, at+"."+k); why != "" {
				return why
			}
		}
		return ""
	case []any:
		g, _ := got.([]any)
		if len(g) != len(want) {
			return fmt.Sprintf("%s is %v, want %v", at, got, want)
		}
		for i := range want {
			if why := lacks(g[i], want[i], fmt.Sprintf("%s[%d]", at, i)); why != "" {
				return why
			}
		}
		return ""
	}
	if !reflect.DeepEqual(got, want) {
		return fmt.Sprintf("%s is %v, want %v", at, got, want)
	}
	return ""
}

// A result of many megabytes is one line.
func TestLargeResult(t *testing.T) {
	url := served(t)
	items := itemsOf(t, url, "python", "'é' * (2 << 20)")
	var got struct{ Text string }
	for _, item := range items {
		if strings.Contains(string(item[:min(len(item), 200)]), "\"result\"") || len(item) > 1000 {
			if err := json.Unmarshal(item, &got); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got.Text != strings.Repeat("é", 2<<20) {
		t.Errorf("got %d bytes", len(got.Text))
	}
	if got := executed(t, url, "1"); got != "result 1" {
		t.Errorf("after the large result: got %q, want result 1", got)
	}
}

// If the program is killed, its contexts end.
func TestContextsEndWithProgram(t *testing.T) {
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
					t.Fatalf("process %d of the context still runs", pid)
				}
			}
		})
	}
}

// isZombie reports whether a process has ended but has not been waited for.
func isZombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

// Code can destroy only its own context; the next call gets a new one.
func TestBrokenContextIsReplaced(t *testing.T) {
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
		t.Errorf("a child process that reaches the end of a cell: %q", got)
	}
}

func TestInvalidRequestsAreRejected(t *testing.T) {
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
		t.Errorf("after the invalid requests: got %q, want result 1", got)
	}
}
