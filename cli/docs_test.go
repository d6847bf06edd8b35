package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestManualMatchesHelp(t *testing.T) {
	var made bytes.Buffer
	code := Run(t.Context(), []string{"docs"}, Env{Stdout: &made, Stderr: os.Stderr, Getenv: func(string) string { return "/home/somebody" }, UID: 1000})
	if code != 0 {
		t.Fatalf("exit code %d", code)
	}
	kept, err := os.ReadFile("../docs/reference/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(made.Bytes(), kept) {
		t.Error("docs/reference/cli.md is not what the commands say; run make docs")
	}
}

func TestEveryCommandHasHelp(t *testing.T) {
	c := &command{env: Env{Getenv: func(string) string { return "" }}}
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: short help is %q; want one without a full stop", cmd.CommandPath(), cmd.Short)
		}
		for line := range strings.Lines(cmd.Long) {
			if len(line) > 100 {
				t.Errorf("%s: a line of its help has %d bytes: %.40q…", cmd.CommandPath(), len(line), line)
			}
		}
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	check(c.root())
}
