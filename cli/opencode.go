package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"glasshouse/agents/agent"
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
		Use:   "init [DIR]",
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

// writtenFile is the result of writing one file.
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
			return fmt.Errorf("read %s: %w", filepath.Join(dir, f.Path), err)
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
			Err:    fmt.Errorf("files exist with other content, so nothing was written: %s", strings.Join(taken, ", ")),
			Remedy: "use --force to replace them, or move them away",
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
	return c.print(done, func(w io.Writer) { printOpenCode(w, done) })
}

// writeUnder writes one file below the project. os.Root keeps links inside the project. The file
// appears complete or not at all.
func writeUnder(root *os.Root, f agent.File) error {
	if err := root.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
		return fmt.Errorf("create the directory of the plugin: %w", err)
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

func printOpenCode(w io.Writer, files []writtenFile) {
	for _, f := range files {
		fmt.Fprintf(w, "%-9s  %s\n", f.State, text.Visible(f.Path))
	}
	fmt.Fprint(w, `
OpenCode 1.18 applies the last matching rule of opencode.json, so general rules come
first. "steps" is only passed to the model as text and is not a limit; the run's budget
is the limit. Before 1.1 the file had "maxSteps", and the longest pattern applied.
OpenCode reads AGENTS.md from the root of the project only, as advice to the model. The
gateway reads it as rules if it is given with --policy.
OpenCode's own rules are not a security boundary. The jail and its policy are.
Without a network, also copy .opencode/package-lock.json and .opencode/node_modules to
~/.config/opencode: OpenCode otherwise waits two minutes for npm.
`)
}
