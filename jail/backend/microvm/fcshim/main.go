// Program fcshim is a test double of Firecracker: it serves its API, and runs the machines with QEMU.
//
// Firecracker needs KVM, and tests run also without it. The double accepts what Firecracker
// 1.12 accepts and refuses the rest: fields, types, states and the order of calls
// (src/firecracker/swagger/firecracker.yaml and src/vmm/src/rpc_interface.rs in its repository). Of its features
// it has those that Glasshouse uses.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"time"
)

const release = "1.12.0"

func main() {
	if os.Args[0] == filtered {
		// The socket for the listener, and the program.
		socket, err := strconv.Atoi(os.Args[1])
		if err == nil {
			err = execFiltered(socket, os.Args[2], os.Args[2:])
		}
		fmt.Fprintln(os.Stderr, "fcshim: execute QEMU:", err)
		os.Exit(1)
	}
	runtime.LockOSThread() // QEMU ends with the thread that has started it
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "fcshim:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	options := map[string]string{}
	for len(args) > 0 {
		name := args[0]
		switch {
		case name == "--version":
			fmt.Printf("Firecracker v%s\n\n", release)
			return nil
		case (name == "--api-sock" || name == "--id" || name == "--level") && len(args) > 1:
			options[name] = args[1]
			args = args[2:]
		default:
			return fmt.Errorf("arguments parsing error: found argument %q which wasn't expected", name)
		}
	}
	l, err := net.Listen("unix", options["--api-sock"])
	if err != nil {
		return fmt.Errorf("open the API socket: %w", err)
	}
	m := newMachine(options["--id"])
	server := &http.Server{Handler: newAPI(m), ReadHeaderTimeout: 10 * time.Second}
	go func() { m.ends <- server.Serve(l) }()
	// The process of QEMU is started on this thread.
	for {
		select {
		case start := <-m.starts:
			start.done <- m.startQEMU(start)
		case err := <-m.ends:
			return err
		}
	}
}
