package main

import (
	"flag"
	"fmt"
	"io"
)

// keepMain runs an agent on the host and is the subreaper of its processes: when the agent exits or
// its lifeline closes, it kills all of them.
func keepMain(args []string, stderr io.Writer) int {
	c := &child{token: -1, alone: true}
	flags := flag.NewFlagSet("glasshouse-agent keep", flag.ContinueOnError)
	flags.SetOutput(stderr)
	c.flags(flags)
	flags.IntVar(&c.token, "token-fd", -1, "pass descriptor `n` to the agent, which reads its token from it")
	if err := flags.Parse(args); err != nil {
		return exitUsage
	}
	if c.argv = flags.Args(); len(c.argv) == 0 {
		fmt.Fprintln(stderr, "glasshouse-agent keep: no command: give one after --")
		return exitUsage
	}
	code, err := exitShim, c.closeOthers()
	if err == nil {
		code, err = c.run()
	}
	if err != nil {
		fmt.Fprintln(stderr, "glasshouse-agent keep:", err)
	}
	return code
}
