// Command glasshouse-init is PID 1 of a jail.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"glasshouse/jailinit"
)

func main() {
	in := &jailinit.Init{}
	flag.StringVar(&in.Socket, "socket", "/.glasshouse/init.sock", "listen for the daemon on the unix socket at `path`")
	flag.Parse()
	if err := run(in); err != nil {
		fmt.Fprintln(os.Stderr, "glasshouse-init:", err)
		os.Exit(1)
	}
}

func run(in *jailinit.Init) error {
	if err := in.Open(); err != nil {
		return err
	}
	defer in.Close()
	return in.Serve(context.Background())
}
