package shell

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// A field is one argument that results from a word.
type field struct {
	text  string // with Holes
	multi bool   // stands for any number of arguments
	glob  bool   // the shell replaces it by matching file names
}

func (f field) hole() bool { return strings.Contains(f.text, Hole) }

// home represents the value of HOME while a word is being expanded. Only at the beginning of
// the complete word it can be written as "~".
const home = "\x01"

// completed returns the text of a completely expanded word. A literal leading tilde is replaced by
// a Hole.
func completed(text string) string {
	if rest, is := strings.CutPrefix(text, home); is && (rest == "" || rest[0] == '/') {
		return "~" + strings.ReplaceAll(rest, home, Hole)
	}
	if strings.HasPrefix(text, "~") {
		text = Hole + text[1:]
	}
	return strings.ReplaceAll(text, home, Hole)
}

// raw converts a complete text for use as a part of another word.
func raw(text string) string {
	if strings.HasPrefix(text, "~") {
		return home + text[1:]
	}
	return text
}

// loose reports whether the field may expand to a number of arguments other than one.
func (f field) loose() bool { return f.multi || f.glob }

// A fielder collects the fields of one word.
type fielder struct {
	done   []field
	now    strings.Builder
	there  bool // now is a field even if it is empty
	multi  bool
	active []bool // which bytes of now are unquoted, for globs
}

func (f *fielder) quoted(s string) {
	f.there = true
	f.now.WriteString(s)
	f.active = append(f.active, make([]bool, len(s))...)
}

// plain adds unquoted literal text.
func (f *fielder) plain(s string) {
	if s == "" {
		return
	}
	f.there = true
	f.now.WriteString(s)
	for range len(s) {
		f.active = append(f.active, true)
	}
}

// split adds the value of an unquoted expansion.
func (f *fielder) split(v value) {
	if v.number && v.text == Hole {
		f.quoted(Hole)
		return
	}
	for s := v.text; s != ""; {
		i := strings.IndexAny(s, " \t\n"+Hole)
		if i < 0 {
			f.plain(s)
			return
		}
		f.plain(s[:i])
		if s[i] == Hole[0] {
			f.quoted(Hole)
			f.multi = true
		} else {
			f.end()
		}
		s = s[i+1:]
	}
}

func (f *fielder) end() {
	if !f.there {
		return
	}
	text := f.now.String()
	f.done = append(f.done, field{text: completed(text), multi: f.multi, glob: globs(text, f.active)})
	f.now.Reset()
	f.there, f.multi, f.active = false, false, nil
}

// globs reports whether text has an unquoted *, ? or [ with its ].
func globs(text string, active []bool) bool {
	open := false
	for i := range len(text) {
		if !active[i] {
			continue
		}
		switch text[i] {
		case '*', '?':
			return true
		case '[':
			open = true
		case ']':
			if open {
				return true
			}
		}
	}
	return false
}

// fields expands words as the arguments of a command.
func (r *reader) fields(s *scope, words []*syntax.Word) []field {
	var all []field
	for _, word := range words {
		for _, word := range r.braces(word) {
			f := fielder{}
			r.parts(s, &f, word.Parts)
			f.end()
			for _, f := range f.done {
				r.work += len(f.text)
			}
			all = append(all, f.done...)
		}
		if r.full() {
			break
		}
	}
	return all
}

// braces performs brace expansion.
func (r *reader) braces(word *syntax.Word) []*syntax.Word {
	open := 0
	for _, part := range word.Parts {
		if lit, ok := part.(*syntax.Lit); ok {
			open += strings.Count(lit.Value, "{")
		}
	}
	if open == 0 {
		return []*syntax.Word{word}
	}
	if open > maxOpen {
		r.opaque("too many braces in one word")
		return []*syntax.Word{word}
	}
	split := &syntax.Word{Parts: slices.Clone(word.Parts)}
	if !syntax.SplitBraces(split) {
		return []*syntax.Word{word}
	}
	if r.posix {
		r.opaque("braces that not every shell expands")
	}
	var words []*syntax.Word
	for w, err := range expand.BracesSeq(nil, split) {
		if err != nil || len(words) == maxBraces {
			r.opaque("braces that expand to too many words")
			break
		}
		words = append(words, w)
	}
	return words
}

