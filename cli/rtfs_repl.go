package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"glasshouse/capability/rtfs"
	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/lib"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func (c *command) rtfsREPL() *cobra.Command {
	return &cobra.Command{
		Use: "repl", Short: "Start an interactive RTFS session", Args: cobra.NoArgs,
		Long: `Evaluate typed expressions and print their values. Definitions stay until the end of
the session. An incomplete form continues on the next line. (doc name) describes a
function or a form. The tab key completes names, and the arrow keys recall lines, also
of earlier sessions. Ctrl-D ends the session.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if in, ok := c.env.Stdin.(*os.File); ok && term.IsTerminal(int(in.Fd())) && isTerminal(c.env.Stdout) {
				return c.interact(cmd.Context(), in)
			}
			r := newREPL(c.env)
			return r.loop(cmd.Context(), &plainLines{bufio.NewReader(c.env.Stdin)}, c.env.Stdout)
		},
	}
}

// interact runs the REPL on a terminal, which is in raw mode meanwhile.
func (c *command) interact(ctx context.Context, in *os.File) (err error) {
	old, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return fmt.Errorf("set the terminal to raw mode: %w", err)
	}
	defer func() { err = errors.Join(err, term.Restore(int(in.Fd()), old)) }()

	t := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{in, c.env.Stdout}, "")
	if width, height, err := term.GetSize(int(in.Fd())); err == nil && width > 0 { // the size of a terminal may be unknown
		t.SetSize(width, height)
	}
	kept, err := openHistory(historyFile(c.env.Getenv))
	if err != nil {
		fmt.Fprintf(t, "line history is not saved: %v\n", err)
	}
	defer func() { err = errors.Join(err, kept.close()) }()
	t.History = kept

	env := c.env
	env.Stdout, env.Stderr = t, t // the terminal converts line ends
	r := newREPL(env)
	t.AutoCompleteCallback = func(line string, pos int, key rune) (string, int, bool) {
		return r.complete(t, line, pos, key)
	}
	return r.loop(ctx, terminalLines{t}, t)
}

// A lineSource returns the lines that a user types. It returns io.EOF at the end.
type lineSource interface {
	line(prompt string) (string, error)
}

type terminalLines struct{ *term.Terminal }

func (t terminalLines) line(prompt string) (string, error) {
	t.SetPrompt(prompt)
	return t.ReadLine()
}

// plainLines reads lines of a file or another program, which needs no prompt.
type plainLines struct{ *bufio.Reader }

func (p *plainLines) line(string) (string, error) {
	line, err := p.ReadString('\n')
	if line != "" {
		err = nil
	}
	return strings.TrimSuffix(line, "\n"), err
}

// A repl reads, evaluates and prints.
type repl struct {
	session *rtfs.Session
}

func newREPL(env Env) *repl {
	return &repl{session: newInterp(terminalHost{env}).Session()}
}

func (r *repl) loop(ctx context.Context, lines lineSource, out io.Writer) error {
	for ctx.Err() == nil {
		src, err := r.read(lines)
		if err == io.EOF && src == "" {
			return nil
		}
		if err != nil && err != io.EOF {
			return err
		}
		if text := r.answer(ctx, src); text != "" {
			fmt.Fprintln(out, text)
		}
	}
	return nil
}

// read reads lines until the forms are complete or the input ends.
func (r *repl) read(lines lineSource) (string, error) {
	src, err := lines.line("rtfs> ")
	for err == nil && form.Unfinished([]byte(src)) {
		var more string
		more, err = lines.line("  ... ")
		src += "\n" + more
	}
	return src, err
}

// answer evaluates a text and returns the output. The output is empty if the text has no forms.
func (r *repl) answer(ctx context.Context, src string) string {
	nodes, err := form.Read("", []byte(src))
	if err != nil {
		return explain(err, []byte(src)).Error()
	}
	if len(nodes) == 0 {
		return ""
	}
	if name, ok := docRequest(nodes); ok {
		return r.doc(name)
	}
	v, err := r.session.Eval(ctx, "", []byte(src))
	if err != nil {
		return explain(err, []byte(src)).Error()
	}
	text, complete := form.Within(v, longestShown)
	if !complete {
		text += "…"
	}
	return text
}

// longestShown is the maximum length of a value in an interactive session, in bytes.
const longestShown = 64 << 10

// docRequest reports whether a text is (doc name).
func docRequest(nodes []*form.Node) (name string, ok bool) {
	if len(nodes) != 1 || nodes[0].Kind != form.ListNode || len(nodes[0].Items) != 2 || nodes[0].Items[0].Atom != form.Symbol("doc") {
		return "", false
	}
	symbol, ok := nodes[0].Items[1].Atom.(form.Symbol)
	return string(symbol), ok
}

func (r *repl) doc(name string) string {
	for _, b := range lib.All() {
		if b.Name == name {
			return fmt.Sprintf("(%s)\n  %s", strings.TrimSpace(name+" "+strings.Trim(b.Args, "[]")), b.Doc)
		}
	}
	if text, ok := formDocs[name]; ok {
		return text
	}
	if id, ok := lib.HostNames[name]; ok {
		return fmt.Sprintf("(%s & args)\n  Calls the capability %s.", name, id)
	}
	if slices.Contains(r.session.Names(), name) {
		return name + " is defined in this session"
	}
	return "unknown name " + name + similarNames(name, r.names())
}

// similarNames suggests names that contain the typed name.
func similarNames(name string, names []string) string {
	var near []string
	for _, n := range names {
		if strings.Contains(n, name) && len(near) < 8 {
			near = append(near, n)
		}
	}
	if len(near) == 0 {
		return ""
	}
	return "; similar names: " + strings.Join(near, " ")
}

// names returns all names that can be typed, sorted.
func (r *repl) names() []string {
	names := append(rtfs.Forms(), r.session.Names()...)
	for _, b := range lib.All() {
		names = append(names, b.Name)
	}
	for name := range lib.HostNames {
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// complete completes the name before the cursor when tab is pressed. If the name is ambiguous,
// it completes the common prefix and shows the candidates.
func (r *repl) complete(out io.Writer, line string, pos int, key rune) (string, int, bool) {
	if key != '\t' {
		return "", 0, false
	}
	start := strings.LastIndexAny(line[:pos], " \t()[]{}\"'`~^;") + 1
	word := line[start:pos]
	var fits []string
	for _, name := range r.names() {
		if word != "" && strings.HasPrefix(name, word) {
			fits = append(fits, name)
		}
	}
	if len(fits) == 0 {
		return line, pos, true
	}
	longer := commonPrefix(fits)
	switch {
	case len(fits) == 1 && !strings.HasPrefix(line[pos:], " "):
		longer += " "
	case len(fits) > 1 && longer == word:
		fmt.Fprintln(out, strings.Join(fits, "  "))
	}
	return line[:start] + longer + line[pos:], start + len(longer), true
}

