package cli

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"glasshouse/internal/text"
)

// confirmations are the questions of the commands that delete data or cannot be undone. %s stands
// for the arguments.
var confirmations = map[string]string{
	"agent cancel":  "Cancel %s and its child runs?",
	"runs cancel":   "Cancel %s and its child runs?",
	"bundle rm":     "Remove bundle %s with its capabilities and its skill?",
	"capability rm": "Remove %s and its stored files?",
	"files rm":      "Remove %s?",
	"jail rm":       "Remove %s with all files?",
	"node rm":       "Remove node %s from the fleet?",
	"policy rm":     "Remove the policy of %s?",
	"rewind":        "Rewind %s and discard the changes since the snapshot?",
	"rootfs prune":  "Remove all unused root filesystems?",
	"schedule rm":   "Remove schedule %s?",
	"schedules rm":  "Remove schedule %s?",
	"secret rm":     "Remove secret %s and all its grants?",
	"skill rm":      "Remove skill %s?",
	"snapshot rm":   "Remove %s?",
	"token rm":      "Revoke token %s?",
	"ui rm":         "Log browser %s out?",
}

// addConfirmations makes the commands of confirmations ask, and adds their flag --force. Without
// a terminal they do not ask, so that scripts work.
func (c *command) addConfirmations(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		_, path, _ := strings.Cut(sub.CommandPath(), " ")
		if question := confirmations[path]; question != "" {
			c.confirmed(sub, question)
		}
		c.addConfirmations(sub)
	}
}

func (c *command) confirmed(cmd *cobra.Command, question string) {
	var force bool
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not ask for confirmation at a terminal")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !force && isTerminal(c.env.Stdin) && isTerminal(c.env.Stderr) {
			q := strings.Replace(question, "%s", strings.Join(args, ", "), 1)
			fmt.Fprintf(c.env.Stderr, "%s [y/N] ", text.Visible(q))
			line, err := bufio.NewReader(c.env.Stdin).ReadString('\n')
			if err != nil {
				fmt.Fprintln(c.env.Stderr) // the end of the input leaves the cursor in the line of the question
			}
			switch strings.ToLower(strings.TrimSpace(line)) {
			case "y", "yes":
			default:
				return fmt.Errorf("not confirmed, nothing was changed")
			}
		}
		return run(cmd, args)
	}
}
