// Command glasshouse-agent is the agent included in Glasshouse, and the proxy between any
// other agent and the agent endpoint in a jail without a network:
//
//	glasshouse-agent                       pursue the run of the agent endpoint
//	glasshouse-agent shim [flags] -- ARGV  serve the agent endpoint on a TCP port
//	                                       namespace's loopback, and run ARGV
//	glasshouse-agent keep [flags] -- ARGV  run ARGV, and end all its processes with it
//
// The environment has the address of the agent endpoint in GLASSHOUSE_DOOR (http://host:port or
// unix:///path), and in GLASSHOUSE_TOKEN_FD the descriptor from which its token is read.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"glasshouse/agents/agent/builtin"
)

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "shim":
			os.Exit(shimMain(os.Args[2:], os.Stderr))
		case "limited": // used by shim and keep to start an agent with limits
			os.Exit(limitedMain(os.Args[2:], os.Stderr))
		case "keep":
			os.Exit(keepMain(os.Args[2:], os.Stderr))
		}
	}
	os.Exit(agentMain(os.Args[1:], os.Getenv, os.Stderr))
}

func agentMain(args []string, getenv func(string) string, stderr io.Writer) int {
	if len(args) > 0 {
		fmt.Fprintln(stderr, "usage: glasshouse-agent [shim|keep [flags] -- ARGV...]")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	cfg := builtin.Config{Endpoint: getenv("GLASSHOUSE_DOOR"), Log: slog.New(slog.NewTextHandler(stderr, nil))}
	var err error
	if fd := getenv("GLASSHOUSE_TOKEN_FD"); fd != "" {
		if cfg.Token, err = readToken(fd); err != nil {
			fmt.Fprintln(stderr, "glasshouse-agent:", err)
			return 2
		}
	}
	if err := builtin.Run(ctx, cfg); err != nil {
		fmt.Fprintln(stderr, "glasshouse-agent:", err)
		return 1
	}
	return 0
}

// maxToken is the maximum length of a token.
const maxToken = 4096

// readToken reads the token from the descriptor and closes it.
func readToken(fd string) (string, error) {
	n, err := strconv.Atoi(fd)
	if err != nil || n < 3 {
		return "", fmt.Errorf("invalid token descriptor %q: want a number of at least 3", fd)
	}
	f := os.NewFile(uintptr(n), "token")
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	if len(b) == 0 || len(b) > maxToken {
		return "", fmt.Errorf("the token has an invalid length of %d bytes", len(b))
	}
	for _, c := range b {
		if c <= ' ' || c > '~' {
			return "", fmt.Errorf("the token contains the invalid byte %#02x", c)
		}
	}
	return string(b), nil
}
