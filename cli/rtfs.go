package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs"
	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
	"glasshouse/internal/atomicfile"

	"github.com/spf13/cobra"
)

func (c *command) rtfs() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rtfs", Short: "Run, check and format programs in RTFS, the capability language",
		Long: `RTFS is the small, pure language of manifests and capabilities; docs/reference/rtfs.md is its
reference. These commands run in this process and need no daemon. The only host calls
of a program are println and print, which write to standard output, and log, which
writes to standard error.`,
	}
	cmd.AddCommand(c.rtfsRun(), c.rtfsEval(), c.rtfsREPL(), c.rtfsCheck(), c.rtfsFmt(), c.rtfsValidate())
	return cmd
}

func (c *command) rtfsRun() *cobra.Command {
	return &cobra.Command{
		Use: "run FILE", Short: "Run a program and print its value", Args: cobra.ExactArgs(1),
		Long: `Run a program from a file or, for -, from standard input, and print the value of its
last form unless it is nil. With --json, the value is printed as JSON.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			src, err := c.source(args[0])
			if err != nil {
				return err
			}
			v, err := c.evaluate(cmd.Context(), args[0], src)
			if err != nil {
				return explain(err, src)
			}
			if v == nil && !c.json {
				return nil
			}
			return c.printValue(v)
		},
	}
}

func (c *command) rtfsEval() *cobra.Command {
	var lines bool
	cmd := &cobra.Command{
		Use: "eval [EXPRESSION]", Short: "Evaluate an expression and print its value", Args: cobra.MaximumNArgs(1),
		Long: `Evaluate one or several expressions and print the value of the last one.

With --jsonl, programs are read from standard input, one per line, as
{"id": …, "src": "…"}. The result is one line, {"id": …, "value": "…"} with the value
in RTFS syntax, or {"id": …, "error": {"kind": "…", "message": "…"}}. Each program has
its own environment and limits, so that no program blocks the others. Printed output is
discarded; steps and resource usage are part of the result.`,
		Example: `  glasshouse rtfs eval '(map inc [1 2 3])'
  echo '{"id": 1, "src": "(+ 1 2)"}' | glasshouse rtfs eval --jsonl`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case lines && len(args) > 0:
				return usagef("--jsonl reads programs from standard input and accepts none as an argument")
			case lines:
				return eachLine(c.env.Stdin, c.env.Stdout, func(r request) response { return evalLine(cmd.Context(), r) })
			case len(args) == 0:
				return usagef("no program given")
			}
			src := []byte(args[0])
			v, err := c.evaluate(cmd.Context(), "", src)
			if err != nil {
				return explain(err, src)
			}
			return c.printValue(v)
		},
	}
	cmd.Flags().BoolVar(&lines, "jsonl", false, "evaluate each line of standard input")
	return cmd
}

func (c *command) rtfsValidate() *cobra.Command {
	var lines bool
	cmd := &cobra.Command{
		Use: "validate [TYPE VALUE]", Short: "Check a value against a type", Args: cobra.MaximumNArgs(2),
		Long: `Check a value against a type, and print the reason for each mismatch. Both are in RTFS
syntax.

With --jsonl, pairs are read from standard input, one per line, as
{"id": …, "type": "…", "value": "…"}. The result is one line, {"id": …, "valid": …} or
{"id": …, "error": {"kind": "…", "message": "…"}}. Without a value, only the type is
parsed.`,
		Example: `  glasshouse rtfs validate '[:map [:age [:and :int [:>= 0]]]]' '{:age -1}'`,
		RunE: func(_ *cobra.Command, args []string) error {
			switch {
			case lines && len(args) > 0:
				return usagef("--jsonl reads types and values from standard input and accepts none as arguments")
			case lines:
				return eachLine(c.env.Stdin, c.env.Stdout, validateLine)
			case len(args) < 2:
				return usagef("give a type and a value")
			}
			t, err := schema.Parse("type", args[0])
			if err != nil {
				return err
			}
			v, err := readValue(args[1])
			if err != nil {
				return err
			}
			if err := t.Check(v); err != nil {
				return err
			}
			return c.print(map[string]bool{"valid": true}, func(w io.Writer) { fmt.Fprintln(w, "valid") })
		},
	}
	cmd.Flags().BoolVar(&lines, "jsonl", false, "check each line of standard input")
	return cmd
}

func (c *command) rtfsCheck() *cobra.Command {
	return &cobra.Command{
		Use: "check FILE...", Short: "Check manifests and programs without running them", Args: cobra.MinimumNArgs(1),
		Long: `Check files without running them. A file with (capability …) forms or in JSON is a
manifest: all fields are checked, and its types and code are compiled. Any other file
is a program, which is compiled.`,
		RunE: func(_ *cobra.Command, args []string) error {
			var bad []error
			for _, file := range args {
				src, err := c.source(file)
				if err == nil {
					err = c.checkFile(file, src)
				}
				bad = append(bad, err)
			}
			return errors.Join(bad...)
		},
	}
}

func (c *command) rtfsFmt() *cobra.Command {
	var write bool
	cmd := &cobra.Command{
		Use: "fmt FILE...", Short: "Format programs", Args: cobra.MinimumNArgs(1),
		Long: `Print programs in the standard format. Line breaks stay; lines are indented by their
brackets, and words are separated by one space. - is standard input. With -w, files are
changed in place, and the names of changed files are printed.`,
		RunE: func(_ *cobra.Command, args []string) error {
			for _, file := range args {
				src, err := c.source(file)
				if err != nil {
					return err
				}
				if err := c.formatFile(file, src, write); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&write, "write", "w", false, "write the result to the files")
	return cmd
}

func (c *command) formatFile(file string, src []byte, write bool) error {
	formatted, err := form.Format(file, src)
	if err != nil {
		return err
	}
	if !write || file == "-" {
		_, err = c.env.Stdout.Write(formatted)
		return err
	}
	if string(formatted) == string(src) {
		return nil
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(file, formatted, info.Mode().Perm()); err != nil {
		return fmt.Errorf("format %s: %w", file, err)
	}
	_, err = fmt.Fprintln(c.env.Stdout, file)
	return err
}

// source returns the content of a file; - is standard input.
func (c *command) source(file string) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(c.env.Stdin)
	}
	return os.ReadFile(file)
}

// evaluate runs a program and prints diagnostics for a person.
func (c *command) evaluate(ctx context.Context, file string, src []byte) (form.Value, error) {
	p, err := newInterp(terminalHost{c.env}).Compile(file, src)
	if err != nil {
		return nil, err
	}
	return p.Run(ctx)
}

// newInterp returns an interpreter with the type system.
func newInterp(h rtfs.Host) *rtfs.Interp {
	return rtfs.New(rtfs.Config{Host: h, Check: compileType})
}

func compileType(n *form.Node) (func(form.Value) error, error) {
	t, err := schema.Compile(n)
	if err != nil {
		return nil, err
	}
	return t.Check, nil
}

func (c *command) printValue(v form.Value) error {
	if !c.json {
		text, err := valueText(v)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(c.env.Stdout, text)
		return err
	}
	text, err := schema.ToJSON(v)
	if err != nil {
		return err
	}
	return c.writeJSON(append(text, '\n'))
}

// longestValue is the maximum length of a printed value, in bytes.
const longestValue = 16 << 20

func valueText(v form.Value) (string, error) {
	text, complete := form.Within(v, longestValue)
	if !complete {
		return "", form.Errorf("BudgetExhausted", "the text of the value is longer than %d bytes", longestValue)
	}
	return text, nil
}

// checkFile checks a manifest or a program.
func (c *command) checkFile(file string, src []byte) error {
	if !isManifest(file, src) {
		nodes, err := form.Read(file, src)
		if err == nil {
			err = checkCode(nodes...)
		}
		if err != nil {
			return explain(err, src)
		}
		return c.checked(file, "a program")
	}
	all, err := manifest.Read(file, src)
	if err != nil {
		return err
	}
	for _, capability := range all {
		if code := capability.Runtime.Code; code != nil {
			if err := checkCode(code); err != nil {
				return explain(err, src)
			}
		}
		if err := c.checked(file, fmt.Sprintf("capability %s %s, run by %s", capability.ID, capability.Version, capability.Runtime.Type)); err != nil {
			return err
		}
	}
	return nil
}

// checkCode compiles code and returns an error for undefined names.
func checkCode(nodes ...*form.Node) error {
	p, err := newInterp(nil).CompileNodes(nodes...)
	if err != nil {
		return err
	}
	for _, name := range p.Undefined() {
		return &form.Error{Kind: "UndefinedSymbol", Message: name + " is not defined", Pos: firstUse(nodes, form.Symbol(name))}
	}
	return nil
}

// firstUse returns the first position of a name.
func firstUse(nodes []*form.Node, name form.Symbol) form.Pos {
	for _, n := range nodes {
		if n.Atom == name {
			return n.Pos
		}
		if pos := firstUse(n.Items, name); pos.Line > 0 {
			return pos
		}
	}
	return form.Pos{}
}

func (c *command) checked(file, what string) error {
	return c.print(map[string]string{"file": file, "is": what}, func(w io.Writer) { fmt.Fprintf(w, "%s: ok, %s\n", file, what) })
}

// isManifest reports whether a file is a manifest: its name says so, its text is JSON, or it has
// a form (capability …).
func isManifest(file string, src []byte) bool {
	if filepath.Ext(file) == ".json" || isJSON(src) {
		return true
	}
	nodes, err := form.Read(file, src)
	if err != nil {
		return false
	}
	for _, n := range nodes {
		if n.Kind == form.ListNode && len(n.Items) > 0 && n.Items[0].Atom == form.Symbol("capability") {
			return true
		}
	}
	return false
}

// isJSON reports whether a text is a JSON object with keys, or an array that begins with one.
// Other JSON texts, such as {} and [1], are also RTFS programs.
func isJSON(src []byte) bool {
	var v any
	if json.Unmarshal(src, &v) != nil {
		return false
	}
	if all, ok := v.([]any); ok && len(all) > 0 {
		v = all[0]
	}
	object, ok := v.(map[string]any)
	return ok && len(object) > 0
}

// A terminalHost performs a program's calls for input and output at a terminal.
type terminalHost struct{ env Env }

func (h terminalHost) Call(_ context.Context, id string, input form.Value) (form.Value, error) {
	var err error
	switch id {
	case "ccos.io.println":
		_, err = fmt.Fprintln(h.env.Stdout, printedText(input))
	case "ccos.io.print":
		_, err = fmt.Fprint(h.env.Stdout, printedText(input))
	case "ccos.io.log":
		_, err = fmt.Fprintln(h.env.Stderr, printedText(input))
	default:
		return nil, unknownCapability(id)
	}
	return nil, err
}

func unknownCapability(id string) error {
	return form.Errorf("UnknownCapability", "%s cannot be called here: no policy engine is available", id)
}

// printedText returns the text that println prints for its arguments.
func printedText(input form.Value) string {
	args, ok := input.(form.Vector)
	if m, is := input.(*form.Map); is && m.Len() == 0 {
		return ""
	}
	if !ok {
		args = form.Vector{input}
	}
	words := make([]string, len(args))
	for i, v := range args {
		if s, ok := v.(string); ok {
			words[i] = s
		} else {
			words[i], _ = form.Within(v, longestValue)
		}
	}
	return strings.Join(words, " ")
}
