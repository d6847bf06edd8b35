// Command wording reports words and phrases that documentation, comments and messages of
// this project avoid, each with what to write instead.
//
//	wording [-write] LIMITS
//
// It reads the files of the git repository in the working directory: comments and, outside
// of tests, string literals of Go files; comments and quoted strings of other sources; the
// markup of Svelte files; and the prose of Markdown files.
//
// The file LIMITS lists how many reports each directory may still have. More than that is an
// error, and so is less: a limit must be lowered with the number of reports. With -write the
// limits are lowered. They are never raised.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"go/scanner"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A rule is a pattern to avoid, and what to write instead.
type rule struct {
	pattern string
	instead string
}

var rules = []rule{
	{`any more`, `"no longer", or leave it out`},
	{`anew|made again|again and again`, `"again", retry, restart`},
	{`beside`, `"in addition to", "next to"`},
	{`(?:go|goes|going|went) on`, `continue, resume, keep running`},
	{`(?:is|are|was|were|be|been) told`, `is notified, receives, reports`},
	{`what (?:came|comes|became|becomes) of`, `the result of, the state of`},
	{`written down`, `recorded, dumped, stored`},
	{`lets? go of`, `release`},
	{`(?:is|are|was|were) to be`, `must be, will be`},
	{`(?:no|some)body`, `no caller, no user; a user, a process`},
	{`whoever|whomever|whom`, `the caller, the user, the client`},
	{`of which`, `a sentence of its own`},
	{`come(?:s)? to nothing`, `has no effect, fails`},
	{`ways? out`, `egress`},
	{`doors?`, `endpoint, listener, socket`},
	{`there is (?:one|none)`, `name what exists or not: "without a snapshot"`},
	{`as good as`, `nearly, practically`},
	{`is none of`, `"is not a"`},
	{`(?:has|have) come`, `has arrived, exists, was received`},
	{`by who`, `by the process that`},
	{`wards?`, `the policy of the jail`},
	{`take(?:n|s)? over the changes`, `apply the changes`},
}

// clauses are sentences whose subject is a clause: "Who asks waits".
const clauses = `(?:^|[.;:]\s+|//\s+|\*\s+|#\s+)[Ww]ho (?:is|has|asks|waits|calls|gives|reads|may|does|wants|can|knows|fails|tries|takes|shares|reaches|touches)\b`

// A matcher finds text that matches the rules.
type matcher struct {
	words  *regexp.Regexp // a group for each rule
	clause *regexp.Regexp
}

func newMatcher() *matcher {
	var groups []string
	for _, r := range rules {
		groups = append(groups, "("+r.pattern+")")
	}
	return &matcher{
		words:  regexp.MustCompile(`(?i)\b(?:` + strings.Join(groups, "|") + `)\b`),
		clause: regexp.MustCompile(clauses),
	}
}

// A report is one phrase to replace.
type report struct {
	file    string
	line    int
	phrase  string
	instead string
}

func (r report) String() string {
	return fmt.Sprintf("%s:%d: %q: write %s", r.file, r.line, r.phrase, r.instead)
}

// in reports the phrases in a text that begins on a line of a file.
func (m *matcher) in(file string, line int, text string) []report {
	var found []report
	for i, l := range strings.Split(text, "\n") {
		for _, groups := range m.words.FindAllStringSubmatch(l, -1) {
			rule := slices.Index(groups[1:], groups[0])
			found = append(found, report{file, line + i, groups[0], rules[rule].instead})
		}
		for _, phrase := range m.clause.FindAllString(l, -1) {
			found = append(found, report{file, line + i, strings.TrimLeft(phrase, "/.;:*# "), "the noun that names the actor as the subject"})
		}
	}
	return found
}

// check returns the reports on a file.
func (m *matcher) check(name string, text []byte) []report {
	switch path.Ext(name) {
	case ".go":
		return m.checkGo(name, text)
	case ".md":
		return m.checkMarkdown(name, text)
	case ".svelte":
		return m.checkSvelte(name, text)
	case ".c", ".h", ".ts", ".js", ".py", ".sh", ".sql", ".yaml", ".yml":
		return m.checkSource(name, text)
	}
	return nil
}

func (m *matcher) checkGo(name string, text []byte) []report {
	fset := token.NewFileSet()
	file := fset.AddFile(name, fset.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	var found []report
	for {
		pos, tok, lit := s.Scan()
		switch {
		case tok == token.EOF:
			return found
		case tok == token.COMMENT, tok == token.STRING && !strings.HasSuffix(name, "_test.go"):
			found = append(found, m.in(name, fset.Position(pos).Line, lit)...)
		}
	}
}

// checkMarkdown leaves out code blocks, and code within lines.
func (m *matcher) checkMarkdown(name string, text []byte) []report {
	var found []report
	fenced := false
	for i, l := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(strings.TrimSpace(l), "```") {
			fenced = !fenced
			continue
		}
		if !fenced && !strings.HasPrefix(l, "    ") {
			found = append(found, m.in(name, i+1, inlineCode.ReplaceAllString(l, ""))...)
		}
	}
	return found
}

