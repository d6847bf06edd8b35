package envd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"glasshouse/fault"
	"glasshouse/jail/init/protocol"
)

// Limits of one compose request.
const (
	maxSources = 10_000
	maxCompose = 8 << 20 // bytes of the request body
)

// composeFiles concatenates files into one and then removes the sources.
func (s *Server) composeFiles(w http.ResponseWriter, r *http.Request) {
	f, err := s.compose(w, r)
	if err != nil {
		s.refused(w, r, err)
		return
	}
	writeJSON(w, f)
}

func (s *Server) compose(w http.ResponseWriter, r *http.Request) (written, error) {
	var q struct {
		Sources     []string `json:"source_paths"`
		Destination string   `json:"destination"`
		Username    string   `json:"username"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxCompose)).Decode(&q); err != nil {
		return written{}, bad("invalid JSON request: %w", err)
	}
	if len(q.Sources) == 0 || len(q.Sources) > maxSources || q.Destination == "" {
		return written{}, bad("destination and 1 to %d source_paths are required", maxSources)
	}
	v := visited(r.Context())
	name, err := v.named(q.Username)
	if err != nil {
		return written{}, err
	}
	d, err := s.filesFor(r.Context(), v, name)
	if err != nil {
		return written{}, err
	}
	defer d.Close()
	sources := make([]string, len(q.Sources))
	for i, p := range q.Sources {
		if sources[i], err = d.path(p); err != nil {
			return written{}, err
		}
	}
	p, err := d.path(q.Destination)
	if err != nil {
		return written{}, err
	}
	return d.join(r, p, sources)
}

// join replaces the destination atomically with the concatenation of the sources, and then
// removes the sources.
func (d *desk) join(r *http.Request, to string, sources []string) (written, error) {
	ctx := r.Context()
	for _, p := range sources {
		i, err := d.resolved(ctx, p)
		if err != nil {
			return written{}, err
		}
		if i.Type != "file" {
			return written{}, bad("%s is not a regular file", p)
		}
	}
	all := &chain{open: func(p string) (io.ReadCloser, error) {
		body, _, err := d.Read(ctx, p, 0, -1)
		return body, err
	}, left: sources}
	defer all.Close()
	i, err := d.Write(ctx, to, all, protocol.WriteOptions{
		Mode: newMode, Parents: true, UID: &d.account.owner.UID, GID: &d.account.owner.GID,
	})
	if err != nil {
		return written{}, err
	}
	for _, p := range sources {
		if same, err := d.resolved(ctx, p); err == nil && same.Path == i.Path {
			continue
		}
		if err := d.Remove(ctx, p, false); err != nil && !errors.Is(err, fault.NotFound) {
			return written{}, fmt.Errorf("remove the source %s: %w", p, err)
		}
	}
	return written{Path: i.Path, Name: i.Name, Type: "file"}, nil
}

// A chain reads files one after the other. It opens each file when it reaches it.
type chain struct {
	open func(string) (io.ReadCloser, error)
	left []string
	now  io.ReadCloser
}

func (c *chain) Read(p []byte) (int, error) {
	for {
		if c.now == nil {
			if len(c.left) == 0 {
				return 0, io.EOF
			}
			var err error
			if c.now, err = c.open(c.left[0]); err != nil {
				return 0, err
			}
			c.left = c.left[1:]
		}
		n, err := c.now.Read(p)
		if err == io.EOF {
			c.Close()
			err = nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (c *chain) Close() error {
	if c.now == nil {
		return nil
	}
	err := c.now.Close()
	c.now = nil
	return err
}
