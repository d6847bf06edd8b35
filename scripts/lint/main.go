// Command lint holds the static checks that go vet runs on this repository:
//
//	go vet -vettool=bin/lint ./...
//
// It contains the passes of go vet itself, so that one run serves for both, and
// adds staticcheck, nilness and checklocks. The result of each package is
// cached by the go command. The command is a module of its own, so that its
// dependencies do not become dependencies of the product.
package main

import (
	"go/token"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/appends"
	"golang.org/x/tools/go/analysis/passes/asmdecl"
	"golang.org/x/tools/go/analysis/passes/assign"
	"golang.org/x/tools/go/analysis/passes/atomic"
	"golang.org/x/tools/go/analysis/passes/bools"
	"golang.org/x/tools/go/analysis/passes/buildtag"
	"golang.org/x/tools/go/analysis/passes/cgocall"
	"golang.org/x/tools/go/analysis/passes/composite"
	"golang.org/x/tools/go/analysis/passes/copylock"
	"golang.org/x/tools/go/analysis/passes/defers"
	"golang.org/x/tools/go/analysis/passes/directive"
	"golang.org/x/tools/go/analysis/passes/errorsas"
	"golang.org/x/tools/go/analysis/passes/framepointer"
	"golang.org/x/tools/go/analysis/passes/hostport"
	"golang.org/x/tools/go/analysis/passes/httpresponse"
	"golang.org/x/tools/go/analysis/passes/ifaceassert"
	"golang.org/x/tools/go/analysis/passes/loopclosure"
	"golang.org/x/tools/go/analysis/passes/lostcancel"
	"golang.org/x/tools/go/analysis/passes/nilfunc"
	"golang.org/x/tools/go/analysis/passes/nilness"
	"golang.org/x/tools/go/analysis/passes/printf"
	"golang.org/x/tools/go/analysis/passes/shift"
	"golang.org/x/tools/go/analysis/passes/sigchanyzer"
	"golang.org/x/tools/go/analysis/passes/slog"
	"golang.org/x/tools/go/analysis/passes/stdmethods"
	"golang.org/x/tools/go/analysis/passes/stdversion"
	"golang.org/x/tools/go/analysis/passes/stringintconv"
	"golang.org/x/tools/go/analysis/passes/structtag"
	"golang.org/x/tools/go/analysis/passes/testinggoroutine"
	"golang.org/x/tools/go/analysis/passes/tests"
	"golang.org/x/tools/go/analysis/passes/timeformat"
	"golang.org/x/tools/go/analysis/passes/unmarshal"
	"golang.org/x/tools/go/analysis/passes/unreachable"
	"golang.org/x/tools/go/analysis/passes/unsafeptr"
	"golang.org/x/tools/go/analysis/passes/unusedresult"
	"golang.org/x/tools/go/analysis/passes/waitgroup"
	"golang.org/x/tools/go/analysis/unitchecker"
	"gvisor.dev/gvisor/tools/checklocks"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
)

func main() {
	all := []*analysis.Analyzer{
		appends.Analyzer, asmdecl.Analyzer, assign.Analyzer, atomic.Analyzer, bools.Analyzer,
		buildtag.Analyzer, cgocall.Analyzer, composite.Analyzer, copylock.Analyzer, defers.Analyzer,
		directive.Analyzer, errorsas.Analyzer, framepointer.Analyzer, hostport.Analyzer,
		httpresponse.Analyzer, ifaceassert.Analyzer, loopclosure.Analyzer, lostcancel.Analyzer,
		nilfunc.Analyzer, printf.Analyzer, shift.Analyzer, sigchanyzer.Analyzer, slog.Analyzer,
		stdmethods.Analyzer, stdversion.Analyzer, stringintconv.Analyzer, structtag.Analyzer,
		testinggoroutine.Analyzer, tests.Analyzer, timeformat.Analyzer, unmarshal.Analyzer,
		unreachable.Analyzer, unsafeptr.Analyzer, unusedresult.Analyzer, waitgroup.Analyzer,
		nilness.Analyzer, annotatedOnly(checklocks.Analyzer),
	}
	for _, a := range staticcheck.Analyzers {
		all = append(all, a.Analyzer)
	}
	for _, a := range simple.Analyzers {
		all = append(all, a.Analyzer)
	}
	for _, a := range all {
		honourIgnore(a)
	}
	unitchecker.Main(all...)
}

// honourIgnore drops the reports of a on lines that follow the directive of staticcheck
//
//	//lint:ignore CHECK[,CHECK] reason
//
// or have it at their end. The staticcheck command honours it; its analyzers alone do not.
func honourIgnore(a *analysis.Analyzer) {
	run := a.Run
	a.Run = func(p *analysis.Pass) (any, error) {
		filtered := *p
		filtered.Report = func(d analysis.Diagnostic) {
			if !ignored(p, a.Name, d.Pos) {
				p.Report(d)
			}
		}
		return run(&filtered)
	}
}

func ignored(p *analysis.Pass, check string, pos token.Pos) bool {
	at := p.Fset.Position(pos)
	for _, f := range p.Files {
		if pos < f.FileStart || f.FileEnd < pos {
			continue
		}
		for _, g := range f.Comments {
			for _, c := range g.List {
				fields := strings.Fields(c.Text)
				line := p.Fset.Position(c.Pos()).Line
				if len(fields) > 2 && fields[0] == "//lint:ignore" && slices.Contains(strings.Split(fields[1], ","), check) &&
					(line == at.Line || line == at.Line-1) {
					return true
				}
			}
		}
	}
	return false
}

// annotatedOnly restricts checklocks to this repository and to annotated fields.
// Dependencies have no annotations, and analyzing them costs minutes on a cold cache.
// Without annotations checklocks only guesses which fields are guarded or atomic.
func annotatedOnly(a *analysis.Analyzer) *analysis.Analyzer {
	for _, guess := range []string{"inferred", "atomic"} {
		if err := a.Flags.Set(guess, "false"); err != nil {
			panic(err) // the analyzer no longer has the flag
		}
	}
	run := a.Run
	a.Run = func(p *analysis.Pass) (any, error) {
		if !strings.HasPrefix(p.Pkg.Path(), "glasshouse") {
			return nil, nil
		}
		return run(p)
	}
	return a
}
