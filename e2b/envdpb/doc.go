// Package envdpb is the messages of the E2B protocol's data plane, generated from
// definitions that were written from its public field numbers.
package envdpb

//go:generate buf generate
