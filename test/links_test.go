package test_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// heading returns the anchor of a heading, as Markdown renderers create it.
func heading(text string) string {
	text = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(text, "$1")
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimSpace(text)) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			b.WriteRune(r)
		}
	}
	return b.String()
}

// prose returns a page without code blocks, and the anchors of its headings.
func prose(t *testing.T, page string) (text string, headings map[string]bool) {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	headings = map[string]bool{}
	fence := ""
	var b strings.Builder
	for line := range strings.Lines(string(data)) {
		begin := strings.TrimLeft(line, " ")
		if mark := begin[:len(begin)-len(strings.TrimLeft(begin, "`"))]; len(mark) >= 3 {
			switch {
			case fence == "":
				fence = mark
			case len(mark) >= len(fence):
				fence = ""
			}
			continue
		}
		if fence != "" {
			continue
		}
		if marks := len(line) - len(strings.TrimLeft(line, "#")); marks > 0 && strings.HasPrefix(line[marks:], " ") {
			at := heading(line[marks:])
			for n := 1; headings[at]; n++ { // repeated headings are numbered
				at = heading(line[marks:]) + "-" + strconv.Itoa(n)
			}
			headings[at] = true
		}
		b.WriteString(regexp.MustCompile("`[^`]*`").ReplaceAllString(line, ""))
	}
	return b.String(), headings
}

// Each link in the documentation has an existing target.
func TestDocumentationLinks(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../docs/*/*.md", "../docs/*/*/*.md", "../sdk/*/README.md", "../examples/*/*.md", "../examples/*.md", "../jail/nix/*.md", "../capability/clients/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	if len(pages) < 30 {
		t.Fatalf("got %d pages, want at least 30", len(pages))
	}
	links, ofHeadings := 0, 0
	for _, page := range pages {
		text, own := prose(t, page)
		for _, m := range regexp.MustCompile(`\]\(<?([^)>\s]+)>?(?: "[^"]*")?\)|(?m:^\[[^\]]+\]:\s+(\S+))`).FindAllStringSubmatch(text, -1) {
			link := m[1] + m[2]
			if regexp.MustCompile(`^[a-z]+:`).MatchString(link) {
				continue // an external link, which a test cannot check
			}
			links++
			file, part, _ := strings.Cut(link, "#")
			headings := own
			if file != "" {
				to := filepath.Join(filepath.Dir(page), file)
				if _, err := os.Stat(to); err != nil {
					t.Errorf("%s: target of %s does not exist", page, link)
					continue
				}
				if filepath.Ext(to) != ".md" {
					continue
				}
				_, headings = prose(t, to)
			}
			if part != "" {
				ofHeadings++
				if !headings[part] {
					t.Errorf("%s: the heading of %s does not exist", page, link)
				}
			}
		}
	}
	if links < 50 || ofHeadings < 5 {
		t.Errorf("checked %d links, %d of them to headings; want at least 50 and 5", links, ofHeadings)
	}
}
