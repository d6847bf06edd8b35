package shell

import (
	"errors"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// Limits of the analysis. A line that exceeds one of them is opaque.
const (
	maxLine     = 64 << 10 // bytes of a line, and of a script within it
	maxCommands = 1000
	maxDepth    = 100      // nesting of statements and scripts
	maxValue    = 32 << 10 // bytes of a variable's value
	maxWork     = 4 << 20  // bytes expanded or parsed again, and variables copied
	maxBraces   = 1000     // words that result from one word
	maxOpen     = 20       // braces in one word
)

// A walker analyses one line and collects its commands.
type walker struct {
	line  Line
	depth int
	work  int

	// volatile contains the variables that functions and traps may assign between any two
	// statements. It is true for variables that are only assigned numbers.
	volatile    map[string]bool
	allVolatile bool
	selects     bool // the script contains a select, which reads its input
	opaqueCwd   bool // functions may change the directory when they are called
}

func parse(line string) Line {
	w := &walker{volatile: map[string]bool{}}
	w.script(w.newScope(), line, false, nil)
	return w.line
}

// opaque marks the whole line as opaque. The first reason is kept.
func (w *walker) opaque(reason string) {
	if w.line.Opaque == "" {
		w.line.Opaque = reason
	}
}

// full reports whether a limit is exceeded. Then the rest of the line is not analysed.
func (w *walker) full() bool {
	switch {
	case len(w.line.Commands) >= maxCommands:
		w.opaque("too many commands")
	case w.depth > maxDepth:
		w.opaque("nested too deeply")
	case w.work > maxWork:
		w.opaque("too expensive to analyse")
	default:
		return false
	}
	return true
}

// script parses a text as a shell script and walks it in s. posix is set if the shell may not
// be bash.
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
		w.opaque("cannot be parsed as a shell command: " + message(err))
		// The statements before a syntax error run nevertheless.
		file, _ = syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.RecoverErrors(10)).Parse(strings.NewReader(text), "")
		if file == nil {
			return
		}
	}
	w.remember(s, file)
	r := reader{walker: w, text: text, posix: posix, via: via}
	r.stmts(s, file.Stmts, nil)
}

// Parsers are reused, because creating one takes as long as parsing a short script. Parse
// resets a parser. A parser that has reported an error is discarded.
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

// unreadable returns the reason if shells disagree on the parsing of a text, or "".
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
			return "contains a control character"
		case c != ' ' && unicode.IsSpace(c):
			return "contains white space that is not white space in a shell"
		}
	}
	if nesting(text) > maxDepth {
		return "nested too deeply"
	}
	return ""
}

// nesting returns an upper bound of the recursion depth of the parser, to limit its stack. It
// does not interpret quotes, so it may exceed the actual depth.
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
