package shell

import (
	"strings"
)

// An interpreter runs program text: a file, which is the command itself, or text from an
// argument or standard input, which is not analysed.
type interpreter struct {
	flags string // short options without an argument
	args  string // short options with an argument
	longs string // as in options
	ends  string // short options whose argument selects the program: python -m
}

var interpreters = map[string]interpreter{
	"python":    {flags: "bBdEhIOPqRsSuvVx", args: "WX", ends: "m"},
	"pypy":      {flags: "bBdEhIOPqRsSuvVx", args: "WX", ends: "m"},
	"perl":      {flags: "acfhnpsStTvwWX", args: "I"},
	"ruby":      {flags: "achnpsSvw", args: "I"},
	"jruby":     {flags: "achnpsSvw", args: "I"},
	"node":      {flags: "chv", args: "r", longs: "check no-warnings trace-warnings test enable-source-maps require="},
	"nodejs":    {flags: "chv", args: "r", longs: "check no-warnings trace-warnings test enable-source-maps require="},
	"php":       {flags: "hilmnv"},
	"lua":       {flags: "vEW", args: "l"},
	"luajit":    {flags: "vE", args: "l"},
	"Rscript":   {longs: "vanilla no-save no-restore no-environ verbose"},
	"R":         {},
	"julia":     {longs: "project? color="},
	"groovy":    {},
	"scala":     {},
	"tclsh":     {},
	"wish":      {},
	"osascript": {},
	"octave":    {},
	"elixir":    {},
	"erl":       {},
	"guile":     {},
	"racket":    {},
	"sbcl":      {},
	"ocaml":     {},
	"swipl":     {},
	"runghc":    {},
}

const programText = "runs program text"

// language returns the name of an interpreter without its version: python for python3.11.
func language(base string) string { return strings.TrimRight(base, "0123456789.-") }

func (r *reader) interpreter(s *scope, c call, p interpreter) {
	o := options{flags: p.flags, args: p.args, ends: p.ends, longs: p.longs + " version help"}
	got, n, bad := o.split(c.args[1:])
	rest := c.args[1+n:]
	if bad != "" {
		r.fail(s, c, programText+": "+bad)
		return
	}
	if module, there := find(got, "m"); there && p.ends == "m" { // the remaining arguments belong to the module
		switch module.text {
		case "timeit", "pdb", "code", "asyncio", "cProfile", "profile", "trace", "IPython", "ipdb":
			r.fail(s, c, programText)
		default:
			r.record(s, c, Command{})
		}
		return
	}
	switch {
	case has(got, "version", "help", "v", "V", "h") && len(rest) == 0 && language(Base(c.args[0].text)) != "lua":
		r.record(s, c, Command{})
	case len(rest) == 0 && has(got, "test"): // node runs its own tests from their files
		r.record(s, c, Command{})
	case len(rest) == 0:
		r.fail(s, c, programText+" from its standard input")
	case fromDescriptor(rest[0]):
		r.fail(s, c, programText+" that is unknown")
	default:
		r.record(s, c, Command{})
	}
}

// awk records awk. Most awk programs start no programs and write no files.
func (r *reader) awk(s *scope, c call) {
	o := options{args: "Fv", longs: "field-separator= assign= posix traditional re-interval version help"}
	_, n, bad := o.split(c.args[1:])
	rest := c.args[1+n:]
	switch {
	case bad != "":
		r.fail(s, c, programText+": "+bad)
	case len(rest) == 0:
		r.record(s, c, Command{})
	case rest[0].hole() || rest[0].loose():
		r.fail(s, c, programText+" that is unknown")
	case strings.ContainsAny(rest[0].text, "|>@") || strings.Contains(rest[0].text, "system") || strings.Contains(rest[0].text, "getline"):
		r.fail(s, c, programText+" that may start programs or write files")
	default:
		r.record(s, c, Command{})
	}
}

