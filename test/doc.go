// Package test holds the tests of the whole: which package may import which,
// and scenarios that run the
// built binary as a user does.
package test
