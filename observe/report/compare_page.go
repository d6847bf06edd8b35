package report

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"io"
	"strings"
	"time"
)

//go:embed compare.html
var compareHTML string

//go:embed compare.css
var compareCSS string

// ComparisonPolicy is the Content-Security-Policy for the page written by Comparison.HTML.
var ComparisonPolicy = func() string {
	sum := sha256.Sum256([]byte(compareStyle))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

var compareStyle = pageCSS + compareCSS

var comparePage = template.Must(template.New("compare").Funcs(template.FuncMap{
	"css":    func() template.CSS { return template.CSS(compareStyle) },
	"number": number,
	"stamp":  func(t time.Time) string { return t.UTC().Format(stamp) },
	"long":   func(s string) string { return visible(s, 400) },
	"titled": func(title string, f *FileChanges) any {
		return struct {
			Title string
			*FileChanges
		}{title, f}
	},
	"running": func(title string, list []RunningProcess) any {
		return struct {
			Title string
			List  []RunningProcess
		}{title, list}
	},
	"sockets": func(title string, list []Connection) any {
		return struct {
			Title string
			List  []Connection
		}{title, list}
	},
	"lines": diffLines,
}).Parse(compareHTML))

// HTML writes the comparison as one self-contained page.
func (c *Comparison) HTML(w io.Writer) error { return comparePage.Execute(w, c) }

// A shownLine is a line of a diff and its CSS class.
type shownLine struct{ Class, Text string }

func diffLines(diff Text) []shownLine {
	var all []shownLine
	for l := range strings.Lines(string(diff)) {
		s := shownLine{Text: diffLine(l)}
		switch {
		case strings.HasPrefix(l, "---"), strings.HasPrefix(l, "+++"):
			s.Class = "soft"
		case strings.HasPrefix(l, "@@"):
			s.Class = "hunk"
		case strings.HasPrefix(l, "-"):
			s.Class = "minus"
		case strings.HasPrefix(l, "+"):
			s.Class = "plus"
		}
		all = append(all, s)
	}
	return all
}