// sed records sed, like awk.
func (r *reader) sed(s *scope, c call) {
	o := options{flags: "nEruzs", args: "el", maybe: "i",
		longs: "quiet silent regexp-extended unbuffered null-data separate expression= line-length= in-place? debug posix follow-symlinks sandbox version help"}
	got, n, bad := o.split(c.args[1:])
	rest := c.args[1+n:]
	if bad != "" {
		r.fail(s, c, programText+": "+bad)
		return
	}
	var scripts []field
	for _, g := range got {
		if g.name == "e" || g.name == "expression" {
			scripts = append(scripts, g.value)
		}
	}
	if len(scripts) == 0 && len(rest) > 0 {
		scripts, rest = rest[:1], rest[1:]
	}
	for _, a := range rest { // options may follow the files
		if a.multi || strings.HasPrefix(a.text, "-") && len(a.text) > 1 || strings.HasPrefix(a.text, Hole) {
			c.opaque = programText + ": unsupported option"
		}
	}
	for _, t := range scripts {
		if t.hole() || t.loose() || !quietSed(t.text) {
			c.opaque = programText + " that may start programs or write files"
		}
	}
	r.record(s, c, Command{})
}

// quietSed reports whether a sed script certainly starts no programs and writes no named files.
// It accepts only commands that cannot do either.
func quietSed(script string) bool {
	p := sedScript(script)
	for p != "" {
		if !p.command() {
			return false
		}
	}
	return true
}

type sedScript string

func (p *sedScript) peek() byte {
	if *p == "" {
		return 0
	}
	return (*p)[0]
}

func (p *sedScript) next() byte {
	c := p.peek()
	if c != 0 {
		*p = (*p)[1:]
	}
	return c
}

func (p *sedScript) skip(chars string) { *p = sedScript(strings.TrimLeft(string(*p), chars)) }

func (p *sedScript) command() bool {
	p.skip(" \t\n;}")
	if *p == "" {
		return true
	}
	if !p.address() {
		return false
	}
	p.skip(" \t")
	if p.peek() == ',' {
		p.next()
		p.skip(" \t+~")
		if !p.address() {
			return false
		}
	}
	p.skip(" \t!")
	switch c := p.next(); c {
	case '{', '=', 'd', 'D', 'g', 'G', 'h', 'H', 'n', 'N', 'p', 'P', 'x', 'z', 'F':
		return true
	case 'q', 'Q', 'l', 'L':
		p.skip(" \t0123456789")
		return true
	case 's', 'y':
		return p.delimited(c == 's')
	case 'a', 'i', 'c', 'b', 't', 'T', ':', '#':
		// A text or a label extends to the end of the line. Lines with a continuation are not
		// analysed.
		line, rest, _ := strings.Cut(string(*p), "\n")
		if strings.Contains(line, `\`) && rest != "" || c == ':' && strings.Contains(line, ";") {
			return false
		}
		if strings.IndexByte("btT", c) >= 0 {
			if label, more, there := strings.Cut(line, ";"); there {
				*p = sedScript(strings.TrimLeft(more+"\n"+rest, " \t"))
				return !strings.Contains(label, "}")
			}
		}
		*p = sedScript(rest)
		return true
	}
	return false
}

// address parses one address, if present.
func (p *sedScript) address() bool {
	switch c := p.peek(); {
	case c == '$':
		p.next()
	case c >= '0' && c <= '9':
		p.skip("0123456789~")
	case c == '/':
		p.next()
		if !p.until('/') {
			return false
		}
		p.skip("IM")
	case c == '\\':
		return false
	}
	return true
}

// until skips to an unescaped delimiter. Implementations of sed differ on delimiters in
// brackets, so those are rejected.
func (p *sedScript) until(d byte) bool {
	bracket := false
	for *p != "" {
		switch c := p.next(); {
		case c == '\\':
			if p.next() == 0 {
				return false
			}
		case c == d:
			return !bracket
		case c == '\n':
			return false
		case c == '[':
			bracket = true
		case c == ']':
			bracket = false
		}
	}
	return false
}

// delimited parses the parts of s or y.
func (p *sedScript) delimited(flags bool) bool {
	d := p.next()
	if d == 0 || d == '\n' || d == '\\' || d >= 0x80 || d == '[' || d == ']' {
		return false
	}
	if !p.until(d) {
		return false
	}
	for { // the replacement has no bracket expressions
		c := p.next()
		if c == 0 || c == '\n' {
			return false
		}
		if c == '\\' {
			if p.next() == 0 {
				return false
			}
			continue
		}
		if c == d {
			break
		}
	}
	if flags {
		p.skip("gpiIM0123456789")
	}
	p.skip(" \t")
	return *p == "" || strings.IndexByte(";}\n#", p.peek()) >= 0
}