var (
	inlineCode = regexp.MustCompile("`[^`]*`")
	comment    = regexp.MustCompile(`(?:^|[^:"'\\])(?://|#|--|/\*)\s.*|^\s*\*\s.*`)
	quoted     = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|` + "`[^`]*`")
	tag        = regexp.MustCompile(`<[^>]*>`)
)

func (m *matcher) checkSource(name string, text []byte) []report {
	var found []report
	for i, l := range strings.Split(string(text), "\n") {
		c := comment.FindString(l)
		found = append(found, m.in(name, i+1, c)...)
		for _, q := range quoted.FindAllString(strings.TrimSuffix(l, c), -1) {
			if strings.Contains(q, " ") {
				found = append(found, m.in(name, i+1, q)...)
			}
		}
	}
	return found
}

// checkSvelte checks the text between tags, and comments and strings elsewhere.
func (m *matcher) checkSvelte(name string, text []byte) []report {
	found := m.checkSource(name, text)
	code := false
	for i, l := range strings.Split(string(text), "\n") {
		trimmed := strings.TrimSpace(l)
		switch {
		case strings.HasPrefix(trimmed, "<script"), strings.HasPrefix(trimmed, "<style"):
			code = true
		case strings.HasPrefix(trimmed, "</script"), strings.HasPrefix(trimmed, "</style"):
			code = false
		case !code && !strings.Contains(trimmed, "//"):
			found = append(found, m.in(name, i+1, quoted.ReplaceAllString(tag.ReplaceAllString(l, " "), ""))...)
		}
	}
	return found
}

// skipped are files that are generated, or data.
var skipped = regexp.MustCompile(`(^|/)(dist|testdata|node_modules)/|schema\.d\.ts$|(^|/)wire\.(ts|py)$|\.pb\.go$|_bpfel\.go$|^internal/wording/`)

func main() {
	write := flag.Bool("write", false, "lower the limits to the number of reports")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: wording [-write] LIMITS")
		os.Exit(2)
	}
	ok, err := run(os.Stdout, ".", flag.Arg(0), *write)
	if err != nil {
		fmt.Fprintln(os.Stderr, "wording:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// run checks the repository in dir and reports whether each directory is at its limit.
func run(w io.Writer, dir, limitsFile string, write bool) (bool, error) {
	limits, err := readLimits(limitsFile)
	if err != nil {
		return false, err
	}
	found, err := reports(dir)
	if err != nil {
		return false, err
	}
	ok := true
	for _, d := range slices.Sorted(maps.Keys(found)) {
		if n := len(found[d]); n > limits[d] {
			ok = false
			for _, r := range found[d] {
				fmt.Fprintln(w, r)
			}
			fmt.Fprintf(w, "%s has %d of these, and %s permits %d\n", d, n, limitsFile, limits[d])
		}
	}
	if write {
		for d := range limits {
			limits[d] = min(limits[d], len(found[d]))
		}
		return ok, writeLimits(limitsFile, limits)
	}
	for _, d := range slices.Sorted(maps.Keys(limits)) {
		if n := len(found[d]); n < limits[d] {
			ok = false
			fmt.Fprintf(w, "%s: the limit of %s is %d, and %d remain: lower it with go run ./internal/wording -write %[1]s\n", limitsFile, d, limits[d], n)
		}
	}
	return ok, nil
}

// reports returns the reports on all files of the repository, by directory.
func reports(dir string) (map[string][]report, error) {
	cmd := exec.Command("git", "-c", "core.quotePath=off", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = dir
	names, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	m := newMatcher()
	found := map[string][]report{}
	for name := range strings.SplitSeq(string(names), "\x00") {
		if name == "" || skipped.MatchString(name) {
			continue
		}
		info, err := root.Lstat(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // the file was removed, and the index is not yet updated
		}
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() {
			continue
		}
		text, err := root.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if all := m.check(name, text); len(all) > 0 {
			d := path.Dir(name)
			found[d] = append(found[d], all...)
		}
	}
	return found, nil
}

// readLimits reads lines of the form "DIRECTORY NUMBER". Lines after a # are comments.
func readLimits(name string) (map[string]int, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	limits := map[string]int{}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		line := s.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		d, n, ok := strings.Cut(line, " ")
		limits[d], err = strconv.Atoi(n)
		if !ok || err != nil || limits[d] < 1 {
			return nil, fmt.Errorf("%s: %q is not a directory and a positive number", name, line)
		}
	}
	return limits, nil
}

func writeLimits(name string, limits map[string]int) error {
	old, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var b strings.Builder
	for line := range strings.Lines(string(old)) {
		if strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	dirs := slices.Sorted(maps.Keys(limits))
	for _, d := range dirs {
		if limits[d] > 0 {
			fmt.Fprintf(&b, "%s %d\n", d, limits[d])
		}
	}
	return os.WriteFile(name, []byte(b.String()), 0o644)
}
