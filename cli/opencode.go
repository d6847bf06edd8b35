package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"glasshouse/agent"
	"glasshouse/fault"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

func (c *command) openCode() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "opencode",
		Short: "Configure projects for OpenCode with the gateway",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(c.openCodeInit())
	return cmd
}

func (c *command) openCodeInit() *cobra.Command {
	var level int
	var force bool
	cmd := &cobra.Command{
		Use:   "init [--level N] [--force] [DIR]",
		Short: "Write permissions, framework and plugin of OpenCode into a project",
		Long: `Write the files that OpenCode needs to work with the gateway of its jail into a
project, by default the current directory. No daemon is needed.

  opencode.json                        permissions and identities of the agents
  AGENTS.md                            the decision framework, which the model reads
  .opencode/plugin/autonomy-engine.ts  requests a decision before each tool call, reports
                                       the result, and adds the tools coordinate_sibling,
                                       request_resources and create_task
  .opencode/package-lock.json, .opencode/node_modules
                                       keep OpenCode from waiting for npm

The autonomy level is 1 (guided), 2 (intelligent) or 3 (full). If a file exists with
other content, no file is written, unless --force is given.

Agents that Glasshouse starts do not need this command: they get the same files from
outside the workspace, where they cannot change them.`,
		Example: `  glasshouse opencode init
  glasshouse opencode init --level 1 ~/src/shop`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			dir := "."
			if len(args) > 0 {
				dir = args[0]
			}
			return c.writeOpenCode(dir, level, force)
		},
	}
	cmd.Flags().IntVar(&level, "level", 2, "autonomy level: 1 guided, 2 intelligent, 3 full")
	cmd.Flags().BoolVar(&force, "force", false, "replace existing files")
	return cmd
}

// writtenFile is what became of one file.
type writtenFile struct {
	Path  string `json:"path"`
	State string `json:"state"` // written, replaced, unchanged
}

func (c *command) writeOpenCode(dir string, level int, force bool) error {
	files, err := agent.OpenCodeFiles(level)
	if err != nil {
		return usagef("--level %d is not 1, 2 or 3", level)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fault.Newf(fault.NotFound, "opencode init", dir, "open the project: %w", err)
	}
	defer root.Close()

	done := make([]writtenFile, len(files))
	var taken []string
	for i, f := range files {
		done[i] = writtenFile{Path: f.Path, State: "written"}
		there, err := root.ReadFile(f.Path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return fmt.Errorf("look at %s: %w", filepath.Join(dir, f.Path), err)
		case string(there) == string(f.Data):
			done[i].State = "unchanged"
		case force:
			done[i].State = "replaced"
		default:
			taken = append(taken, f.Path)
		}
	}
	if len(taken) > 0 {
		return &fault.Error{
			Op: "opencode init", On: dir, Kind: fault.Conflict,
			Err:    fmt.Errorf("there with another content, so nothing was written: %s", strings.Join(taken, ", ")),
			Remedy: "give --force to replace them, or move them away",
		}
	}
	for i, f := range files {
		if done[i].State == "unchanged" {
			continue
		}
		if err := writeUnder(root, f); err != nil {
			return fmt.Errorf("write %s: %w", filepath.Join(dir, f.Path), err)
		}
	}
	return c.print(done, func(w io.Writer) { tellOpenCode(w, done) })
}

// writeUnder writes one file beneath the project, wherever links in it lead. A file
// appears whole or not at all.
func writeUnder(root *os.Root, f agent.File) error {
	if err := root.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
		return err
	}
	made := f.Path + ".glasshouse-new"
	if err := root.WriteFile(made, f.Data, f.Mode); err != nil {
		return err
	}
	if err := root.Rename(made, f.Path); err != nil {
		return errors.Join(err, root.Remove(made))
	}
	return nil
}

func tellOpenCode(w io.Writer, files []writtenFile) {
	for _, f := range files {
		fmt.Fprintf(w, "%-9s  %s\n", f.State, text.Visible(f.Path))
	}
	fmt.Fprint(w, `
OpenCode 1.18 reads opencode.json so that the last rule that matches counts: put what is
general first. Its "steps" is a word to the model, not a limit; before 1.1 the same file
had "maxSteps" and the longest pattern counted. The budget of a run is what holds.
AGENTS.md is read from the root of the project only, and is advice to the model; the
gateway reads it as rules, if it is given with --policy.
OpenCode's own rules hold less than they say: what holds is the jail and its policy.
Without a network, put copies of .opencode/package-lock.json and .opencode/node_modules
into ~/.config/opencode too: OpenCode waits two minutes for npm otherwise.
`)
}
