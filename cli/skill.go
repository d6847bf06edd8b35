package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"glasshouse/api/wire"
	"glasshouse/internal/text"
	"glasshouse/skill"

	"github.com/spf13/cobra"
)

func (c *command) skill() *cobra.Command {
	cmd := &cobra.Command{
		Use: "skill", Short: "Documents that teach agents which capabilities to use", Args: cobra.NoArgs,
		Long: `A skill is a document for agents. It names capabilities and gives no right: one that
names a capability that nobody has allowed is refused.`,
	}
	cmd.AddCommand(c.skillAdd(), c.skillImport(), c.skillList(), c.skillShow(), c.skillRemove())
	return cmd
}

func (c *command) skillAdd() *cobra.Command {
	return &cobra.Command{
		Use: "add FILE", Short: "Take up a skill", Args: cobra.ExactArgs(1),
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
		Use: "import DIR -o OUT", Short: "Make a bundle of a folder with a SKILL.md, its scripts wrapped as capabilities", Args: cobra.ExactArgs(1),
		Long: `Read a folder with a SKILL.md, as agents of others have them, and write what is to
become a bundle: the skill, a capability for each script, and the folder itself.
Scripts run in jails without a network, see the folder read-only, and get only the
secrets that the document asks for. The report says what each will be allowed to do,
and what was left out. Nothing is run.`,
		Example: `  glasshouse skill import ~/skills/pdf -o pdf-bundle
  glasshouse bundle sign pdf-bundle --key me.key -o pdf-1.0.0.tar.gz`,
		RunE: func(_ *cobra.Command, args []string) error {
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
	cmd.Flags().StringVarP(&out, "out", "o", "", "the directory to write, not there yet or empty")
	cmd.MarkFlagRequired("out")
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
				return fmt.Errorf("agents are not given it: %s", text.Visible(s.Refused))
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
		Use: "rm NAME", Short: "Forget a skill; its capabilities stay", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			return cl.RemoveSkill(cmd.Context(), args[0])
		},
	}
}
