package report_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"golang.org/x/net/html"

	"glasshouse/observe/event"
	"glasshouse/observe/report"
)

// attacks are names that a jail may choose to mislead a reader.
var attacks = []string{
	"EVIL<script>alert(1)</script>",
	"EVIL\"><img src=x onerror=alert(1)>",
	"EVIL' onmouseover='alert(1)",
	"EVIL</style><style>*{display:none}",
	"EVIL</title><h1>EVIL",
	"EVIL<!--",
	"EVIL{{.Jail}}",
	"EVIL\n# EVIL heading",
	"EVIL\r\n\r\n- EVIL item",
	"EVIL `code` ``more`` EVIL",
	"`EVIL",
	"EVIL`",
	"```\nEVIL",
	"EVIL](https://evil.example) ![EVIL](https://evil.example/x.png)",
	"https://evil.example/EVIL",
	"javascript:alert('EVIL')",
	"EVIL | EVIL | EVIL",
	"  EVIL  ",
	"EVIL\x1b[2J\x1b]0;EVIL\x07\x1b[31m",
	"EVIL\x9b2J\u009b2J",
	"EVIL\b\b\b\bGOOD",
	"EVIL\x00\x7f",
	"EVIL\u202egnp.exe\u2066\u200b\ufeff",
	"EVIL\u2028EVIL\u0085EVIL",
	"EVIL\xff\xfe\xc3\x28",
	"EVIL" + strings.Repeat("A", 100_000),
	"EVIL" + strings.Repeat("`", 5000),
	"EVIL\" type:gap \\\" * -pid:1",
	"",
}

// hostile returns a session in which every name is s.
func hostile(s string) *session {
	x := newSession()
	name := func(e *event.Event) { e.Comm, e.Path, e.To, e.Real, e.Addr = s, s, "/"+s, "/"+s, s }
	x.fork(0, 1, s).exec(1, "/"+s, s, s)
	x.fork(1, 2, s).exec(2, s, s, s)
	x.events[len(x.events)-1].Cwd = s
	for _, call := range []string{"mount", "chmod", "connect", "ptrace", "setuid", "bpf", "openat", "unshare", s} {
		x.call(2, call, -1, time.Microsecond, name).call(2, call, 0, time.Microsecond, name, args(0, 0o6777)).call(2, call, -38, 0, name, flagged(event.Denied))
	}
	for _, op := range []string{event.OpOpen, event.OpWrite, event.OpRename, event.OpExchange, s} {
		x.file(2, op, "/"+s, 10).file(2, op, s, 10)
		x.events[len(x.events)-2].To, x.events[len(x.events)-2].Comm = "/"+s, s
	}
	x.packet(2, event.Egress, s, s, s, s, s, 5).packet(2, event.Egress, "tcp", "10.0.0.2:1", "10.0.0.3:2", s, "SYN", 5)
	x.packet(2, event.Ingress, "tcp", "10.0.0.3:2", "10.0.0.2:1", s, "RST", 5).packet(2, s, "tcp", s, s, s, s, 5)
	x.add(event.Event{Type: event.Gap, Source: event.File, Lost: 3, Reason: s})
	x.fork(1, 3, s).exec(3, "/memfd:"+s, s).exit(3, 0, s)
	x.fork(1, 4, s).exec(4, "/"+s, s).exit(4, 0, "SIGKILL")
	x.usage(1, 1, 1, 1, 1, 1).wait(time.Second).usage(2, 2, 2, 2, 2, 2)
	return x
}

