// Command typecheck type-checks packages and their tests for another architecture. It finds the
// same errors as compiling them and takes a tenth of the time.
//
//	typecheck ARCH PACKAGE...
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: typecheck ARCH PACKAGE...")
		os.Exit(2)
	}
	bad, err := check(os.Args[1], os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "typecheck:", err)
		os.Exit(1)
	}
	if bad > 0 {
		os.Exit(1)
	}
}

// check prints the errors in packages and returns their number.
func check(arch string, patterns []string) (int, error) {
	here, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	all, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
			packages.NeedDeps | packages.NeedTypes | packages.NeedSyntax,
		Env:   append(os.Environ(), "GOARCH="+arch, "CGO_ENABLED=0"),
		Tests: true,
		ParseFile: func(fset *token.FileSet, name string, src []byte) (*ast.File, error) {
			f, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution|parser.ParseComments)
			if f != nil && !strings.HasPrefix(name, here+"/") {
				dropBodies(f)
			}
			return f, err
		},
	}, patterns...)
	if err != nil {
		return 0, err
	}
	said := map[string]bool{} // a package and its test variant share files
	for _, p := range all {
		for _, e := range p.Errors {
			inside := strings.HasPrefix(e.Pos, here+"/") || e.Kind == packages.ListError
			if inside && !said[e.Error()] {
				said[e.Error()] = true
				fmt.Println(e)
			}
		}
	}
	return len(said), nil
}

// dropBodies removes the bodies of functions in files outside of this module. Errors that this
// causes are not reported.
func dropBodies(f *ast.File) {
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if ok {
			fn.Body = nil
		}
	}
}
