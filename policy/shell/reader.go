package shell

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// A reader walks one script: the line, or a script within it.
type reader struct {
	*walker
	text  string // the script
	posix bool   // the shell may not be bash
	via   []string
}

// source returns the source text of a node.
func (r *reader) source(n syntax.Node) string {
	return r.between(n.Pos().Offset(), n.End().Offset())
}

func (r *reader) between(from, to uint) string {
	size := uint(len(r.text))
	from, to = min(from, size), min(to, size)
	if from >= to {
		return ""
	}
	return strings.TrimSpace(r.text[from:to])
}

// written returns the source text of a statement without its terminator.
func (r *reader) written(st *syntax.Stmt) string {
	to := st.Position.Offset()
	if st.Cmd != nil {
		to = st.Cmd.End().Offset()
	}
	for _, rd := range st.Redirs {
		to = max(to, rd.End().Offset())
	}
	return r.between(st.Position.Offset(), to)
}

// stmts walks consecutive statements. in is their standard input if it differs from that of
// their shell.
func (r *reader) stmts(s *scope, list []*syntax.Stmt, in *input) {
	for i, st := range list {
		before := s.cwd
		r.stmt(s, st, in)
		if s.cwd != before && i < len(list)-1 && !surelyMoves(st) {
			s.cwd = Hole // the preceding cd may have failed
		}
	}
}

// surelyMoves reports whether the statements after a cd run only if it succeeded: cd x || exit.
func surelyMoves(st *syntax.Stmt) bool {
	b, ok := st.Cmd.(*syntax.BinaryCmd)
	if !ok || b.Op != syntax.OrStmt || st.Background || st.Negated {
		return false
	}
	if x, ok := b.X.Cmd.(*syntax.CallExpr); !ok || len(x.Args) == 0 || x.Args[0].Lit() != "cd" {
		return false
	}
	y, ok := b.Y.Cmd.(*syntax.CallExpr)
	return ok && len(y.Args) > 0 && y.Args[0].Lit() == "exit" && !b.Y.Background
}

// stmt walks one statement.
func (r *reader) stmt(s *scope, st *syntax.Stmt, in *input) {
	if r.full() {
		return
	}
	r.depth++
	defer func() { r.depth-- }()

	if st.Background || st.Coprocess {
		s = s.clone()
	}
	if before := s.cwd; st.Negated {
		defer func() {
			if s.cwd != before {
				s.cwd = Hole // the second command runs if a cd has failed
			}
		}()
	}
	if call, ok := st.Cmd.(*syntax.CallExpr); ok && len(call.Args) > 0 {
		r.call(s, st, call, in)
		return
	}
	files, own := r.redirects(s, st)
	if own != nil {
		in = piped // an earlier command may have consumed a part of the input
	}
	if !files.none() {
		r.emit(s, Command{Text: r.written(st), Via: r.via, Writes: files.writes, Reads: files.reads, Opaque: files.opaque})
	}
	r.command(s, st, in)
}

func (r *reader) command(s *scope, st *syntax.Stmt, in *input) {
	switch c := st.Cmd.(type) {
	case nil:
	case *syntax.CallExpr:
		for _, a := range c.Assigns {
			r.assign(s, a)
		}
	case *syntax.Block:
		r.stmts(s, c.Stmts, in)
	case *syntax.Subshell:
		r.stmts(s.clone(), c.Stmts, in)
	case *syntax.BinaryCmd:
		r.binary(s, c, in)
	case *syntax.IfClause:
		r.branches(s, c, in)
	case *syntax.WhileClause:
		r.loop(s, []syntax.Node{c}, func(s *scope) {
			r.stmts(s, c.Cond, in)
			r.stmts(s, c.Do, in)
		})
	case *syntax.ForClause:
		r.forClause(s, c, in)
	case *syntax.CaseClause:
		r.inside(s, c.Word)
		r.caseClause(s, c, in)
	case *syntax.FuncDecl:
		r.function(s, c)
	case *syntax.ArithmCmd:
		r.arithmetic(s, c.X)
	case *syntax.TestClause:
		r.test(s, c.X)
	case *syntax.DeclClause:
		r.declare(s, c)
	case *syntax.LetClause:
		for _, x := range c.Exprs {
			r.arithmetic(s, x)
		}
	case *syntax.TimeClause:
		if c.Stmt != nil {
			r.stmt(s, c.Stmt, in)
		}
	case *syntax.CoprocClause:
		r.stmt(s.clone(), c.Stmt, piped)
		r.set(s, "COPROC", unknown)
		if c.Name != nil {
			r.inside(s, c.Name)
			if name := c.Name.Lit(); name != "" {
				r.set(s, name, unknown)
			} else {
				s.forget()
			}
		}
	default:
		r.opaque("an unsupported statement")
	}
}

