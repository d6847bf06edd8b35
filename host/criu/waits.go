package criu

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// maxWaits bounds the processes in the text of waits.
const maxWaits = 40

// waits describes what a process and its descendants wait for: state, kernel function and system
// call. It is part of the error of a request that was not finished in time.
func waits(pid int) string {
	var lines []string
	for todo := []int{pid}; len(todo) > 0 && len(lines) < maxWaits; todo = todo[1:] {
		dir := filepath.Join("/proc", strconv.Itoa(todo[0]))
		threads, _ := filepath.Glob(filepath.Join(dir, "task", "*"))
		for _, th := range threads {
			file := func(name string) []byte {
				text, _ := os.ReadFile(filepath.Join(th, name)) // it may have ended
				return bytes.TrimSpace(text)
			}
			_, stat, _ := bytes.Cut(file("stat"), []byte(") "))
			state, _, _ := bytes.Cut(stat, []byte(" "))
			call, _, _ := bytes.Cut(file("syscall"), []byte(" "))
			lines = append(lines, fmt.Sprintf("%s %q %s %s %s", filepath.Base(th), file("comm"), state, file("wchan"), call))
			for child := range bytes.FieldsSeq(file("children")) {
				if n, err := strconv.Atoi(string(child)); err == nil {
					todo = append(todo, n)
				}
			}
		}
	}
	return strings.Join(lines, ", ")
}
