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

// heading is the address that a heading has on a page, as those who show Markdown make it.
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

// prose is a page without what stands in blocks of code, and the addresses of its headings.
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
			for n := 1; headings[at]; n++ { // the second of a name is counted
				at = heading(line[marks:]) + "-" + strconv.Itoa(n)
			}
			headings[at] = true
		}
		b.WriteString(regexp.MustCompile("`[^`]*`").ReplaceAllString(line, ""))
	}
	return b.String(), headings
}

// Who follows a link in the documentation finds what it promises.
func TestLinksOfTheDocumentationLeadSomewhere(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../sdk/*/README.md", "../examples/*/*.md", "../examples/*.md", "../nix/*.md", "../clients/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	if len(pages) < 30 {
		t.Fatalf("there are %d pages, which is not all", len(pages))
	}
	links, ofHeadings := 0, 0
	for _, page := range pages {
		text, own := prose(t, page)
		for _, m := range regexp.MustCompile(`\]\(<?([^)>\s]+)>?(?: "[^"]*")?\)|(?m:^\[[^\]]+\]:\s+(\S+))`).FindAllStringSubmatch(text, -1) {
			link := m[1] + m[2]
			if regexp.MustCompile(`^[a-z]+:`).MatchString(link) {
				continue // elsewhere, which a test cannot ask
			}
			links++
			file, part, _ := strings.Cut(link, "#")
			headings := own
			if file != "" {
				to := filepath.Join(filepath.Dir(page), file)
				if _, err := os.Stat(to); err != nil {
					t.Errorf("%s: %s leads nowhere", page, link)
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
					t.Errorf("%s: %s has no such heading", page, link)
				}
			}
		}
	}
	if links < 50 || ofHeadings < 5 {
		t.Errorf("%d links were looked at, %d of them to headings, which is not all", links, ofHeadings)
	}
}