// one expands a word that becomes exactly one text: a value, or a file to open.
func (r *reader) one(s *scope, word *syntax.Word) string {
	if word == nil {
		return ""
	}
	f := fielder{}
	r.parts(s, &f, word.Parts)
	f.end()
	if len(f.done) == 1 && !f.done[0].multi {
		return f.done[0].text
	}
	if len(f.done) == 0 {
		return ""
	}
	return Hole
}

// assignable expands a word as the value of a variable, without word splitting.
func (r *reader) assignable(s *scope, word *syntax.Word) value {
	if word == nil {
		return known("")
	}
	if numericWord(word) {
		if lit := word.Lit(); lit == "" {
			r.inside(s, word)
			return someNumber
		}
	}
	f := fielder{}
	if len(word.Parts) > 0 {
		if lit, ok := word.Parts[0].(*syntax.Lit); ok && strings.HasPrefix(lit.Value, "~") {
			r.parts(s, &f, word.Parts[:1])
			r.quotedParts(s, &f, word.Parts[1:], true)
			return known(f.now.String())
		}
	}
	r.quotedParts(s, &f, word.Parts, true)
	return known(f.now.String())
}

func (r *reader) parts(s *scope, f *fielder, parts []syntax.WordPart) {
	for i, part := range parts {
		switch part := part.(type) {
		case *syntax.Lit:
			text := part.Value
			if i == 0 && strings.HasPrefix(text, "~") {
				text = r.tilde(f, text, len(parts) > 1)
			}
			r.lit(f, strings.ReplaceAll(strings.ReplaceAll(text, "=~", "="+Hole), ":~", ":"+Hole))
		case *syntax.ParamExp:
			if isAll(part) {
				r.all(s, f, false)
				continue
			}
			f.split(r.param(s, part))
		case *syntax.CmdSubst:
			r.substitution(s, part)
			f.quoted(Hole)
			f.multi = true
		case *syntax.ExtGlob:
			f.plain(r.source(part))
			f.plain("*")
		default:
			r.quotedParts(s, f, parts[i:i+1], false)
		}
	}
}

// lit adds literal text, with backslashes removed.
func (r *reader) lit(f *fielder, text string) {
	for text != "" {
		i := strings.IndexByte(text, '\\')
		if i < 0 || i+1 == len(text) {
			f.plain(text)
			return
		}
		f.plain(text[:i])
		_, n := utf8.DecodeRuneInString(text[i+1:])
		if c := text[i+1 : i+1+n]; c != "\n" {
			f.quoted(c)
		}
		text = text[i+1+n:]
	}
}

