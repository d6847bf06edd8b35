// Command glasshouse-init is PID 1 of a jail.
//
// On the host, "glasshouse-init pages SOCKET" serves on-demand memory pages for jails that
// were restored without them. "glasshouse-init asked PROGRAM..." executes a program whose
// system calls are decided by a seccomp listener.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"glasshouse/host/pages"
	"glasshouse/internal/notify"
	jailinit "glasshouse/jail/init"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "pages" {
		if err := pages.Main(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "glasshouse-init pages:", err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 2 && os.Args[1] == "asked" {
		fmt.Fprintln(os.Stderr, "glasshouse-init asked:", notify.Run(os.Args[2:]))
		os.Exit(1)
	}
	in := &jailinit.Init{}
	flag.StringVar(&in.Socket, "socket", "/.glasshouse/init.sock", "listen for the daemon on the unix socket at `path`")
	flag.BoolVar(&in.FDListener, "door", false, "receive connections from standard input instead")
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
