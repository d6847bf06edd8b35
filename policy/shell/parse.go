package shell

import (
	"errors"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// What a line may cost. A line beyond these is opaque.
const (
	maxLine     = 64 << 10 // bytes of a line, and of a script within it
	maxCommands = 1000
	maxDepth    = 100      // statements within statements, scripts within scripts
	maxValue    = 32 << 10 // bytes of a variable's value
	maxWork     = 4 << 20  // bytes expanded and gone over again, variables copied
	maxBraces   = 1000     // words one word becomes
	maxOpen     = 20       // braces in one word
)

// A walker goes through one line and gathers what it runs.
type walker struct {
	line  Line
	depth int
	work  int

	// What functions and traps assign may change between any two statements.
	// True are those that are only ever given numbers.
	volatile    map[string]bool
	allVolatile bool
	selects     bool // there is a select, which reads
	opaqueCwd   bool // functions may change the directory whenever they are called
}

func parse(line string) Line {
	w := &walker{volatile: map[string]bool{}}
	w.script(w.newScope(), line, false, nil)
	return w.line
}

// opaque says why the whole line is not understood. The first reason stays.
func (w *walker) opaque(reason string) {
	if w.line.Opaque == "" {
		w.line.Opaque = reason
	}
}

// full reports whether enough was read: the rest of the line is not looked at.
func (w *walker) full() bool {
	switch {
	case len(w.line.Commands) >= maxCommands:
		w.opaque("too many commands")
	case w.depth > maxDepth:
		w.opaque("nested too deeply")
	case w.work > maxWork:
		w.opaque("too much to work out")
	default:
		return false
	}
	return true
}

// script reads a text as a shell does and walks it in s. posix says that the
// shell may not be bash.
func (w *walker) script(s *scope, text string, posix bool, via []string) {
	if reason := unreadable(text); reason != "" {
		w.opaque(reason)
		return
	}
	w.depth++
	defer func() { w.depth-- }()
	if w.full() {
		return
	}
	file, err := parseAs(posix, text)
	if err != nil {
		w.opaque("not understood as a shell command: " + message(err))
		// What stands before the mistake runs all the same.
		file, _ = syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.RecoverErrors(10)).Parse(strings.NewReader(text), "")
		if file == nil {
			return
		}
	}
	w.remember(s, file)
	r := reader{walker: w, text: text, posix: posix, via: via}
	r.stmts(s, file.Stmts, nil)
}

// Parsers are kept for the next script: to make one takes as long as a short
// script. Parse resets it, but one that has seen a mistake is not used again.
var bashParsers, posixParsers sync.Pool

func parseAs(posix bool, text string) (*syntax.File, error) {
	pool, lang := &bashParsers, syntax.LangBash
	if posix {
		pool, lang = &posixParsers, syntax.LangPOSIX
	}
	p, _ := pool.Get().(*syntax.Parser)
	if p == nil {
		p = syntax.NewParser(syntax.Variant(lang))
	}
	file, err := p.Parse(strings.NewReader(text), "")
	if err == nil {
		pool.Put(p)
	}
	return file, err
}

// unreadable says why a text cannot be read the way every shell reads it.
func unreadable(text string) string {
	if len(text) > maxLine {
		return "too long"
	}
	if !utf8.ValidString(text) {
		return "not valid UTF-8"
	}
	for _, c := range text {
		switch {
		case c == '\n' || c == '\t':
		case unicode.IsControl(c):
			return "holds a control character"
		case c != ' ' && unicode.IsSpace(c):
			return "holds a space that is none to the shell"
		}
	}
	if nesting(text) > maxDepth {
		return "nested too deeply"
	}
	return ""
}

// nesting is a bound of how deeply the parser would have to go, so that its
// stack stays small. Quotes are not looked at: more is counted than there is.
func nesting(text string) int {
	depth, most := 0, 0
	for i := range len(text) {
		switch text[i] {
		case '(', '{':
			depth++
			most = max(most, depth)
		case ')', '}':
			depth = max(depth-1, 0)
		}
	}
	return most
}

func message(err error) string {
	if e, ok := errors.AsType[syntax.ParseError](err); ok {
		return e.Text
	}
	return err.Error()
}
