// Package jail is the life of jails: what they are, what states they pass
// through, and the Manager that makes, runs and removes them.
//
// The package isolates nothing itself. A Backend does, and a jail's init, PID 1
// inside it, runs commands and moves files; the Manager joins the two, records
// every jail before it touches the host, and finds it all again after a crash.
package jail
