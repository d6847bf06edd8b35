// Package test holds the tests of the module as a whole: the import rules, and scenarios that
// run the built binary as a user does.
package test
