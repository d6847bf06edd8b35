package cli

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// manPages writes a man page for each command from its help. Lists and examples, which the help
// indents, keep their lines.
func manPages(dir string, root *cobra.Command, when time.Time) error {
	for _, cmd := range commandTree(root) {
		name := filepath.Join(dir, manName(cmd)+".1")
		if err := os.WriteFile(name, []byte(manPage(cmd, when)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// manDate returns the date of the manual: the current time or, for reproducible builds,
// SOURCE_DATE_EPOCH.
func manDate(epoch string) (time.Time, error) {
	if epoch == "" {
		return time.Now().UTC(), nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("parse SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// commandTree returns a command and all commands below it that the help lists.
func commandTree(cmd *cobra.Command) []*cobra.Command {
	these := []*cobra.Command{cmd}
	for _, sub := range subcommands(cmd) {
		these = append(these, commandTree(sub)...)
	}
	return these
}

func subcommands(cmd *cobra.Command) (subs []*cobra.Command) {
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() && !sub.IsAdditionalHelpTopicCommand() {
			subs = append(subs, sub)
		}
	}
	return subs
}

func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

func manPage(cmd *cobra.Command, when time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 %s Glasshouse Glasshouse\n", strings.ToUpper(manName(cmd)), when.Format(time.DateOnly))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(manName(cmd)), roff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.nh\n%s\n.hy\n", roff(cmd.UseLine()))
	b.WriteString(".SH DESCRIPTION\n")
	manText(&b, cmp.Or(cmd.Long, cmd.Short+"."))
	if subs := subcommands(cmd); len(subs) > 0 {
		b.WriteString(".SH COMMANDS\n")
		for _, sub := range subs {
			fmt.Fprintf(&b, ".TP\n.BR %s (1)\n%s\n", roff(manName(sub)), roff(sub.Short))
		}
	}
	manFlags(&b, "OPTIONS", cmd.NonInheritedFlags())
	manFlags(&b, "OPTIONS OF ALL COMMANDS", cmd.InheritedFlags())
	if cmd.Example != "" {
		b.WriteString(".SH EXAMPLES\n")
		manVerbatim(&b, strings.Split(strings.TrimRight(cmd.Example, "\n"), "\n"))
	}
	if cmd.HasParent() {
		fmt.Fprintf(&b, ".SH SEE ALSO\n.BR %s (1)\n", roff(manName(cmd.Parent())))
	}
	return b.String()
}

// manText writes paragraphs. Each indented line is written separately.
func manText(b *strings.Builder, text string) {
	var verbatim []string
	begun := false // the heading above starts the first paragraph
	flush := func() {
		for len(verbatim) > 0 && verbatim[len(verbatim)-1] == "" {
			verbatim = verbatim[:len(verbatim)-1]
		}
		if len(verbatim) > 0 {
			if begun {
				b.WriteString(".PP\n")
			}
			manVerbatim(b, verbatim)
			begun = true
		}
		verbatim = nil
	}
	gap := false
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		switch {
		case line == "" && verbatim != nil:
			verbatim = append(verbatim, "")
		case line == "":
			gap = begun
		case line[0] == ' ' || line[0] == '\t':
			verbatim = append(verbatim, line)
			gap = false
		default:
			if verbatim != nil {
				flush()
				gap = true
			}
			if gap {
				b.WriteString(".PP\n")
			}
			gap = false
			b.WriteString(roff(line) + "\n")
			begun = true
		}
	}
	flush()
}

// manVerbatim writes lines unchanged, without their common indentation.
func manVerbatim(b *strings.Builder, lines []string) {
	indent := -1
	for i, line := range lines {
		line = strings.ReplaceAll(line, "\t", "    ")
		lines[i] = line
		if n := len(line) - len(strings.TrimLeft(line, " ")); line != "" && (indent < 0 || n < indent) {
			indent = n
		}
	}
	b.WriteString(".RS 4\n.nf\n")
	for _, line := range lines {
		if line == "" {
			b.WriteString(".sp\n")
			continue
		}
		b.WriteString(roff(line[indent:]) + "\n")
	}
	b.WriteString(".fi\n.RE\n")
}

func manFlags(b *strings.Builder, heading string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", heading)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		value = strings.TrimSuffix(value, "Array") // an array flag takes one value each time
		b.WriteString(".TP\n")
		if f.Shorthand != "" {
			fmt.Fprintf(b, "\\fB%s\\fP, ", roff("-"+f.Shorthand))
		}
		fmt.Fprintf(b, "\\fB%s\\fP", roff("--"+f.Name))
		switch {
		case value != "" && f.NoOptDefVal != "":
			fmt.Fprintf(b, "[=\\fI%s\\fP]", roff(value))
		case value != "":
			fmt.Fprintf(b, " \\fI%s\\fP", roff(value))
		}
		b.WriteString("\n" + roff(strings.ReplaceAll(usage, "\n", " ")))
		switch f.DefValue { // like the help, omit zero values
		case "", "0", "false", "[]", "0s", "<nil>":
		default:
			if !strings.Contains(usage, "(default") {
				fmt.Fprintf(b, " (default %s)", roff(f.DefValue))
			}
		}
		b.WriteString("\n")
	})
}

// roff escapes text for roff.
func roff(s string) string {
	var b strings.Builder
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		b.WriteString(`\&`)
	}
	for _, r := range s {
		switch {
		case r == '\\':
			b.WriteString(`\e`)
		case r == '-':
			b.WriteString(`\-`)
		case r == '\'':
			b.WriteString(`\(aq`)
		case r == '`':
			b.WriteString("\\(ga")
		case r == '^':
			b.WriteString(`\(ha`)
		case r == '~':
			b.WriteString(`\(ti`)
		case r > 0x7e:
			fmt.Fprintf(&b, `\[u%04X]`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
