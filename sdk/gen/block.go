package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// ownHand is the module of the Python client that is written by hand for both variants,
// because it uses the operating system's asynchronous or blocking sockets.
var ownHand = "connection.py"

// blocking lists the replacements that turn asynchronous Python code into blocking code.
var blocking = []struct {
	from *regexp.Regexp
	to   string
}{
	{regexp.MustCompile(`\basync (def|with|for)\b`), "$1"},
	{regexp.MustCompile(`\bawait `), ""},
	{regexp.MustCompile(`\b__a(enter|exit|iter|next)__\b`), "__${1}__"},
	{regexp.MustCompile(`\bStopAsyncIteration\b`), "StopIteration"},
	{regexp.MustCompile(`\bAwaitable\[(\w+)\]`), "$1"},
	{regexp.MustCompile(`\bAsync([A-Z]\w*)`), "$1"},
	{regexp.MustCompile(`\basyncio\b`), "time"}, // only asyncio.sleep is used
	{regexp.MustCompile(`\baclose\b`), "close"},
}

const blockedHead = "# Made by `make sdk` from _async/%s. Do not edit.\n"

// block generates the modules of the blocking client from those of the asynchronous client.
func block(from, to string) error {
	modules, err := filepath.Glob(filepath.Join(from, "*.py"))
	if err != nil {
		return err
	}
	for _, m := range modules {
		name := filepath.Base(m)
		if name == ownHand {
			continue
		}
		text, err := os.ReadFile(m)
		if err != nil {
			return err
		}
		out := strings.Replace(blockedHead, "%s", name, 1) + blocked(strings.TrimPrefix(string(text), pythonHead))
		if err := os.WriteFile(filepath.Join(to, name), []byte(out), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func blocked(text string) string {
	for _, b := range blocking {
		text = b.from.ReplaceAllString(text, b.to)
	}
	return text
}