func TestPageEscapesHostileNames(t *testing.T) {
	elements := strings.Fields("html head meta title style body main nav div h1 h2 h3 p span strong ul li a b section code figure figcaption svg path rect details summary table thead tbody tfoot tr th td")
	attributes := strings.Fields("lang charset name content class id href title aria-label viewbox preserveaspectratio role d vector-effect x y width height colspan open")
	places := strings.Fields("#notable #usage #timeline #commands #network #files #failures #syscalls")
	for _, attack := range attacks {
		r := makeReport(t, hostile(attack), report.Options{Workspace: []string{attack}, Selection: &event.Selection{Ignore: []string{attack}}})
		var b bytes.Buffer
		if err := r.HTML(&b); err != nil {
			t.Fatal(err)
		}
		if b.Len() > 2<<20 {
			t.Errorf("%.40q makes a page of %d bytes", attack, b.Len())
		}
		seen, style := false, ""
		for z := html.NewTokenizer(&b); ; {
			kind := z.Next()
			if kind == html.ErrorToken {
				break
			}
			tok := z.Token()
			switch kind {
			case html.StartTagToken, html.SelfClosingTagToken:
				if !slices.Contains(elements, strings.ToLower(tok.Data)) {
					t.Errorf("%.40q makes an element %s", attack, tok.Data)
				}
				for _, a := range tok.Attr {
					if !slices.Contains(attributes, strings.ToLower(a.Key)) {
						t.Errorf("%.40q makes an attribute %s", attack, a.Key)
					}
					if a.Key == "href" && !strings.HasPrefix(a.Val, "/jails/"+jail+"/events?") && !slices.Contains(places, a.Val) {
						t.Errorf("%.40q makes a link to %q", attack, a.Val)
					}
				}
				if tok.Data == "style" {
					z.Next()
					style += string(z.Raw())
				}
			case html.CommentToken:
				t.Errorf("%.40q makes a comment", attack)
			case html.TextToken:
				seen = seen || strings.Contains(tok.Data, "EVIL")
				if i := strings.IndexFunc(tok.Data, unseen); i >= 0 {
					t.Errorf("%.40q is shown with %q in it", attack, tok.Data[i:min(len(tok.Data), i+8)])
				}
			}
		}
		if !seen && attack != "" && !strings.HasPrefix(attack, "javascript") {
			t.Errorf("%.40q is not shown at all", attack)
		}
		sum := sha256.Sum256([]byte(style))
		if hash := base64.StdEncoding.EncodeToString(sum[:]); !strings.Contains(report.ContentSecurityPolicy, "'sha256-"+hash+"'") {
			t.Fatalf("with %.40q the page's style has the hash %s, which %q does not allow", attack, hash, report.ContentSecurityPolicy)
		}
	}
}

func TestTruncationReportsOmittedBytes(t *testing.T) {
	s := newSession().fork(0, 1, "sh")
	s.exec(1, "/bin/x", "x", strings.Repeat("A", 1000), "\x1b\x1b")
	var b bytes.Buffer
	if err := makeReport(t, s, report.Options{}).HTML(&b); err != nil {
		t.Fatal(err)
	}
	// The command is x, a space, the As, a space, and the last in quotes.
	if all, right := strings.Count(b.String(), "bytes more)"), strings.Count(b.String(), "… (707 bytes more)"); all < 3 || all != right {
		t.Errorf("of %d places where it is cut, %d say that 707 bytes are missing", all, right)
	}
}

// unseen reports whether r is invisible or changes how the text around it is displayed.
func unseen(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }

func TestMarkdownEscapesHostileNames(t *testing.T) {
	for _, attack := range attacks {
		r := makeReport(t, hostile(attack), report.Options{Selection: &event.Selection{Ignore: []string{attack}}})
		var b bytes.Buffer
		if err := r.Markdown(&b); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			line = strings.TrimSuffix(line, "\n")
			if i := strings.IndexFunc(line, unseen); i >= 0 {
				t.Errorf("%.40q is written as it is in %.100q", attack, line[i:])
			}
			if rest := outsideCode(line); strings.ContainsAny(rest, "`<>[]!|") || strings.Contains(rest, "EVIL") || strings.Contains(rest, "://") {
				t.Errorf("%.40q reaches out of its code span: %.200q", attack, line)
			}
		}
	}
}

