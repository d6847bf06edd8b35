// Glasshouse runs autonomous agents in jails: see package cli.
package main

import (
	"context"
	"io/fs"
	"os"
	"runtime"

	"glasshouse/cli"
	"glasshouse/jail/backend/bwrap"
)

func main() {
	// The same binary runs the stages of creating a jail that need their own process.
	bwrap.Stage(os.Args)
	withoutHugePages()

	// Embedded by make build. The daemon reports missing programs.
	programs, err := fs.Sub(embedded, "embedded/"+runtime.GOARCH)
	if err != nil {
		panic(err) // the name is not valid
	}
	os.Exit(cli.Run(context.Background(), os.Args[1:], cli.Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Getenv: os.Getenv, UID: os.Geteuid(), Programs: programs,
	}))
}
