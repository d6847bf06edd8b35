package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestManPageForEachCommand(t *testing.T) {
	dir := t.TempDir()
	if err := manPages(dir, hostIndependentRoot(), time.Unix(1700000000, 0).UTC()); err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil || len(pages) != len(commandTree(hostIndependentRoot())) {
		t.Fatalf("got %d pages, %v, for %d commands", len(pages), err, len(commandTree(hostIndependentRoot())))
	}
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(data), ".TH GLASSHOUSE") || strings.Contains(string(data), "\t") {
			t.Errorf("%s begins with %.40q, or has tabs", page, data)
		}
	}
	page, err := os.ReadFile(filepath.Join(dir, "glasshouse-jail-create.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		".TH GLASSHOUSE\\-JAIL\\-CREATE 1 2023-11-14 Glasshouse Glasshouse\n",
		".SH NAME\nglasshouse\\-jail\\-create \\- Create a jail\n",
		".PP\n.RS 4\n.nf\n", "\nsample=N                     record one in N of the remaining calls\n", // a list keeps its lines
		".TP\n\\fB\\-e\\fP, \\fB\\-\\-env\\fP \\fIstring\\fP\n",
		".SH SEE ALSO\n.BR glasshouse\\-jail (1)\n",
	} {
		want = strings.Replace(want, ".TH GLASSHOUSE\\-JAIL\\-CREATE", ".TH GLASSHOUSE-JAIL-CREATE", 1)
		if !strings.Contains(string(page), want) {
			t.Errorf("the page has no %q:\n%s", want, page)
		}
	}
	t.Run("mandoc", func(t *testing.T) { lint(t, pages, "mandoc", "-T", "lint", "-W", "warning") })
	t.Run("groff", func(t *testing.T) { lint(t, pages, "groff", "-man", "-Tutf8", "-ww", "-z") })
}

// lint runs a tool that checks manual pages, and reports its findings.
func lint(t *testing.T, pages []string, tool string, args ...string) {
	if _, err := exec.LookPath(tool); err != nil {
		t.Skip(err)
	}
	if out, err := exec.Command(tool, append(args, pages...)...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestRoffEscape(t *testing.T) {
	for in, want := range map[string]string{
		".SH no": `\&.SH no`, "'no": `\&\(aqno`, `a\fBb`: `a\efBb`, "a-b…": `a\-b\[u2026]`, "plain": "plain",
	} {
		if got := roff(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}
