package test_test

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A lesson is a step of a document: a command and its documented output, a file to save, or an
// action on a phone.
type lesson struct {
	at             string // file and line
	typed, printed string
	script         bool   // several commands; none may fail
	file           string // name of the file; typed is its text
	phone          string // sentence that describes the action
}

var (
	saved   = regexp.MustCompile(`^\w+ title="([^"]+)"$`)
	heredoc = regexp.MustCompile(`<<'?(\w+)'?`)
)

// lessons returns the steps of a section of a document, or of the whole document if section is
// empty. Steps are:
//   - a console block: commands after "$ ", each with its output. A command continues after a
//     backslash at the end of a line, and to the end of a here-document.
//   - an sh block: one or more commands. An unlabelled block directly after it is their output.
//   - a block of another language with a title: a file of that name.
//   - a line that begins with "On the phone, ".
//
// Other blocks are examples that are not executed.
func lessons(t *testing.T, file, section string) (all []lesson) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var block strings.Builder
	inside, begin, info, output := section == "", 0, "", false
	for i, line := range strings.Split(string(b), "\n") {
		at := fmt.Sprintf("%s:%d", file, i+1)
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case begin == 0 && strings.HasPrefix(line, "## "):
			inside = section == "" || line == "## "+section
		case begin == 0 && isFence:
			begin, info = i+1, fence
			block.Reset()
		case begin == 0:
			if inside && strings.HasPrefix(line, "On the phone, ") {
				all = append(all, lesson{at: at, phone: line})
			}
			output = false
		case isFence:
			at = fmt.Sprintf("%s:%d", file, begin)
			begin = 0
			switch m := saved.FindStringSubmatch(info); {
			case !inside:
			case info == "console":
				all = append(all, commands(file, i-strings.Count(block.String(), "\n")+1, block.String())...)
			case info == "sh":
				all = append(all, lesson{at: at, typed: block.String(), script: true})
			case info == "" && output:
				all[len(all)-1].printed = block.String()
			case m != nil:
				all = append(all, lesson{at: at, typed: block.String(), file: m[1]})
			}
			output = info == "sh" // an output must be directly after it
		default:
			block.WriteString(line + "\n")
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s has no steps in section %q", file, section)
	}
	return all
}

// commands returns the commands of a console block, whose first line has the given number.
func commands(file string, number int, block string) (all []lesson) {
	end, more := "", false // end of a here-document; the line before ended in a backslash
	for line := range strings.Lines(block) {
		text, begins := strings.CutPrefix(line, "$ ")
		if !begins {
			text = line
		}
		if n := len(all) - 1; end != "" || more {
			all[n].typed += text
		} else if !begins && n >= 0 {
			all[n].printed += text
		} else {
			all = append(all, lesson{at: fmt.Sprintf("%s:%d", file, number), typed: text})
		}
		if m := heredoc.FindStringSubmatch(text); m != nil && (begins || more) {
			end = m[1]
		} else if strings.TrimSpace(text) == end {
			end = ""
		}
		more = end == "" && (begins || more) && strings.HasSuffix(text, "\\\n")
		number++
	}
	return all
}

// A follower does the steps of documents in a shell, as a reader does. Where a document has an id,
// an address or a port of this host, the reader has others: they are the same ones wherever the
// document has the same.
type follower struct {
	*testing.T
	stdin   io.Writer
	stdout  *bufio.Reader
	group   int
	script  string // file with the current command
	actual  map[string]string
	newest  map[string]string // last id of each kind, by its letter
	printed strings.Builder   // by all commands
	phone   *tab              // the browser of a phone, once it is used
}

// A reader follows documents in shells with the same home directory and environment.
type reader struct {
	home string
	env  []string
}

// follows starts a shell in the home directory of a reader.
func follows(t *testing.T, by reader) *follower {
	t.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "--noprofile", "--norc")
	cmd.Dir, cmd.Env = by.home, append(os.Environ(), by.env...)
	cmd.Stdout, cmd.Stderr = in, in
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	f := &follower{
		T: t, stdin: stdin, stdout: bufio.NewReader(out), group: cmd.Process.Pid, script: filepath.Join(t.TempDir(), "step"),
		actual: map[string]string{}, newest: map[string]string{},
	}
	t.Cleanup(func() {
		stdin.Close()
		syscall.Kill(-f.group, syscall.SIGTERM) // terminate the background processes that the steps have started
		cmd.Wait()
		if !within(30*time.Second, func() bool { return syscall.Kill(-f.group, 0) != nil }) {
			t.Errorf("processes of the shell %d are left", f.group)
		}
		out.Close()
	})
	return f
}

var (
	idText   = `\b[a-z]-[a-z0-9]{12}\b`
	portText = `\b(?:127\.0\.0\.1|localhost):[0-9]{4,5}\b`
	ids      = regexp.MustCompile(idText)
	bound    = regexp.MustCompile(idText + `|` + portText + `|\b[a-z]-…`)
)

// translate replaces the ids and addresses of a document by the actual ones. An id that ends in …
// is the last one of its kind.
func (f *follower) translate(at, text string) string {
	f.Helper()
	return bound.ReplaceAllStringFunc(text, func(s string) string {
		is, isID := f.actual[s], s[1] == '-'
		if strings.HasSuffix(s, "…") {
			is = f.newest[s[:1]]
		}
		if is == "" && isID {
			f.Fatalf("%s: no output had the id %s before", at, s)
		}
		if is == "" { // an address at which a step will listen
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				f.Fatal(err)
			}
			l.Close()
			host, _, _ := strings.Cut(s, ":")
			_, port, _ := strings.Cut(l.Addr().String(), ":")
			is = host + ":" + port
			f.actual[s] = is
		}
		return is
	})
}