func commonPrefix(names []string) string {
	prefix := names[0]
	for _, name := range names[1:] {
		for !strings.HasPrefix(name, prefix) {
			prefix = prefix[:len(prefix)-1]
		}
	}
	return prefix
}

// explain returns an error with details for a person: the position of the error and the call stack.
func explain(err error, src []byte) error {
	e, ok := errors.AsType[*form.Error](err)
	if !ok {
		return err
	}
	var b strings.Builder
	b.WriteString(e.Error())
	if e.Pos.Line > 0 && !strings.Contains(e.Message, "\n") {
		if excerpt := form.Excerpt(src, e.Pos); excerpt != "" {
			b.WriteString("\n" + excerpt)
		}
	}
	for _, frame := range e.Stack {
		fmt.Fprintf(&b, "\n  in %s, called at %s", frame.Func, frame.Pos)
	}
	return programError{b.String(), e}
}

// A programError is the error of a program with a detailed message.
type programError struct {
	text string
	err  error
}

func (e programError) Error() string { return e.text }
func (e programError) Unwrap() error { return e.err }

// A history is the lines that were typed, in a file for the next session.
type history struct {
	lines []string // the oldest first
	file  *os.File // nil: they are not kept
}

// mostLines is how many lines of earlier sessions are looked at.
const mostLines = 1000

func historyFile(getenv func(string) string) string {
	return filepath.Join(stateDir(getenv), "rtfs-history")
}

// stateDir returns the directory for the state that the commands keep per user.
func stateDir(getenv func(string) string) string {
	state := getenv("XDG_STATE_HOME")
	if state == "" {
		state = filepath.Join(getenv("HOME"), ".local", "state")
	}
	return filepath.Join(state, "glasshouse")
}

// openHistory returns a history in any case: with an error, one that is not kept.
func openHistory(name string) (*history, error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return &history{}, fmt.Errorf("create the directory of the history: %w", err)
	}
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return &history{}, fmt.Errorf("read the history: %w", err)
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	if len(lines) > mostLines {
		lines = lines[len(lines)-mostLines:]
	}
	if len(text) == 0 {
		lines = nil
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	return &history{lines: lines, file: file}, err
}

// Add keeps a line, unless it is the one before again.
func (h *history) Add(line string) {
	if line == "" || len(h.lines) > 0 && h.lines[len(h.lines)-1] == line {
		return
	}
	h.lines = append(h.lines, line)
	if h.file != nil {
		fmt.Fprintln(h.file, line)
	}
}

func (h *history) Len() int        { return len(h.lines) }
func (h *history) At(i int) string { return h.lines[len(h.lines)-1-i] }

func (h *history) close() error {
	if h.file == nil {
		return nil
	}
	return h.file.Close()
}