// outsideCode returns the parts of a line that CommonMark does not treat as code: a span
// begins with a run of backquotes and ends with the next run of the same length.
func outsideCode(line string) string {
	out := ""
	for line != "" {
		i := strings.IndexByte(line, '`')
		if i < 0 {
			return out + line
		}
		out, line = out+line[:i], line[i:]
		n := len(line) - len(strings.TrimLeft(line, "`"))
		fence, end := line[:n], -1
		for j := n; j < len(line); {
			if line[j] != '`' {
				j++
				continue
			}
			k := j
			for j < len(line) && line[j] == '`' {
				j++
			}
			if j-k == n {
				end = j
				break
			}
		}
		if end < 0 {
			out, line = out+fence, line[n:]
			continue
		}
		line = line[end:]
	}
	return out
}

func TestPSEscapesHostileNames(t *testing.T) {
	for _, attack := range attacks {
		s := hostile(attack)
		tree, net := report.NewTree(), report.NewNetLog()
		for i := range s.events {
			tree.Add(&s.events[i])
			net.Add(&s.events[i])
		}
		var b bytes.Buffer
		processes := tree.Processes(true)
		if err := report.WritePS(&b, processes); err != nil {
			t.Fatal(err)
		}
		flows, _ := net.Flows()
		if err := report.WriteNet(&b, flows); err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Count(b.String(), "\n"), len(processes)+len(flows)+2; got != want {
			t.Errorf("%.40q makes %d lines, want %d", attack, got, want)
		}
		if i := strings.IndexFunc(b.String(), unseen); i >= 0 {
			t.Errorf("%.40q is written as it is: %q", attack, b.String()[i:i+8])
		}
	}
}

