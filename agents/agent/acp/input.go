package acp

import (
	"encoding/json"
	"slices"
	"strings"

	acp "github.com/coder/acp-go-sdk"
	"mvdan.cc/sh/v3/syntax"
)

// maxPaths bounds ToolCall.Paths.
const maxPaths = 1024

// read extracts the fields that a policy evaluates from the tool's input. The keys are those
// of OpenCode, Codex, Claude Code and Gemini. Calls with other keys are evaluated by their
// kind and title.
func (c *ToolCall) read(located []fileLocation) {
	var in struct {
		Command  json.RawMessage `json:"command"`
		Cmd      json.RawMessage `json:"cmd"`
		Cwd      string          `json:"cwd"`
		Workdir  string          `json:"workdir"`
		URL      string          `json:"url"`
		Path     string          `json:"path"`
		FilePath string          `json:"filePath"`
		File     string          `json:"file_path"`
		Notebook string          `json:"notebook_path"`
		Absolute string          `json:"absolute_path"`
		Dir      string          `json:"dir_path"`
		Changes  json.RawMessage `json:"changes"`
	}
	// Unmarshal decodes the other fields even if one has an unexpected type.
	_ = json.Unmarshal(c.Input, &in)

	c.Command = line(in.Command)
	if c.Command == "" {
		c.Command = line(in.Cmd)
	}
	c.CommandFromTitle = c.Kind == string(acp.ToolKindExecute) && len(c.Input) == 0
	if c.CommandFromTitle {
		c.Command = c.Title
	}
	c.URL = in.URL
	c.Cwd = in.Cwd
	if c.Cwd == "" {
		c.Cwd = in.Workdir
	}
	paths := []string{in.FilePath, in.File, in.Path, in.Notebook, in.Absolute, in.Dir}
	paths = append(paths, changed(in.Changes)...)
	for _, l := range located {
		paths = append(paths, l.Path)
	}
	c.Paths = nil
	for _, p := range paths {
		if p != "" && !slices.Contains(c.Paths, p) && len(c.Paths) < maxPaths {
			c.Paths = append(c.Paths, p)
		}
	}
}

// line returns a command as a shell command line. raw is a string or a list of words. A
// leading shell with -c is removed from a list.
func line(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var words []string
	if json.Unmarshal(raw, &words) != nil {
		return ""
	}
	if len(words) == 3 && isShell(words[0]) && (words[1] == "-c" || words[1] == "-lc") {
		return words[2]
	}
	for i, w := range words {
		quoted, err := syntax.Quote(w, syntax.LangBash)
		if err != nil {
			quoted = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		words[i] = quoted
	}
	return strings.Join(words, " ")
}

func isShell(word string) bool {
	return slices.Contains([]string{"bash", "/bin/bash", "/usr/bin/bash", "sh", "/bin/sh", "/usr/bin/sh"}, word)
}

// changed returns the files of a Codex patch, which is a map keyed by path or a list.
func changed(raw json.RawMessage) []string {
	var byPath map[string]json.RawMessage
	var paths []string
	if json.Unmarshal(raw, &byPath) == nil {
		for p := range byPath {
			paths = append(paths, p)
		}
		slices.Sort(paths)
		return paths
	}
	var listed []fileLocation
	if json.Unmarshal(raw, &listed) == nil {
		for _, l := range listed {
			paths = append(paths, l.Path)
		}
	}
	return paths
}
