package cli

import (
	"strings"
	"testing"

	"mvdan.cc/sh/v3/syntax"
)

// Every command has an example, and the command lines in examples are valid.
func TestExamplesAreValid(t *testing.T) {
	unused := map[string]bool{}
	for path := range examples {
		unused[path] = true
	}
	checked := 0
	for _, cmd := range append(leaves(hostIndependentRoot()), hostIndependentRoot()) {
		_, path, _ := strings.Cut(cmd.CommandPath(), " ")
		delete(unused, path)
		lines := commandsIn(t, cmd.Example)
		if len(lines) == 0 {
			t.Errorf("glasshouse %s has no example", path)
		}
		for _, args := range lines {
			checked++
			line := strings.Join(args, " ")
			root := hostIndependentRoot() // flags keep their values
			found, rest, err := root.Find(args)
			if err != nil {
				t.Errorf("glasshouse %s: %v", line, err)
				continue
			}
			if cmd.HasParent() && found.CommandPath() != cmd.CommandPath() && !strings.Contains(cmd.Example, "glasshouse "+path) {
				t.Errorf("glasshouse %s: the example is one of %s", path, found.CommandPath())
			}
			if err := found.ParseFlags(rest); err != nil {
				t.Errorf("glasshouse %s: %v", line, err)
				continue
			}
			if err := found.ValidateArgs(found.Flags().Args()); err != nil {
				t.Errorf("glasshouse %s: %v", line, err)
			}
			if _, group := found.Annotations[isGroup]; group {
				t.Errorf("glasshouse %s: uses an old form", line)
			}
		}
	}
	for path := range unused {
		t.Errorf("an example is for %q, which is not a command without an example of its own", path)
	}
	if checked < 150 {
		t.Errorf("checked %d command lines, want at least 150", checked)
	}
}

// commandsIn returns the arguments of the glasshouse commands in a shell script. Expansions become
// the word x.
func commandsIn(t *testing.T, script string) (all [][]string) {
	t.Helper()
	file, err := syntax.NewParser().Parse(strings.NewReader(script), "")
	if err != nil {
		t.Errorf("%q: %v", script, err)
		return nil
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		call, ok := n.(*syntax.CallExpr)
		if !ok || len(call.Args) == 0 || call.Args[0].Lit() != "glasshouse" {
			return true
		}
		var args []string
		for _, w := range call.Args[1:] {
			args = append(args, plainWord(w.Parts))
		}
		all = append(all, args)
		return true
	})
	return all
}

func plainWord(parts []syntax.WordPart) string {
	var b strings.Builder
	for _, p := range parts {
		switch p := p.(type) {
		case *syntax.Lit:
			b.WriteString(p.Value)
		case *syntax.SglQuoted:
			b.WriteString(p.Value)
		case *syntax.DblQuoted:
			b.WriteString(plainWord(p.Parts))
		default:
			b.WriteString("x")
		}
	}
	return b.String()
}
