package test_test

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Sizes in errors, help and API descriptions use binary units.
func TestTextsUseBinaryUnits(t *testing.T) {
	decimal := regexp.MustCompile(`\b([KMGT]B|(kilo|mega|giga)bytes?)\b`)
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == "testdata" || d.Name() == ".git"):
			return filepath.SkipDir
		case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var s scanner.Scanner
		files := token.NewFileSet()
		s.Init(files.AddFile(name, -1, len(src)), src, nil, 0)
		for {
			pos, tok, lit := s.Scan()
			switch {
			case tok == token.EOF:
				return nil
			case tok == token.STRING && decimal.MatchString(lit):
				t.Errorf("%s: %s names the unit %s, want KiB, MiB, GiB or TiB", files.Position(pos), lit, decimal.FindString(lit))
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}