func (r *reader) binary(s *scope, c *syntax.BinaryCmd, in *input) {
	switch c.Op {
	case syntax.AndStmt, syntax.OrStmt:
		before := s.cwd
		r.stmt(s, c.X, in)
		y := s.clone()
		if c.Op == syntax.OrStmt && s.cwd != before {
			y.cwd = Hole
		}
		r.stmt(y, c.Y, in)
		if c.Op == syntax.AndStmt {
			moved := y.cwd // a command after && runs only if y succeeded
			s.join(y)
			s.cwd = moved
			return
		}
		leaves := surelyMoves(&syntax.Stmt{Cmd: c})
		cwd := s.cwd
		s.join(y)
		if leaves {
			s.cwd = cwd
		}
	default: // a pipeline
		x, y := s.clone(), s.clone()
		r.stmt(x, c.X, in)
		r.stmt(y, c.Y, piped)
		cwd := s.cwd
		s.join(x, y) // with lastpipe, the current shell runs the last command
		s.cwd = cwd
	}
}

func (r *reader) branches(s *scope, c *syntax.IfClause, in *input) {
	before := s.cwd
	r.stmts(s, c.Cond, in)
	then := s.clone()
	r.stmts(then, c.Then, in)
	if s.cwd != before {
		s.cwd = Hole
	}
	if c.Else != nil {
		other := s.clone()
		r.branches(other, c.Else, in)
		s.join(then, other)
		return
	}
	s.join(then)
}

// loop walks statements that may run any number of times.
func (r *reader) loop(s *scope, nodes []syntax.Node, body func(*scope)) {
	for _, n := range nodes {
		r.work += 2 * int(n.End().Offset()-n.Pos().Offset())
	}
	if r.full() {
		return
	}
	a := assignedIn(nodes...)
	if a.all {
		s.forget()
	}
	for name, numeric := range a.names {
		if numeric && s.get(name).number {
			r.set(s, name, someNumber)
		} else {
			r.set(s, name, unknown)
		}
	}
	if moves(nodes...) {
		s.cwd = Hole
	}
	in := s.clone()
	in.given = false
	body(in)
	s.join(in)
}

// moves reports whether nodes contain a cd.
func moves(nodes ...syntax.Node) bool {
	found := false
	for _, n := range nodes {
		syntax.Walk(n, func(n syntax.Node) bool {
			if call, ok := n.(*syntax.CallExpr); ok && len(call.Args) > 0 {
				name, sure := literal(call.Args[0])
				found = found || !sure || name == "cd" || name == "pushd" || name == "popd" || sources[name] || name == "command" || name == "builtin"
			}
			return !found
		})
	}
	return found
}

func (r *reader) forClause(s *scope, c *syntax.ForClause, in *input) {
	var numeric bool
	name := ""
	r.selects = r.selects || c.Select
	switch l := c.Loop.(type) {
	case *syntax.WordIter:
		r.fields(s, l.Items)
		name = l.Name.Value
		numeric = l.InPos.IsValid() && !slices.ContainsFunc(l.Items, func(w *syntax.Word) bool { return !numericWord(w) })
		if steers(name) {
			r.opaque("sets " + name + ", which changes the behaviour of programs")
		}
	case *syntax.CStyleLoop:
		if l.Init != nil {
			r.arithmetic(s, l.Init)
		}
	}
	r.loop(s, []syntax.Node{c}, func(s *scope) {
		switch {
		case name != "" && numeric && !c.Select:
			r.set(s, name, someNumber)
		case name != "":
			r.set(s, name, unknown)
		}
		if l, ok := c.Loop.(*syntax.CStyleLoop); ok {
			r.arithmetic(s, l.Cond)
			r.arithmetic(s, l.Post)
		}
		r.stmts(s, c.Do, in)
	})
}

