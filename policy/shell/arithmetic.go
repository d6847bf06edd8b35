package shell

import (
	"regexp"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Arithmetic evaluation can run commands: if x='a[$(rm y)]', bash expands the index wherever x
// is used as a number. Therefore only values that are known to be numbers are supported.
const evaluated = "a value that may not be a number is evaluated as arithmetic"

var numberLiteral = regexp.MustCompile(`^(0[xX][0-9a-fA-F]+|[0-9]+(#[0-9a-zA-Z@_]+)?)?$`)

func (r *reader) arithmetic(s *scope, x syntax.ArithmExpr) {
	switch x := x.(type) {
	case nil:
	case *syntax.BinaryArithm:
		if isAssign(x.Op) {
			r.arithmetic(s, x.Y)
			if x.Op != syntax.Assgn {
				r.arithmetic(s, x.X)
			}
			r.assignNumber(s, x.X)
			return
		}
		r.arithmetic(s, x.X)
		r.arithmetic(s, x.Y)
	case *syntax.UnaryArithm:
		r.arithmetic(s, x.X)
		if x.Op == syntax.Inc || x.Op == syntax.Dec {
			r.assignNumber(s, x.X)
		}
	case *syntax.ParenArithm:
		r.arithmetic(s, x.X)
	case *syntax.Word:
		r.operand(s, x)
	default:
		r.opaque("unsupported arithmetic")
	}
}

func isAssign(op syntax.BinAritOperator) bool {
	switch op {
	case syntax.Assgn, syntax.AddAssgn, syntax.SubAssgn, syntax.MulAssgn, syntax.QuoAssgn, syntax.RemAssgn,
		syntax.AndAssgn, syntax.OrAssgn, syntax.XorAssgn, syntax.ShlAssgn, syntax.ShrAssgn:
		return true
	}
	return false
}

func (r *reader) assignNumber(s *scope, x syntax.ArithmExpr) {
	word, ok := x.(*syntax.Word)
	if !ok || !identifier.MatchString(word.Lit()) {
		r.opaque("unsupported arithmetic")
		return
	}
	if steers(word.Lit()) {
		r.opaque("sets " + word.Lit() + ", which changes the behaviour of programs")
	}
	r.set(s, word.Lit(), someNumber)
}

// operand checks one word of an arithmetic expression.
func (r *reader) operand(s *scope, word *syntax.Word) {
	if lit := word.Lit(); lit != "" || len(word.Parts) == 0 {
		if numberLiteral.MatchString(lit) || identifier.MatchString(lit) && s.get(lit).number {
			return
		}
		r.opaque(evaluated)
		return
	}
	for _, part := range word.Parts {
		switch part := part.(type) {
		case *syntax.ParamExp:
			if !r.param(s, part).number {
				r.opaque(evaluated)
			}
		case *syntax.ArithmExp:
			r.arithmetic(s, part.X)
		case *syntax.Lit:
			if !numberLiteral.MatchString(part.Value) {
				r.opaque(evaluated)
			}
		case *syntax.DblQuoted:
			r.operand(s, &syntax.Word{Parts: part.Parts})
		default:
			r.inside(s, &syntax.Word{Parts: []syntax.WordPart{part}})
			r.opaque(evaluated)
		}
	}
}

// index checks the index of an array.
func (r *reader) index(s *scope, x syntax.ArithmExpr) {
	if word, ok := x.(*syntax.Word); ok {
		if lit := word.Lit(); lit == "@" || lit == "*" {
			return
		}
	}
	r.arithmetic(s, x)
}

// test checks [[ … ]]. It starts no program, but it expands words and evaluates arithmetic.
func (r *reader) test(s *scope, x syntax.TestExpr) {
	switch x := x.(type) {
	case *syntax.BinaryTest:
		switch x.Op {
		case syntax.TsEql, syntax.TsNeq, syntax.TsLeq, syntax.TsGeq, syntax.TsLss, syntax.TsGtr:
			for _, side := range []syntax.TestExpr{x.X, x.Y} {
				if word, ok := side.(*syntax.Word); ok {
					r.operand(s, word)
				} else {
					r.opaque(evaluated)
				}
			}
			return
		}
		r.test(s, x.X)
		r.test(s, x.Y)
	case *syntax.UnaryTest:
		if word, ok := x.X.(*syntax.Word); ok && (x.Op == syntax.TsVarSet || x.Op == syntax.TsRefVar) {
			if strings.ContainsAny(r.one(s, word), "["+Hole) {
				r.opaque(evaluated)
			}
			return
		}
		r.test(s, x.X)
	case *syntax.ParenTest:
		r.test(s, x.X)
	case *syntax.Word:
		r.inside(s, x)
	}
}
