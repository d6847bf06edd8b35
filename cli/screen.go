package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"glasshouse/internal/text"
)

// A style is how a terminal shows text: the parameter of its SGR sequence.
type style string

const (
	bold   style = "1"
	faint  style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	blue   style = "34"
	cyan   style = "36"
)

// A screen is the output of a command: a terminal, with or without colour, or a file or another
// program.
type screen struct {
	io.Writer
	terminal bool
	colour   bool
}

// colourFlag adds the flag that c.screen uses.
func (c *command) colourFlag(cmd *cobra.Command, colour *string) {
	cmd.Flags().StringVar(colour, "color", "auto", "auto, on a terminal without NO_COLOR; always; never")
	c.renameFlags(cmd, map[string]string{"colour": "color"})
}

func (c *command) screen(colour string) screen {
	s := screen{Writer: c.env.Stdout, terminal: isTerminal(c.env.Stdout)}
	switch colour {
	case "auto":
		s.colour = s.terminal && c.env.Getenv("NO_COLOR") == "" && c.env.Getenv("TERM") != "dumb"
	case "always":
		s.colour = true
	case "never":
	}
	return s
}

// paint returns text in a style, if the screen has colour.
func (s screen) paint(st style, text string) string {
	if !s.colour || text == "" {
		return text
	}
	return "\x1b[" + string(st) + "m" + text + "\x1b[0m"
}

// size returns the size of the terminal, or 0, 0.
func (s screen) size() (cols, rows int) {
	f, ok := s.Writer.(*os.File)
	if !ok || !s.terminal {
		return 0, 0
	}
	cols, rows, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0, 0
	}
	return cols, rows
}

// page returns content as a page that replaces the previous one if the screen is a terminal, cut
// to the terminal's size.
func (s screen) page(content string) string {
	if !s.terminal {
		return content + "\n"
	}
	cols, rows := s.size()
	lines := strings.Split(strings.TrimSuffix(content, "\n"), "\n")
	if rows > 1 && len(lines) >= rows {
		lines = append(lines[:rows-2], fmt.Sprintf("… %d more", len(lines)-rows+2))
	}
	for i, line := range lines {
		if cols > 0 {
			lines[i] = text.Columns(line, cols)
		}
	}
	return "\x1b[H\x1b[2J" + strings.Join(lines, "\n") + "\n"
}
