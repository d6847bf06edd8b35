// Command ifhead reports side effects in heads of if statements on changed lines.
//
//	ifhead BASE
//
// The changed lines are those lines of Go files that differ between the commit BASE and the working
// tree. A moved file is compared with its old version. A head may define variables, as in "if err
// := f(); err != nil" and "if v, ok := m[k]; ok", and may assign err. Another assignment, an
// increment, a call whose result is not used, a send, and a receive that is not a definition belong
// on a line before the if, where a reader looks for effects.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: ifhead BASE")
		os.Exit(2)
	}
	found, err := check(".", os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "ifhead:", err)
		os.Exit(2)
	}
	for _, f := range found {
		fmt.Println(f)
	}
	if len(found) > 0 {
		os.Exit(1)
	}
}

// check returns the reports on the repository in dir, one line each.
func check(dir, base string) ([]string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	diff, err := git(dir, "diff", "--unified=0", "--no-color", "--no-ext-diff", "--find-renames", "-l0", "--src-prefix=a/", "--dst-prefix=b/", base, "--", "*.go")
	if err != nil {
		return nil, err
	}
	lines, err := changed(string(diff))
	if err != nil {
		return nil, err
	}
	untracked, err := git(dir, "ls-files", "-z", "--others", "--exclude-standard", "--", "*.go")
	if err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(string(untracked), "\x00") {
		if name != "" {
			lines[name] = []span{{1, 1 << 30}}
		}
	}
	var found []string
	for name, spans := range lines {
		src, err := root.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		reports, err := effects(name, src, spans)
		if err != nil {
			return nil, err
		}
		found = append(found, reports...)
	}
	slices.Sort(found)
	return found, nil
}

func git(dir string, args ...string) ([]byte, error) {
	cmd := exec.Command("git", append([]string{"-c", "core.quotePath=off"}, args...)...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

// A span is a range of lines, both ends included.
type span struct{ first, last int }

// changed returns the new lines of each file in a unified diff without context.
func changed(diff string) (map[string][]span, error) {
	lines := map[string][]span{}
	name := ""
	removed, added := 0, 0 // remaining lines of the current hunk
	for line := range strings.Lines(diff) {
		switch {
		case removed > 0 && strings.HasPrefix(line, "-"):
			removed--
		case added > 0 && strings.HasPrefix(line, "+"):
			added--
		case strings.HasPrefix(line, "+++ "):
			name = strings.TrimPrefix(strings.TrimRight(strings.TrimPrefix(line, "+++ "), "\t\n"), "b/")
		case strings.HasPrefix(line, "@@ "):
			var from, to [2]int
			fields := strings.Fields(line)
			if len(fields) < 3 || !hunk(fields[1], "-", &from) || !hunk(fields[2], "+", &to) {
				return nil, fmt.Errorf("cannot read the hunk %q of %s", strings.TrimSpace(line), name)
			}
			removed, added = from[1], to[1]
			if added > 0 {
				lines[name] = append(lines[name], span{to[0], to[0] + added - 1})
			}
		}
	}
	return lines, nil
}

// hunk reads "+12,3" or "+12", which is one line.
func hunk(s, sign string, at *[2]int) bool {
	rest, ok := strings.CutPrefix(s, sign)
	if !ok {
		return false
	}
	at[1] = 1
	n, _ := fmt.Sscanf(rest, "%d,%d", &at[0], &at[1])
	return n > 0
}

// effects reports the heads with effects that begin on one of the lines.
func effects(name string, src []byte, lines []span) ([]string, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var found []string
	ast.Inspect(file, func(n ast.Node) bool {
		s, ok := n.(*ast.IfStmt)
		if !ok {
			return true
		}
		at := fset.Position(s.If)
		for _, l := range lines {
			if l.first <= at.Line && at.Line <= l.last {
				if what := effect(s); what != "" {
					found = append(found, fmt.Sprintf("%s:%d:%d: %s in the head of an if; put it on a line before", name, at.Line, at.Column, what))
				}
			}
		}
		return true
	})
	return found, nil
}

// effect names the effect in the head of s, or is "".
func effect(s *ast.IfStmt) string {
	switch init := s.Init.(type) {
	case *ast.AssignStmt:
		if init.Tok == token.DEFINE {
			break
		}
		for _, left := range init.Lhs {
			if id, ok := left.(*ast.Ident); init.Tok != token.ASSIGN || !ok || id.Name != "err" && id.Name != "_" {
				return "an assignment"
			}
		}
	case *ast.IncDecStmt:
		return "an increment"
	case *ast.ExprStmt:
		return "a call or receive without a result"
	case *ast.SendStmt:
		return "a send"
	}
	what := ""
	ast.Inspect(s.Cond, func(n ast.Node) bool {
		switch e := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.UnaryExpr:
			if e.Op == token.ARROW {
				what = "a receive"
			}
		}
		return true
	})
	return what
}
