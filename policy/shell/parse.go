package shell

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

func parse(line string) Line {
	p := syntax.NewParser(syntax.Variant(syntax.LangBash))
	if _, err := p.Parse(strings.NewReader(line), ""); err != nil {
		return Line{Opaque: "not understood as a shell command: " + err.Error()}
	}
	return Line{Opaque: "not understood yet"}
}
