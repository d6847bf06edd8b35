package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"
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

// A screen is where a command writes: a terminal, in colour or not, or a file
// or another program.
type screen struct {
	io.Writer
	terminal bool
	colour   bool
}

// colourFlag adds the flag that c.screen takes.
func colourFlag(cmd *cobra.Command, colour *string) {
	cmd.Flags().StringVar(colour, "colour", "auto", "auto, on a terminal without NO_COLOR; always; never")
}

func (c *command) screen(colour string) (screen, error) {
	s := screen{Writer: c.env.Stdout, terminal: isTerminal(c.env.Stdout)}
	switch colour {
	case "auto":
		s.colour = s.terminal && c.env.Getenv("NO_COLOR") == "" && c.env.Getenv("TERM") != "dumb"
	case "always":
		s.colour = true
	case "never":
	default:
		return s, usagef("--colour %q is none of auto, always and never", colour)
	}
	return s, nil
}

// paint returns text in a style, if the screen has any.
func (s screen) paint(st style, text string) string {
	if !s.colour || text == "" {
		return text
	}
	return "\x1b[" + string(st) + "m" + text + "\x1b[0m"
}

// size is the terminal's, or 0, 0.
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

// page returns text as a page that replaces the one before, if the screen is a
// terminal, cut to what fits on it.
func (s screen) page(text string) string {
	if !s.terminal {
		return text + "\n"
	}
	cols, rows := s.size()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if rows > 1 && len(lines) >= rows {
		lines = append(lines[:rows-2], fmt.Sprintf("… %d more", len(lines)-rows+2))
	}
	for i, line := range lines {
		if r := []rune(line); cols > 0 && len(r) > cols {
			lines[i] = string(r[:cols-1]) + "…"
		}
	}
	return "\x1b[H\x1b[2J" + strings.Join(lines, "\n") + "\n"
}

// escape makes of a stranger's text one line that moves no cursor and sets no
// title: what a terminal would obey, and what changes the direction of writing,
// is shown as Go and most shells would write it.
func escape(s string) string {
	if !strings.ContainsFunc(s, obeyed) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case r < 0x80 && obeyed(r):
			fmt.Fprintf(&b, `\x%02x`, r)
		case obeyed(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	return b.String()
}

// obeyed reports whether a terminal takes r for more than a character: control
// characters of both sets, line separators, marks of direction, and what is not
// UTF-8, where such may hide.
func obeyed(r rune) bool {
	switch {
	case r < ' ', r >= 0x7f && r < 0xa0, r == utf8.RuneError,
		r == 0x061c, r >= 0x200b && r <= 0x200f, r >= 0x2028 && r <= 0x202e, r >= 0x2060 && r <= 0x206f, r == 0xfeff,
		r >= 0xe0000 && r <= 0xe007f:
		return true
	}
	return false
}
