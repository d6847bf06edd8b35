package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mvdan.cc/sh/v3/syntax"
)

// TestDocumentedCommandLines checks every command line of Glasshouse in the documentation, in
// blocks of code and in the text: the command and its flags exist, and are not old names. Lines
// of code also have the right number of arguments. Records of decisions describe older versions.
func TestDocumentedCommandLines(t *testing.T) {
	files := []string{"../README.md", "../CONTRIBUTING.md", "../SECURITY.md", "../examples/places/README.md"}
	err := filepath.WalkDir("../docs", func(file string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && d.Name() == "decisions" {
			return filepath.SkipDir
		}
		if filepath.Ext(file) == ".md" && d.Name() != "benchmarks-data.md" { // a table in a block of code
			files = append(files, file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range documentedCommands(string(b)) {
			for _, args := range glasshouseCalls(d.text) {
				checked++
				if err := checkCommandLine(args, d.code); err != nil {
					t.Errorf("%s:%d: glasshouse %s: %v", file, d.line, strings.Join(args, " "), err)
				}
			}
		}
	}
	if checked < 400 {
		t.Errorf("checked %d command lines, want at least 400: are they still found?", checked)
	}
}

// A documented command is a line of code or a piece of code in the text.
type documentedCommand struct {
	line int
	text string
	code bool // a line of code
}

var inlineCode = regexp.MustCompile("`([^`]+)`")

func documentedCommands(page string) (all []documentedCommand) {
	fence, continued := "", ""
	for i, line := range strings.Split(page, "\n") {
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "```") {
			if fence == "" {
				fence = trimmed
			} else {
				fence = ""
			}
			continue
		}
		indented := strings.HasPrefix(line, "    ") && !strings.HasPrefix(trimmed, "- ")
		if fence == "" && !indented {
			for _, m := range inlineCode.FindAllStringSubmatch(line, -1) {
				all = append(all, documentedCommand{i + 1, m[1], false})
			}
			continue
		}
		if fence != "" && fence != "```console" && fence != "```sh" && fence != "```bash" {
			continue
		}
		if fence == "```console" && !strings.HasPrefix(trimmed, "$ ") && !strings.HasPrefix(trimmed, "# ") && continued == "" {
			continue // output
		}
		trimmed = continued + strings.TrimPrefix(strings.TrimPrefix(trimmed, "$ "), "# ")
		continued = ""
		if before, ok := strings.CutSuffix(trimmed, "\\"); ok {
			continued = before
			continue
		}
		all = append(all, documentedCommand{i + 1, trimmed, true})
	}
	return all
}

// glasshouseCalls returns the arguments of each call of glasshouse in a shell command.
func glasshouseCalls(text string) (all [][]string) {
	f, err := syntax.NewParser().Parse(strings.NewReader(text), "")
	if err != nil {
		return nil // a part of a longer command, or no shell command
	}
	syntax.Walk(f, func(n syntax.Node) bool {
		call, ok := n.(*syntax.CallExpr)
		if !ok {
			return true
		}
		var args []string
		for _, w := range call.Args {
			args = append(args, literal(w.Parts))
		}
		if len(args) > 1 && (args[0] == "sudo" || args[0] == "nohup") {
			args = args[1:]
		}
		if len(args) > 1 && (args[0] == "glasshouse" || args[0] == "bin/glasshouse") {
			all = append(all, args[1:])
		}
		return true
	})
	return all
}

// literal returns a word without its quotes, and with $ for each expansion.
func literal(parts []syntax.WordPart) (word string) {
	for _, p := range parts {
		switch p := p.(type) {
		case *syntax.Lit:
			word += p.Value
		case *syntax.SglQuoted:
			word += p.Value
		case *syntax.DblQuoted:
			word += literal(p.Parts)
		default:
			word += "$"
		}
	}
	return word
}

// checkCommandLine checks that a command and its flags exist, and with complete also the number of
// its arguments.
func checkCommandLine(args []string, complete bool) error {
	c := &command{env: Env{Getenv: func(string) string { return "" }}}
	cmd, rest, err := c.root().Find(args)
	if err != nil {
		return err
	}
	for at := cmd; at.HasParent(); at = at.Parent() {
		if at.Hidden && at.Annotations[isGroup] == "" {
			return fmt.Errorf("%s is an old name or not for users", at.CommandPath())
		}
	}
	if len(rest) > 0 && !cmd.Runnable() && !strings.HasPrefix(rest[0], "-") {
		return fmt.Errorf("%s has no command %s", cmd.CommandPath(), rest[0])
	}
	// In the text, a command may be followed by placeholders such as […].
	if err := cmd.ParseFlags(slices.DeleteFunc(rest, func(a string) bool { return a == "…" || a == "[…]" })); err != nil {
		if !complete && strings.Contains(err.Error(), "needs an argument") {
			return nil // the text names a flag
		}
		return err
	}
	if !complete || slices.ContainsFunc(rest, func(a string) bool { return strings.ContainsAny(a, "…") }) || cmd.Args == nil {
		return nil
	}
	if err := cmd.Args(cmd, cmd.Flags().Args()); err != nil {
		return errors.Unwrap(err)
	}
	return nil
}
