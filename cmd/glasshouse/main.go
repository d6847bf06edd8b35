// Glasshouse runs autonomous agents in jails: see package cli.
package main

import (
	"context"
	"io/fs"
	"os"
	"runtime"

	"glasshouse/backend/bwrap"
	"glasshouse/cli"
)

func main() {
	// Jails are made by this program too: some steps need a process of their own.
	bwrap.Stage(os.Args)
	withoutHugePages()

	// What make build has put there before it builds this program. The daemon says what is missing.
	programs, err := fs.Sub(embedded, "embedded/"+runtime.GOARCH)
	if err != nil {
		panic(err) // the name is not valid
	}
	os.Exit(cli.Run(context.Background(), os.Args[1:], cli.Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Getenv: os.Getenv, UID: os.Geteuid(), Programs: programs,
	}))
}
