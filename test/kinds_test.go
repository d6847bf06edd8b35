package test_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// Readers of the audit log would wait in vain for an entry kind that is never written.
func TestAuditEntryKindsAreWritten(t *testing.T) {
	set := token.NewFileSet()
	unwritten := map[string]bool{}
	file, err := parser.ParseFile(set, "../policy/chain/kind.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			for _, name := range s.(*ast.ValueSpec).Names {
				unwritten[name.Name] = true
			}
		}
	}
	if len(unwritten) < 20 {
		t.Fatalf("chain/kind.go declares only %d kinds", len(unwritten))
	}
	err = filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // other tests and checks also write to this tree
			return nil
		}
		if err != nil {
			return err
		}
		in := filepath.ToSlash(strings.TrimPrefix(path, "../"))
		switch {
		case e.IsDir() && (in == "web/ui" || in == "sdk" || strings.HasPrefix(e.Name(), ".git")):
			return fs.SkipDir
		case e.IsDir(), !strings.HasSuffix(in, ".go"), strings.HasSuffix(in, "_test.go"), in == "chain/kind.go":
			return nil
		case in == "api/feed.go", strings.HasPrefix(in, "otel/"), strings.HasPrefix(in, "cli/"): // these packages only read entries
			return nil
		}
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "chain" {
					delete(unwritten, n.Sel.Name)
				}
			case *ast.Ident:
				if f.Name.Name == "chain" {
					delete(unwritten, n.Name)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range unwritten {
		t.Errorf("no code writes entries of kind chain.%s", name)
	}
}