// tilde keeps "~" and "~/", and replaces other home directories by a Hole. It returns the rest
// of the text.
func (r *reader) tilde(f *fielder, text string, more bool) string {
	name, rest, slash := strings.Cut(text[1:], "/")
	switch {
	case name == "" && (slash || !more):
		f.quoted(home)
	case strings.ContainsAny(name, `\`):
		f.plain("~")
		return text[1:]
	default:
		f.quoted(Hole)
	}
	if slash {
		return "/" + rest
	}
	return ""
}

// quotedParts adds parts that are not split into fields. bare is set if they are outside of
// double quotes.
func (r *reader) quotedParts(s *scope, f *fielder, parts []syntax.WordPart, bare bool) {
	for _, part := range parts {
		switch part := part.(type) {
		case *syntax.Lit:
			if bare {
				f.quoted(unescape(part.Value))
			} else {
				f.quoted(unescapeQuoted(part.Value))
			}
		case *syntax.SglQuoted:
			text := part.Value
			if part.Dollar {
				text = strings.ReplaceAll(ansi(text), home, Hole)
				if r.posix {
					r.opaque("quotes that not every shell supports")
				}
			}
			f.quoted(text)
		case *syntax.DblQuoted:
			f.quoted("")
			if len(part.Parts) == 1 {
				if p, ok := part.Parts[0].(*syntax.ParamExp); ok && isAll(p) && p.Param.Value == "@" {
					f.there = f.now.Len() > 0
					r.all(s, f, true)
					continue
				}
			}
			r.quotedParts(s, f, part.Parts, false)
		case *syntax.ParamExp:
			v := r.param(s, part)
			f.quoted(v.text)
			f.multi = f.multi || many(part)
		case *syntax.CmdSubst:
			r.substitution(s, part)
			f.quoted(Hole)
		case *syntax.ArithmExp:
			r.arithmetic(s, part.X)
			f.quoted(Hole)
		case *syntax.ProcSubst:
			r.stmts(s.clone(), part.Stmts, nil)
			f.quoted("/dev/fd/" + Hole)
		case *syntax.ExtGlob:
			f.quoted(r.source(part))
		default:
			r.opaque("an unsupported word")
			f.quoted(Hole)
			f.multi = true
		}
	}
}

// isAll reports whether p is $@ or $* without modification.
func isAll(p *syntax.ParamExp) bool {
	return p.Param != nil && (p.Param.Value == "@" || p.Param.Value == "*") && plain(p)
}

// all adds the positional parameters.
func (r *reader) all(s *scope, f *fielder, quoted bool) {
	if !s.given {
		f.quoted(Hole)
		f.multi = true
		return
	}
	for i, p := range s.params[min(1, len(s.params)):] {
		if i > 0 {
			f.end()
		}
		if quoted {
			f.quoted(raw(p.text))
		} else {
			f.split(known(raw(p.text)))
		}
		f.multi = f.multi || p.multi
	}
}

// many reports whether p expands to several fields within double quotes.
func many(p *syntax.ParamExp) bool {
	if p.Param != nil && p.Param.Value == "@" || p.Names != 0 || p.Excl {
		return true
	}
	if word, ok := p.Index.(*syntax.Word); ok {
		return word.Lit() == "@"
	}
	return false
}

// plain reports whether p consists only of a name.
func plain(p *syntax.ParamExp) bool {
	return !p.Excl && !p.Length && !p.Width && !p.IsSet && p.Flags == nil && p.NestedParam == nil && p.Index == nil &&
		len(p.Modifiers) == 0 && p.Slice == nil && p.Repl == nil && p.Names == 0 && p.Exp == nil
}

// param returns the value of a parameter expansion.
func (r *reader) param(s *scope, p *syntax.ParamExp) value {
	if p.Param == nil {
		r.opaque("an unsupported parameter")
		return unknown
	}
	name := p.Param.Value
	if plain(p) {
		return r.parameter(s, name)
	}
	r.paramInside(s, p)
	if p.Length {
		return someNumber
	}
	if p.Exp == nil || p.Exp.Word == nil || p.Excl || p.Index != nil || p.Slice != nil || p.Repl != nil {
		return unknown
	}
	v := r.parameter(s, name)
	if strings.Contains(v.text, Hole) {
		return unknown
	}
	switch p.Exp.Op {
	case syntax.DefaultUnset, syntax.DefaultUnsetOrNull, syntax.ErrorUnset, syntax.ErrorUnsetOrNull, syntax.AssignUnset, syntax.AssignUnsetOrNull:
		if v.text != "" {
			return v
		}
	}
	return unknown
}

func (r *reader) parameter(s *scope, name string) value {
	i, err := strconv.Atoi(name)
	if err != nil {
		return s.get(name)
	}
	switch {
	case !s.given:
		return unknown
	case i < len(s.params):
		if s.params[i].loose() {
			return unknown
		}
		return known(raw(s.params[i].text))
	}
	for _, p := range s.params {
		if p.multi {
			return unknown
		}
	}
	return known("")
}

// paramInside checks the commands that a parameter expansion runs.
func (r *reader) paramInside(s *scope, p *syntax.ParamExp) {
	r.index(s, p.Index)
	if p.Slice != nil {
		r.arithmetic(s, p.Slice.Offset)
		r.arithmetic(s, p.Slice.Length)
	}
	if p.Repl != nil {
		r.inside(s, p.Repl.Orig)
		r.inside(s, p.Repl.With)
	}
	if p.Excl && p.Names == 0 {
		// The name may refer to an array element, whose index is evaluated.
		if v := s.get(p.Param.Value); strings.ContainsAny(v.text, "["+Hole) {
			r.opaque("an indirect variable with an unknown name")
		}
	}
	if p.Exp != nil {
		if p.Exp.Op == syntax.OtherParamOps {
			r.opaque("a value that is expanded again")
		}
		r.inside(s, p.Exp.Word)
		if p.Exp.Op == syntax.AssignUnset || p.Exp.Op == syntax.AssignUnsetOrNull {
			if steers(p.Param.Value) {
				r.opaque("sets " + p.Param.Value + ", which changes the behaviour of programs")
			}
			r.set(s, p.Param.Value, unknown)
		}
	}
}

// inside checks the commands that the expansion of a word runs.
func (r *reader) inside(s *scope, word *syntax.Word) {
	if word != nil {
		r.parts(s, &fielder{}, word.Parts)
	}
}

func (r *reader) substitution(s *scope, c *syntax.CmdSubst) {
	in := s
	if !c.TempFile && !c.ReplyVar { // these run in the current shell
		in = s.clone()
	}
	r.stmts(in, c.Stmts, nil)
}

// unescape removes backslashes from unquoted text.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
			if s[i] == '\n' {
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// unescapeQuoted removes the backslashes that are special within double quotes.
func unescapeQuoted(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) && strings.IndexByte("$`\"\\\n", s[i+1]) >= 0 {
			i++
			if s[i] == '\n' {
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// ansi returns the text of $'…'. Like bash, it stops at a NUL.
func ansi(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		number := func(digits, base int) (uint64, bool) {
			end := i + 1
			for end < len(s) && end-i-1 < digits && isDigit(s[end], base) {
				end++
			}
			n, err := strconv.ParseUint(s[i+1:end], base, 32)
			if err != nil {
				return 0, false
			}
			i = end - 1
			return n, true
		}
		c, rest := s[i], false
		switch c {
		case 'a', 'b', 'e', 'E', 'f', 'n', 'r', 't', 'v':
			b.WriteByte("\a\b\x1b\x1b\f\n\r\t\v"[strings.IndexByte("abeEfnrtv", c)])
		case '\\', '\'', '"', '?':
			b.WriteByte(c)
		case 'x':
			n, ok := number(2, 16)
			if rest = !ok; ok {
				if n == 0 {
					return b.String()
				}
				b.WriteByte(byte(n))
			}
		case 'u', 'U':
			n, ok := number(map[byte]int{'u': 4, 'U': 8}[c], 16)
			if rest = !ok; ok {
				if n == 0 {
					return b.String()
				}
				if n >= 0x80 { // the encoding depends on the locale
					b.WriteString(Hole)
				} else {
					b.WriteByte(byte(n))
				}
			}
		case '0', '1', '2', '3', '4', '5', '6', '7':
			i--
			n, _ := number(3, 8)
			if byte(n) == 0 {
				return b.String()
			}
			b.WriteByte(byte(n))
		case 'c':
			if rest = i+1 == len(s); !rest {
				i++
				if s[i]&0x1f == 0 {
					return b.String()
				}
				b.WriteByte(s[i] & 0x1f)
			}
		default:
			rest = true
		}
		if rest {
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	return b.String()
}

func isDigit(c byte, base int) bool {
	switch {
	case c >= '0' && c <= '7', base == 16 && (c == '8' || c == '9'):
		return true
	}
	return base == 16 && (c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F')
}