// follow performs a step and compares its output with the document.
func (f *follower) follow(l lesson) {
	f.Helper()
	f.Logf("%s: %.80s", l.at, cmp.Or(l.phone, l.file, l.typed))
	switch {
	case l.phone != "":
		f.onPhone(l.at, l.phone)
		return
	case l.file != "":
		dir, _ := f.run("pwd")
		if err := os.WriteFile(filepath.Join(strings.TrimSpace(dir), l.file), []byte(f.translate(l.at, l.typed)), 0o644); err != nil {
			f.Fatalf("%s: %v", l.at, err)
		}
		return
	}
	typed := f.translate(l.at, l.typed)
	if l.script {
		typed = "(\nset -e\n" + typed + ")\n"
	}
	out, code := f.run(typed)
	// A command may only fail if the document shows its error message.
	if refused := strings.HasPrefix(l.printed, "glasshouse: "); l.script && refused != (code != "0") || code != "0" && strings.TrimSpace(l.printed) == "" {
		f.Fatalf("%s: %sexited with %s:\n%s", l.at, l.typed, code, out)
	}
	if !f.like(l.printed, out) {
		f.Fatalf("%s: %sprinted\n%s\nwant, as documented,\n%s", l.at, l.typed, out, l.printed)
	}
	f.printed.WriteString(out)
	for _, is := range ids.FindAllString(out, -1) {
		f.newest[is[:1]] = is
	}
}

// run runs commands in the shell and returns what they print, and the exit code. Each step has five
// minutes: the first one that needs an agent installs it.
func (f *follower) run(typed string) (out, code string) {
	f.Helper()
	if err := os.WriteFile(f.script, []byte(typed), 0o600); err != nil {
		f.Fatal(err)
	}
	limit := time.AfterFunc(5*time.Minute, func() { syscall.Kill(-f.group, syscall.SIGKILL) })
	defer limit.Stop()
	fmt.Fprintf(f.stdin, ". %s </dev/null; printf '\\036%%d\\n' $?\n", f.script)
	out, err := f.stdout.ReadString('\x1e')
	if err == nil {
		code, err = f.stdout.ReadString('\n')
	}
	if err != nil {
		f.Fatalf("the shell ended, or the step took more than five minutes: %v\n%s\nprinted\n%s", err, typed, out)
	}
	return strings.TrimSuffix(out, "\x1e"), strings.TrimSpace(code)
}

// varying lists the parts of an output that differ for each reader, with the patterns that they
// must match. The first one that matches applies.
var varying = []struct{ documented, pattern string }{
	{`\s*…\s*`, `.*`},
	{idText, ``},
	{portText, ``},
	{`just now|[0-9]+ (?:second|minute)s? ago`, `(?:just now|[0-9]+ (?:second|minute)s? ago)`},
	{`\b[0-9]{4}-[0-9]{2}-[0-9]{2}\b`, `[0-9]{4}-[0-9]{2}-[0-9]{2}`},
	{`\b[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?\b`, `[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?`},
	{`\b[0-9]+(?:\.[0-9]+)? (?:B|KiB|MiB|GiB)\b`, `[0-9]+(?:\.[0-9]+)? (?:B|KiB|MiB|GiB)`},
	{`\b(?:[0-9]+(?:\.[0-9]+)? ?(?:ns|µs|ms|s|m|h))+\b`, `(?:[0-9]+(?:\.[0-9]+)? ?(?:ns|µs|ms|s|m|h))+`},
	{`\s+`, `\s+`},
}

var varies = func() *regexp.Regexp {
	var all []string
	for _, v := range varying {
		all = append(all, "("+v.documented+")")
	}
	return regexp.MustCompile(strings.Join(all, "|"))
}()

// like reports whether an output is like the documented one: … stands for any text, an id, address,
// time, duration or size for another one, and the amount of white space is ignored. The ids and
// addresses of the output become the actual ones.
func (f *follower) like(printed, out string) bool {
	var pattern strings.Builder
	var names []string // names of the groups of the pattern
	printed = strings.TrimSpace(printed)
	end := 0
	for _, m := range varies.FindAllStringSubmatchIndex(printed, -1) {
		pattern.WriteString(regexp.QuoteMeta(printed[end:m[0]]))
		text := printed[m[0]:m[1]]
		end = m[1]
		for i, v := range varying {
			if m[2+2*i] < 0 {
				continue
			}
			switch is, known := f.actual[text]; {
			case v.pattern == `.*`:
				// "a … b" is like "a b", and not like "ab".
				for _, part := range []string{text[:1], `.*`, text[len(text)-1:]} {
					if strings.TrimSpace(part) == "" {
						part = `\s*`
					} else if part != `.*` {
						part = ""
					}
					pattern.WriteString(part)
				}
			case v.pattern != "":
				pattern.WriteString(v.pattern)
			case known:
				pattern.WriteString(regexp.QuoteMeta(is))
			case ids.MatchString(text):
				names = append(names, text)
				pattern.WriteString(`(\b` + text[:2] + `[a-z0-9]{12}\b)`)
			default:
				names = append(names, text)
				pattern.WriteString("(" + portText + ")")
			}
			break
		}
	}
	pattern.WriteString(regexp.QuoteMeta(printed[end:]))
	m := regexp.MustCompile(`(?s)^\s*` + pattern.String() + `\s*$`).FindStringSubmatch(out)
	if m == nil {
		return false
	}
	for i, name := range names {
		if is := f.actual[name]; is != "" && is != m[i+1] {
			return false
		}
		f.actual[name] = m[i+1]
	}
	return true
}
