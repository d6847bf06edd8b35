package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"glasshouse/api/wire"
	"glasshouse/capability/skill"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

func (c *command) skill() *cobra.Command {
	cmd := &cobra.Command{
		Use: "skill", Short: "Manage skills (documents that describe capabilities to agents)", Args: cobra.NoArgs,
		Long: `A skill is a document that describes capabilities to agents. It grants no permission: a
skill that names an unapproved capability is rejected.`,
	}
	cmd.AddCommand(c.skillAdd(), c.skillImport(), c.skillList(), c.skillShow(), c.skillRemove())
	return cmd
}

func (c *command) skillAdd() *cobra.Command {
	return &cobra.Command{
		Use: "add FILE", Short: "Add a skill", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			doc, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			s, err := cl.AddSkill(cmd.Context(), wire.AddSkill{File: filepath.Base(args[0]), Text: string(doc)})
			if err != nil {
				return err
			}
			return c.print(s, func(w io.Writer) { fmt.Fprintf(w, "%s is a skill of tier %s\n", text.Visible(s.Name), s.Tier) })
		},
	}
}

func (c *command) skillImport() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use: "import DIR", Short: "Convert a folder with a SKILL.md and scripts to a bundle", Args: cobra.ExactArgs(1),
		Long: `Convert a folder with a SKILL.md file, the format of other agents, to a bundle
directory: the skill, one capability per script, and the folder itself. The scripts run
in jails without network access, with the folder mounted read-only, and get only the
secrets that the document requests. The report lists the permissions of each script and
the parts that were left out. No script is run.`,
		Example: `  glasshouse skill import ~/skills/pdf -o pdf-bundle
  glasshouse bundle sign pdf-bundle --key me.key -o pdf-1.0.0.tar.gz`,
		RunE: func(_ *cobra.Command, args []string) error {
			if out == "" {
				return usagef("give --output DIRECTORY")
			}
			im, err := skill.Import(args[0])
			if err != nil {
				return err
			}
			if err := im.Write(out); err != nil {
				return err
			}
			return c.print(im.Report, func(w io.Writer) {
				for line := range strings.Lines(im.Report.String()) {
					fmt.Fprintln(w, text.Visible(strings.TrimSuffix(line, "\n")))
				}
			})
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "output directory, new or empty (required)")
	c.renameFlags(cmd, map[string]string{"out": "output"})
	return cmd
}

func (c *command) skillList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List skills", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := cl.Skills(cmd.Context())
			if err != nil {
				return err
			}
			return c.print(all, func(w io.Writer) {
				rows := [][]string{{"SKILL", "VERSION", "TIER", "CAPABILITIES", "SINCE", "WHAT"}}
				for _, s := range all {
					tier := s.Tier
					if s.Refused != "" {
						tier = "refused"
					}
					rows = append(rows, []string{text.Visible(s.Name), text.Visible(s.Version), tier, text.Visible(strings.Join(s.Capabilities, " ")), ago(s.Created, time.Now()), text.Visible(s.Description)})
				}
				table(w, rows)
			})
		},
	}
}

func (c *command) skillShow() *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Show a skill as an agent reads it", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			s, err := cl.Skill(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if s.Refused != "" && !c.json {
				return fmt.Errorf("the skill is not available to agents: %s", text.Visible(s.Refused))
			}
			return c.print(s, func(w io.Writer) {
				for line := range strings.Lines(s.Text) {
					fmt.Fprintln(w, text.Visible(strings.TrimSuffix(line, "\n")))
				}
			})
		},
	}
}

func (c *command) skillRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME", Short: "Remove a skill; its capabilities stay", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			return cl.RemoveSkill(cmd.Context(), args[0])
		},
	}
}
