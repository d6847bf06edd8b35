package chain_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"glasshouse/policy/chain"
)

func TestEveryKindIsKnown(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "kind.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); !ok || typ.Name != "Kind" {
			return true
		}
		n++
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		if !chain.Kind(value).Known() {
			t.Errorf("constant %s = %q is not in Kinds", spec.Names[0].Name, value)
		}
		return true
	})
	if all := chain.Kinds(); n != len(all) || len(slices.Compact(slices.Sorted(slices.Values(all)))) != n {
		t.Errorf("%d constants, but %d kinds are known", n, len(all))
	}
}
