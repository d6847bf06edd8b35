package oci

import "glasshouse/fault"

// sentryCannot says why jails of gVisor are not written down while they run.
// Three ways were tried, with release 20240729:
//
//   - As jails are, with the network of the host's kernel in a namespace of their
//     own, runsc refuses: "checkpoint not supported when using hostinet". What
//     such sockets hold is in a kernel that gVisor does not write down.
//   - With gVisor's own network stack, on which the jail's 127.0.0.1 is another
//     than its gateway's, it gives up in the middle: "Cannot save endpoint with
//     bound host socket". That is init's control socket, a file of the host.
//   - Without that too it succeeds, and goes on. But then nobody outside can talk
//     to init, which starts and ends all commands of the jail.
//
// So what it takes is another way to init, and a gateway on another address. The
// files of a jail that is stopped can be kept all the same.
func (b *Backend) sentryCannot(op string) error {
	return fault.Cannot(op, "gVisor cannot write down sockets that lead to the host, and its jails' control socket and network do",
		"stop the jail first, and its files are kept; or make jails with the runtime runc or crun")
}
