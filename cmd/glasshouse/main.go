// Glasshouse runs autonomous agents in jails: see package cli.
package main

import (
	"context"
	"os"
	"runtime"

	"glasshouse/backend/bwrap"
	"glasshouse/cli"
)

// built returns what make build has put into embedded, for the processor this program is
// for, before it is built. The daemon says what is missing.
func built(name string) []byte {
	b, _ := embedded.ReadFile("embedded/" + runtime.GOARCH + "/" + name)
	return b
}

func main() {
	// Jails are made by this program too: some steps need a process of their own.
	bwrap.Stage(os.Args)

	os.Exit(cli.Run(context.Background(), os.Args[1:], cli.Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Getenv: os.Getenv, UID: os.Geteuid(), Init: built("glasshouse-init"), Agent: built("glasshouse-agent"),
	}))
}
