package shell

import (
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// An input is the standard input of a command if it differs from the standard input of its shell.
type input struct {
	text  string
	known bool // text is the complete input
}

var piped = &input{}

// files are the files that redirections open.
type files struct {
	writes, reads []string
	opaque        string
}

func (f files) none() bool { return f.writes == nil && f.reads == nil && f.opaque == "" }

// redirects expands the redirections of a statement. The input is nil if they do not redirect
// standard input.
func (r *reader) redirects(s *scope, st *syntax.Stmt) (files, *input) {
	var f files
	var in *input
	for _, rd := range st.Redirs {
		own := r.redirect(s, rd, &f)
		if own != nil && (rd.N == nil || rd.N.Value == "0") {
			in = own
		}
	}
	for _, name := range append(f.writes, f.reads...) {
		if strings.HasPrefix(name, "/dev/tcp/") || strings.HasPrefix(name, "/dev/udp/") {
			f.opaque = "opens a connection"
		}
	}
	return f, in
}

func (r *reader) redirect(s *scope, rd *syntax.Redirect, f *files) *input {
	if rd.N != nil && strings.HasPrefix(rd.N.Value, "{") {
		r.set(s, strings.Trim(rd.N.Value, "{}"), someNumber)
		if steers(strings.Trim(rd.N.Value, "{}")) {
			r.opaque("sets a variable that changes the behaviour of programs")
		}
	}
	switch rd.Op {
	case syntax.Hdoc, syntax.DashHdoc:
		text := r.document(s, rd)
		return &input{text, !strings.Contains(text, Hole)}
	case syntax.WordHdoc:
		text := strings.ReplaceAll(r.assignable(s, rd.Word).text, home, Hole)
		return &input{text + "\n", !strings.Contains(text, Hole)}
	}
	target := r.target(s, rd.Word)
	switch rd.Op {
	case syntax.RdrOut, syntax.AppOut, syntax.RdrClob, syntax.RdrAll, syntax.AppAll:
		f.writes = append(f.writes, target)
	case syntax.RdrIn:
		f.reads = append(f.reads, target)
		return piped
	case syntax.RdrInOut:
		f.writes, f.reads = append(f.writes, target), append(f.reads, target)
		return piped
	case syntax.DplIn, syntax.DplOut:
		if descriptor(target) {
			if rd.Op == syntax.DplIn {
				return piped
			}
			return nil
		}
		if rd.Op == syntax.DplOut {
			f.writes = append(f.writes, target)
			return nil
		}
		return piped
	default:
		f.opaque = "an unsupported redirection"
	}
	return nil
}

// descriptor reports whether the target of >& is a descriptor and not a file: 2, 2-, -.
func descriptor(target string) bool {
	target = strings.TrimSuffix(target, "-")
	if target == "" {
		return true
	}
	_, err := strconv.Atoi(target)
	return err == nil
}

// target returns the file that a redirection opens.
func (r *reader) target(s *scope, word *syntax.Word) string {
	fields := r.fields(s, []*syntax.Word{word})
	if len(fields) != 1 || fields[0].loose() {
		return Hole
	}
	return fields[0].text
}

// document returns the text of a here-document, expanded unless its delimiter is quoted.
func (r *reader) document(s *scope, rd *syntax.Redirect) string {
	if rd.Hdoc == nil {
		return ""
	}
	f := fielder{}
	for _, part := range rd.Hdoc.Parts {
		lit, ok := part.(*syntax.Lit)
		switch {
		case !ok:
			r.quotedParts(s, &f, []syntax.WordPart{part}, false)
		case isQuoted(rd.Word):
			f.quoted(lit.Value)
		default:
			f.quoted(unescapeDocument(lit.Value))
		}
	}
	return strings.ReplaceAll(f.now.String(), home, Hole)
}

// isQuoted reports whether a part of a here-document's delimiter is quoted. Such a document is
// not expanded.
func isQuoted(word *syntax.Word) bool {
	for _, part := range word.Parts {
		if lit, ok := part.(*syntax.Lit); !ok || strings.Contains(lit.Value, `\`) {
			return true
		}
	}
	return false
}

func unescapeDocument(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) && strings.IndexByte("$`\\\n", s[i+1]) >= 0 {
			i++
			if s[i] == '\n' {
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
