// Package jail manages the lifecycle of jails (sandboxes): their specification, their states,
// and the Manager that creates, runs and removes them.
//
// The package does not isolate anything itself. A Backend isolates; init, which is PID 1 in
// the jail, runs commands and transfers files. The Manager coordinates the two. It records
// every jail before it touches the host, and finds all jails after a crash.
package jail
