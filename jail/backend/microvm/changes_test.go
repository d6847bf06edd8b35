package microvm

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"testing"

	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/guest/wire"
)

func TestChangesOfHostileGuest(t *testing.T) {
	fine := jail.Change{Path: "/a/b", Kind: "renamed", From: "/a/c", Type: "file", Size: 1, Mode: fs.ModeSetuid | 0o755, What: []string{"content"}, NoDiff: "binary"}
	if err := checkChange(fine); err != nil {
		t.Errorf("an ordinary change: %v", err)
	}
	for name, spoil := range map[string]func(c *jail.Change){
		"relative":     func(c *jail.Change) { c.Path = "a" },
		"upwards":      func(c *jail.Change) { c.Path = "/../etc/shadow" },
		"not clean":    func(c *jail.Change) { c.Path = "/a//b" },
		"root":         func(c *jail.Change) { c.Path = "/" },
		"no path":      func(c *jail.Change) { c.Path = "" },
		"null":         func(c *jail.Change) { c.Path = "/a\x00b" },
		"from upwards": func(c *jail.Change) { c.From = "/a/../../b" },
		"from nowhere": func(c *jail.Change) { c.From = "" },
		"kind":         func(c *jail.Change) { c.Kind = "approved" },
		"type":         func(c *jail.Change) { c.Type = "whiteout" },
		"size":         func(c *jail.Change) { c.Size = -1 },
		"mode":         func(c *jail.Change) { c.Mode = fs.ModeDevice },
		"what":         func(c *jail.Change) { c.What = []string{"everything"} },
		"reason":       func(c *jail.Change) { c.NoDiff = "\x1b[2J" },
	} {
		c := fine
		spoil(&c)
		if err := checkChange(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestListsOfHostileGuest(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"invalid change": func(w http.ResponseWriter, _ *http.Request) {
			json.NewEncoder(w).Encode([]jail.Change{{Path: "/..", Kind: "added", Type: "file"}})
		},
		"no list": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"path": "/a"}`) },
		"many lies": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "["+strings.Repeat("{},", 9<<20)+"{}]")
		},
		"endless": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "[")
			for block := strings.Repeat(" ", 1<<20); ; {
				if _, err := io.WriteString(w, block); err != nil {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			changes, err := openTestLink(t, answer).changes(t.Context(), wire.Changes{})
			if !errors.Is(err, fault.Unavailable) || changes != nil {
				t.Errorf("changes = %v, %v, want unavailable", changes, err)
			}
		})
	}
}