func (r *reader) caseClause(s *scope, c *syntax.CaseClause, in *input) {
	before := s.clone()
	var through *scope // state after the preceding items, for fall-through
	for _, item := range c.Items {
		if r.full() {
			return
		}
		for _, p := range item.Patterns {
			r.inside(before, p)
		}
		b := before.clone()
		if through != nil {
			b.join(through)
		}
		r.stmts(b, item.Stmts, in)
		if through = nil; item.Op != syntax.Break {
			through = b
		}
		s.join(b)
	}
	s.join(before)
}

// function walks the body of a function at its definition, because it may be called from any
// place with any arguments.
func (r *reader) function(s *scope, f *syntax.FuncDecl) {
	if f.Name == nil {
		r.opaque("an unsupported function")
		return
	}
	name := f.Name.Value
	if hides(name) {
		r.opaque("a function hides " + name)
	}
	body := s.fresh()
	body.cwd = Hole
	body.funcs = s.clone().funcs
	for name := range body.funcs {
		body.funcs[name] = false
	}
	body.funcs[name] = false
	in := *r
	in.via = append(slices.Clip(r.via), name+"()")
	in.stmt(body, f.Body, nil)
	if moves(f.Body) {
		r.roams(s)
	}
	s.funcs[name] = true
}

// roams records that a function may change the directory at each call.
func (r *reader) roams(s *scope) {
	s.cwd = Hole
	r.opaqueCwd = true
}

// assign assigns a shell variable.
func (r *reader) assign(s *scope, a *syntax.Assign) {
	if a.Name == nil {
		return
	}
	name := a.Name.Value
	if steers(name) {
		r.opaque("sets " + name + ", which changes the behaviour of programs")
	}
	r.set(s, name, r.assigned(s, a))
}

// assigned returns the value of an assignment.
func (r *reader) assigned(s *scope, a *syntax.Assign) value {
	if a.Index != nil {
		r.index(s, a.Index)
	}
	if a.Array != nil {
		for _, e := range a.Array.Elems {
			r.index(s, e.Index)
			r.inside(s, e.Value)
		}
	}
	v := r.assignable(s, a.Value)
	switch {
	case a.Index != nil || a.Array != nil || a.Naked:
		return unknown
	case a.Append:
		old := s.get(a.Name.Value)
		if old.text == Hole && v.number && old.number {
			return someNumber
		}
		return known(old.text + v.text)
	}
	return v
}

func (r *reader) declare(s *scope, d *syntax.DeclClause) {
	for _, a := range d.Args {
		switch {
		case a.Name != nil && a.Naked:
			if d.Variant.Value != "export" && d.Variant.Value != "readonly" {
				r.set(s, a.Name.Value, unknown)
			}
		case a.Name != nil:
			r.assign(s, a)
			if d.Variant.Value == "local" { // outside of functions, local is an error
				r.set(s, a.Name.Value, unknown)
			}
		default:
			r.declareOption(s, r.one(s, a.Value))
		}
		if a.Name != nil && d.Variant.Value == "readonly" {
			r.fix(s, a.Name.Value)
		}
	}
	if d.Variant.Value == "nameref" {
		r.opaque("a reference to another variable")
	}
}

// declareOption handles an argument of declare or a similar builtin that is an option or is
// known only at run time.
func (r *reader) declareOption(s *scope, text string) {
	if strings.HasPrefix(text, "-") || strings.HasPrefix(text, "+") {
		if strings.Trim(text[1:], "aApxgtI-") != "" {
			r.opaque("a declaration that changes the type of a variable or exports functions")
		}
		return
	}
	name, v, assigns := strings.Cut(text, "=")
	if !identifier.MatchString(name) {
		r.opaque("a declaration of an unknown name")
		s.forget()
		return
	}
	if steers(name) {
		r.opaque("sets " + name + ", which changes the behaviour of programs")
	}
	if !assigns {
		r.set(s, name, unknown)
		return
	}
	r.set(s, name, known(v))
}

// emit records a command.
func (r *reader) emit(s *scope, c Command) {
	c.Cwd = s.cwd
	if r.opaqueCwd {
		c.Cwd = Hole
	}
	c.Via = slices.Clone(c.Via)
	r.line.Commands = append(r.line.Commands, c)
}
