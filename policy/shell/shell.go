// Package shell tells which commands a shell command line really runs. It
// reads the line as bash would, follows wrappers, scripts given as arguments
// and values the line itself assigns, and says where it cannot tell.
package shell

import (
	"path"
	"strings"
)

// Hole stands in Argv, Writes, Reads and Cwd for text that the line does not
// tell: any text, and where it was not quoted any number of arguments. No
// argument of a program can hold it.
const Hole = "\x00"

// A Line is what a command line runs.
type Line struct {
	// Commands are all that may run, in the order they are written. Those of a
	// branch that is not taken are among them.
	Commands []Command `json:"commands,omitempty"`

	// Opaque says why the line as a whole cannot be understood; "" if it can.
	// Commands then are what was understood of it, and others may run.
	Opaque string `json:"opaque,omitempty"`
}

// A Command is one program, builtin or function that is started, or a
// statement that runs nothing and only opens files.
type Command struct {
	// Argv is what it is started with: quotes removed, braces expanded, values
	// the line assigns put in. Argv[0] is as written ("/bin/rm"). It is empty
	// for a statement of redirections alone. An unquoted leading tilde, or
	// $HOME, is kept as "~".
	Argv []string `json:"argv,omitempty"`

	Unknown []int `json:"unknown,omitempty"` // indexes in Argv of what has a Hole
	Globs   []int `json:"globs,omitempty"`   // indexes in Argv of what the shell matches with file names

	Text string `json:"text"` // as written, with its redirections

	// Via names what starts it, outermost first: "sudo", "env". Each of these
	// is a command of its own before it, but for "f()": a function of the line.
	Via []string `json:"via,omitempty"`

	// Wrapper says that it does nothing but start the commands that name it in
	// their Via, as they are: env, timeout, nice. What changes the user, the
	// root or the machine is none.
	Wrapper bool `json:"wrapper,omitempty"`

	// Builtin says that it is the line's own shell that does it.
	Builtin bool `json:"builtin,omitempty"`

	Writes []string `json:"writes,omitempty"` // files the shell opens for writing, as written
	Reads  []string `json:"reads,omitempty"`  // files the shell opens for reading, as written

	// Opaque says why it cannot be understood what it does, although its Argv
	// may be known: program text, a name hidden by a function.
	Opaque string `json:"opaque,omitempty"`

	// Cwd is where it runs: "" is where the line began, a relative path starts
	// there, and Hole is somewhere else that the line does not tell.
	Cwd string `json:"cwd,omitempty"`
}

// Base is the name of the program that argv0 starts: "rm" for "/bin/rm".
func Base(argv0 string) string {
	if argv0 == "" {
		return ""
	}
	return path.Base(argv0)
}

// String is the command for people: its arguments, with what is not known as
// an ellipsis.
func (c Command) String() string {
	return strings.ReplaceAll(strings.Join(c.Argv, " "), Hole, "…")
}

// Parse tells what a command line runs. It never fails: what cannot be
// understood is Opaque.
func Parse(line string) Line {
	return parse(line)
}
