//go:build !amd64

package kernel_test

func int80([]string) {}
