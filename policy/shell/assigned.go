package shell

import (
	"regexp"

	"mvdan.cc/sh/v3/syntax"
)

// assigned is the set of variables that a part of a script may assign.
type assigned struct {
	names map[string]bool // true: only numbers are assigned
	all   bool            // any variable may be assigned
}

func (a *assigned) add(name string, numeric bool) {
	if was, there := a.names[name]; there {
		numeric = numeric && was
	}
	a.names[name] = numeric
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// setters are the builtins that assign variables named by their arguments.
var setters = map[string]bool{
	"read": true, "mapfile": true, "readarray": true, "printf": true, "getopts": true, "unset": true,
	"wait": true, "declare": true, "typeset": true, "local": true, "export": true, "readonly": true, "let": true,
}

// sources are the builtins that run text in the current shell.
var sources = map[string]bool{"eval": true, "source": true, ".": true, "trap": true, "fc": true}

// assignedIn returns the variables that nodes may assign on any execution path.
func assignedIn(nodes ...syntax.Node) assigned {
	a := assigned{names: map[string]bool{}}
	for _, n := range nodes {
		syntax.Walk(n, func(n syntax.Node) bool {
			a.see(n)
			return true
		})
	}
	return a
}

func (a *assigned) see(n syntax.Node) {
	switch n := n.(type) {
	case *syntax.Assign:
		if n.Name != nil {
			a.add(n.Name.Value, n.Index == nil && n.Array == nil && n.Value != nil && numericWord(n.Value))
		}
	case *syntax.WordIter:
		numeric := n.InPos.IsValid()
		for _, item := range n.Items {
			numeric = numeric && numericWord(item)
		}
		a.add(n.Name.Value, numeric)
	case *syntax.BinaryArithm:
		a.arithmetic(n.X)
	case *syntax.UnaryArithm:
		a.arithmetic(n.X)
	case *syntax.ParamExp:
		if n.Param != nil && n.Exp != nil && (n.Exp.Op == syntax.AssignUnset || n.Exp.Op == syntax.AssignUnsetOrNull) {
			a.add(n.Param.Value, false)
		}
	case *syntax.Redirect:
		if n.N != nil && len(n.N.Value) > 2 && n.N.Value[0] == '{' {
			a.add(n.N.Value[1:len(n.N.Value)-1], true)
		}
	case *syntax.CoprocClause:
		a.add("COPROC", false)
		if n.Name != nil {
			a.add(n.Name.Lit(), false)
		}
	case *syntax.CallExpr:
		a.call(n)
	}
}

func (a *assigned) arithmetic(x syntax.ArithmExpr) {
	if word, ok := x.(*syntax.Word); ok && identifier.MatchString(word.Lit()) {
		a.add(word.Lit(), true)
	}
}

func (a *assigned) call(n *syntax.CallExpr) {
	if len(n.Args) == 0 {
		return
	}
	name, sure := literal(n.Args[0])
	if sure && (name == "builtin" || name == "command") && len(n.Args) > 1 {
		name, sure = literal(n.Args[1])
	}
	switch {
	case !sure || sources[name]:
		a.all = true
	case name == "read":
		a.add("REPLY", false)
	case name == "mapfile" || name == "readarray":
		a.add("MAPFILE", false)
	case name == "getopts":
		a.add("OPTARG", false)
	case name == "cd" || name == "pushd" || name == "popd":
		a.add("PWD", false)
		a.add("OLDPWD", false)
	}
	if !setters[name] {
		return
	}
	for _, arg := range n.Args[1:] {
		switch text, sure := literal(arg); {
		case !sure:
			a.all = a.all || name != "printf"
		case identifier.MatchString(text):
			a.add(text, false)
		}
	}
}

// literal returns the text of a word without expansions.
func literal(word *syntax.Word) (string, bool) {
	var text []byte
	for _, part := range word.Parts {
		switch part := part.(type) {
		case *syntax.Lit:
			text = append(text, unescape(part.Value)...)
		case *syntax.SglQuoted:
			if part.Dollar {
				return "", false
			}
			text = append(text, part.Value...)
		case *syntax.DblQuoted:
			for _, p := range part.Parts {
				lit, ok := p.(*syntax.Lit)
				if !ok {
					return "", false
				}
				text = append(text, unescapeQuoted(lit.Value)...)
			}
		default:
			return "", false
		}
	}
	return string(text), true
}

var sequence = regexp.MustCompile(`^(-?[0-9]*|\{-?[0-9]+\.\.-?[0-9]+(\.\.-?[0-9]+)?\})$`)

// numericWord reports whether a word always expands to a number.
func numericWord(word *syntax.Word) bool {
	if len(word.Parts) != 1 {
		return false
	}
	switch part := word.Parts[0].(type) {
	case *syntax.Lit:
		return sequence.MatchString(part.Value)
	case *syntax.ArithmExp:
		return true
	case *syntax.ParamExp:
		return part.Length || part.Param != nil && numbers[part.Param.Value] && plain(part)
	}
	return false
}

// remember records the variables that the functions of a script may assign at any time.
func (w *walker) remember(s *scope, file *syntax.File) {
	syntax.Walk(file, func(n syntax.Node) bool {
		f, ok := n.(*syntax.FuncDecl)
		if ok {
			w.vary(s, assignedIn(f.Body))
		}
		return !ok
	})
}

// vary records that the variables of a may be assigned between any two statements.
func (w *walker) vary(s *scope, a assigned) {
	if a.all {
		w.allVolatile = true
		s.forget()
	}
	for name, numeric := range a.names {
		if was, there := w.volatile[name]; there {
			numeric = numeric && was
		}
		w.volatile[name] = numeric
		if v, there := s.vars[name]; there {
			w.set(s, name, v)
		}
	}
}
