package test_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A lesson is a command of a document and its documented output.
type lesson struct{ typed, printed string }

// lessons returns the commands of a section of a document, in order: sh blocks, each with the
// output block that follows it, if any.
func lessons(t *testing.T, file, section string) (all []lesson) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(b), "\n## "+section+"\n")
	if !ok {
		t.Fatalf("%s has no section %q", file, section)
	}
	end, block := 0, false // a "#" in a code block is not a heading
	for line := range strings.Lines(text) {
		block = block != strings.HasPrefix(line, "```")
		if !block && strings.HasPrefix(line, "## ") {
			break
		}
		end += len(line)
	}
	text = text[:end]
	for _, m := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```\n(?:^```\n(.*?)^```\n)?").FindAllStringSubmatch(text, -1) {
		all = append(all, lesson{m[1], m[2]})
	}
	return all
}

// like returns a pattern for documented output: … matches anything, and the amount of white
// space is ignored.
func like(printed string) *regexp.Regexp {
	var parts []string
	for part := range strings.SplitSeq(strings.TrimSpace(printed), "…") {
		var words []string
		for word := range strings.FieldsSeq(part) {
			words = append(words, regexp.QuoteMeta(word))
		}
		space := func(at string) string {
			if at != strings.TrimSpace(at) {
				return `\s*`
			}
			return ""
		}
		pattern := strings.Join(words, `\s+`)
		if part != "" {
			pattern = space(part[:1]) + pattern + space(part[len(part)-1:])
		}
		parts = append(parts, pattern)
	}
	return regexp.MustCompile(`(?s)^\s*` + strings.Join(parts, ".*") + `\s*$`)
}

// TestDocumentedCommands runs all commands of docs/tutorials/capability.md, from a
// script to a signed and installed capability, and compares the output. It reads the id of the
// approval from the output, as a user would.
func TestDocumentedCommands(t *testing.T) {
	dataDir := debian(t)
	h := open(t, "pool: {size: 0}\nrootfs: {default: {debian: bookworm}}\n")
	h.kill()
	if err := errors.Join(os.RemoveAll(filepath.Join(h.data, "images")), shareImages(dataDir, h.data)); err != nil {
		t.Fatal(err)
	}
	h.start()
	all := lessons(t, "../docs/tutorials/capability.md", "From a script to a signed, installed capability")
	if len(all) < 10 {
		t.Fatalf("got %d commands, want at least 10", len(all))
	}
	dir, asked := t.TempDir(), "a-nobody"
	for _, l := range all {
		cmd := exec.CommandContext(t.Context(), "bash", "-e", "-c", strings.ReplaceAll(l.typed, "a-…", asked))
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GLASSHOUSE_DATA="+h.data, "PATH="+filepath.Dir(h.bin)+":"+os.Getenv("PATH"))
		b, err := cmd.CombinedOutput()
		out := string(b)
		if refused := strings.HasPrefix(l.printed, "glasshouse: "); refused != (err != nil) {
			t.Fatalf("%sexited with %v:\n%s", l.typed, err, out)
		}
		if !like(l.printed).MatchString(out) {
			t.Errorf("%sprinted\n%s\nwant, as documented,\n%s", l.typed, out, l.printed)
		}
		if ids := regexp.MustCompile(`\ba-[a-z0-9]{12}\b`).FindAllString(out, -1); len(ids) > 0 {
			asked = ids[len(ids)-1]
		}
	}
}