func TestInvalidUTF8IsEncodedAsInEvents(t *testing.T) {
	s := hostile("EVIL\xff\n\u2028<&>")
	b, err := json.Marshal(makeReport(t, s, report.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(b, []byte(`"path":"/EVIL\udcff\n\u2028`)) {
		t.Errorf("the path is not in %.2000s", b)
	}
	for _, attack := range attacks {
		if b, err := json.Marshal(makeReport(t, hostile(attack), report.Options{})); err != nil || !json.Valid(b) {
			t.Errorf("with %.40q the report's JSON is bad: %v", attack, err)
		}
	}
}

func TestLinksOfHostileNamesAreFilters(t *testing.T) {
	for _, attack := range attacks {
		s := hostile(attack)
		for _, l := range links(t, makeReport(t, s, report.Options{Workspace: []string{"/" + attack}})) {
			if _, err := event.ParseFilter(l.String()); err != nil {
				t.Errorf("%.40q: %v", attack, err)
			}
		}
	}
}

// A flood is a session of n events with distinct paths, processes, hosts and calls.
type flood struct {
	n, at int
}

func (f *flood) Next(e *event.Event) ([]byte, error) {
	if f.at == f.n {
		return (&slice{}).Next(e)
	}
	i := f.at
	f.at++
	*e = event.Event{Seq: uint64(f.at), Jail: jail, NS: int64(f.at) * 1e6, TS: int64(f.at), PID: int32(i/8 + 2), TID: int32(i/8 + 2), PPID: 1, Comm: "flood", FD: -1}
	switch i % 8 {
	case 0:
		e.Type, e.Op = event.Proc, event.OpFork
	case 1:
		e.Type, e.Op, e.Exe, e.Argv = event.Proc, event.OpExec, fmt.Sprintf("/bin/%d", i), []string{fmt.Sprint(i)}
	case 2:
		e.Type, e.Op, e.Path, e.Bytes = event.File, event.OpWrite, fmt.Sprintf("/etc/w%d", i), 3
	case 3:
		e.Type, e.Op, e.Path, e.Bytes = event.File, event.OpRead, fmt.Sprintf("/etc/r%d", i), 5
	case 4:
		e.Type, e.Proto, e.Dir, e.Bytes = event.Net, "tcp", event.Egress, 7
		e.Src, e.Dst, e.Host, e.TCP = "10.0.0.2:1", fmt.Sprintf("10.%d.%d.%d:80", i>>16&255, i>>8&255, i&255), fmt.Sprintf("h%d.example", i), "SYN"
	case 5:
		e.Type, e.Name, e.Ret, e.Addr = event.Syscall, "connect", -111, fmt.Sprintf("10.1.1.1:%d", i)
	case 6:
		e.Type, e.Name, e.Path, e.Ret, e.Dur = event.Syscall, "mount", fmt.Sprintf("/m%d", i), -1, 100
	case 7:
		e.Type, e.Op, e.Code = event.Proc, event.OpExit, 1
	}
	return nil, nil
}

func TestUnlistedRowsAreSummedExactly(t *testing.T) {
	n := 1 << 18
	if testing.Short() {
		n = 1 << 16
	}
	r, err := report.Make(t.Context(), &flood{n: n}, report.Options{Jail: jail})
	if err != nil {
		t.Fatal(err)
	}
	each := int64(n / 8)
	for _, c := range []struct {
		what      string
		got, want int64
	}{
		{"processes", r.Processes.Count, each},
		{"ended processes", r.Processes.Ended, each},
		{"failed processes", r.Processes.Failed, each},
		{"processes listed and not", int64(len(r.Processes.Tree)) + r.Processes.More, each},
		{"runs", r.Commands.Runs, each},
		{"failed runs", r.Commands.Failed, each},
		{"runs listed and not", int64(len(r.Commands.List)) + r.Commands.More, each},
		{"bytes written", r.Files.Total.Written, 3 * each},
		{"bytes written to files not listed", r.Files.Changed.More.Written, 3*each - 3*int64(len(r.Files.Changed.List))},
		{"bytes read from files not listed", r.Files.Read.More.Read, 5*each - 5*int64(len(r.Files.Read.List))},
		{"bytes out", r.Network.Total.BytesOut, 7 * each},
		{"bytes to peers not listed", r.Network.More.BytesOut, 7*each - 7*int64(len(r.Network.List))},
		{"connections", r.Network.Connections.N, each},
		{"connects that failed", r.Network.Failed, each},
		{"connects listed and not", int64(len(r.Network.FailedConnects)) + r.Network.FailsMore, each},
		{"calls", r.Syscalls.Count, 2 * each},
		{"failures", r.Failures.Count, 2 * each},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", c.what, c.got, c.want)
		}
	}
	for what, c := range map[string]report.Count{"changed": r.Files.Changed.Paths, "read": r.Files.Read.Paths, "peers": r.Network.Peers,
		"names": r.Network.Names, "commands": r.Commands.Kinds} {
		if off := float64(c.N-each) / float64(each); !c.About || off < -.08 || off > .08 {
			t.Errorf("%s: %v, want about %d", what, c, each)
		}
	}
	for _, x := range r.Notable {
		if x.Kind == "mount" && (x.Count != each || int64(len(x.List))+x.More != each) {
			t.Errorf("mounts: %d, of them %d listed and %d not; want %d", x.Count, len(x.List), x.More, each)
		}
	}
}

func TestExceededLimitsAreReported(t *testing.T) {
	f := report.NewFold()
	for i := range int64(300_000) {
		f.Add(&event.Event{Type: event.File, Op: event.OpWrite, Path: fmt.Sprint("/tmp/", i), Seq: uint64(i + 1), PID: 2})
	}
	for i := range int64(70_000) {
		f.Add(&event.Event{Type: event.Proc, Op: event.OpFork, PID: int32(i + 1), NS: i + 1, Seq: uint64(300_001 + i)})
	}
	r := f.Report()
	if got := strings.Join(r.Completeness.Limits, "\n"); !strings.Contains(got, "4,464 records of processes") || !strings.Contains(got, "262,144") {
		t.Errorf("limits: %s", got)
	}
	if r.Processes.Count != 70_000 {
		t.Errorf("%d processes, want 70000", r.Processes.Count)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("folds a million events")
	}
	held := func(n int) int64 {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		f := report.NewFold()
		src := flood{n: n}
		var e event.Event
		for {
			if _, err := src.Next(&e); err != nil {
				break
			}
			f.Add(&e)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(f)
		return int64(after.HeapAlloc) - int64(before.HeapAlloc)
	}
	few, many := held(1<<17), held(3<<17)
	if many > few+few/2 || many > 128<<20 {
		t.Errorf("a flood leaves %d KB behind, one three times as long %d KB", few>>10, many>>10)
	}
}
