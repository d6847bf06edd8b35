// Package shell determines which commands a shell command line runs. It parses the line like
// bash, follows wrappers, scripts in arguments and variables that the line assigns, and reports
// the parts that it cannot determine.
package shell

import (
	"path"
	"strings"
)

// Hole represents unknown text in Argv, Writes, Reads and Cwd. Outside of quotes it may expand
// to any number of arguments. An argument of a program cannot contain it.
const Hole = "\x00"

// A Line is the analysis of a command line.
type Line struct {
	// Commands lists all commands that may run, in source order, including those of branches
	// that may not be taken.
	Commands []Command `json:"commands,omitempty"`

	// Opaque is the reason if the line as a whole cannot be analysed; otherwise "". If it is
	// set, Commands may be incomplete.
	Opaque string `json:"opaque,omitempty"`
}

// A Command is the start of a program, builtin or function, or a statement that only opens
// files.
type Command struct {
	// Argv is the argument vector after quote removal, brace expansion and expansion of the
	// variables that the line assigns. Argv[0] is as written ("/bin/rm"). Argv is empty for a
	// statement that consists of redirections only. An unquoted leading tilde and $HOME are
	// kept as "~".
	Argv []string `json:"argv,omitempty"`

	Unknown []int `json:"unknown,omitempty"` // indexes in Argv of arguments with a Hole
	Globs   []int `json:"globs,omitempty"`   // indexes in Argv of arguments that the shell expands to file names

	Text string `json:"text"` // source text, including redirections

	// Via lists the commands that start this one, outermost first: "sudo", "env". Each of them
	// precedes this command as a separate Command, except "f()", which is a function of the
	// line.
	Via []string `json:"via,omitempty"`

	// Wrapper is set if the command only starts the commands that list it in their Via, without
	// changing user, root or machine: env, timeout, nice.
	Wrapper bool `json:"wrapper,omitempty"`

	// Builtin is set if the line's own shell executes the command.
	Builtin bool `json:"builtin,omitempty"`

	Writes []string `json:"writes,omitempty"` // files the shell opens for writing, as written
	Reads  []string `json:"reads,omitempty"`  // files the shell opens for reading, as written

	// Opaque is the reason if the effect of the command is unknown even though its Argv may be
	// known: program text, or a name that a function may shadow.
	Opaque string `json:"opaque,omitempty"`

	// Cwd is the working directory: "" is the initial directory of the line, a relative path is
	// relative to it, and Hole is an unknown directory.
	Cwd string `json:"cwd,omitempty"`
}

// Base returns the base name of a program: "rm" for "/bin/rm".
func Base(argv0 string) string {
	if argv0 == "" {
		return ""
	}
	return path.Base(argv0)
}

// String returns the command for people: its arguments, with an ellipsis for unknown parts.
func (c Command) String() string {
	return strings.ReplaceAll(strings.Join(c.Argv, " "), Hole, "…")
}

// Parse analyses a command line. It never fails: parts that cannot be analysed are marked as
// Opaque.
func Parse(line string) Line {
	return parse(line)
}
