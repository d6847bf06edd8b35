package template

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"strings"

	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

//go:embed sudo.sh
var sudoShim string

//go:embed sudo_helper.sh
var sudoHelper string

const (
	sudoPath = "/usr/local/bin/sudo" // before /usr/bin in the PATH of login shells
	sudoDir  = "/run/glasshouse-sudo"
)

// sudo makes the command sudo work for a step that does not run as root, until done is called.
// done removes the helper's files, so that no layer contains them. A program that the tree has
// at sudoPath is not replaced.
func (r *builder) sudo(ctx context.Context) (done func() error, err error) {
	f, err := r.t.cfg.Jails.Files(ctx, r.jail)
	if err != nil {
		return nil, fmt.Errorf("open the files of the build: %w", err)
	}
	defer f.Close()
	if _, err := f.Stat(ctx, sudoPath); !errors.Is(err, fault.NotFound) {
		return func() error { return nil }, err
	}
	stream, st, err := r.t.cfg.Jails.Exec(ctx, r.jail, jail.ExecRequest{
		Argv: []string{"/bin/sh", "-c", sudoHelper}, Env: map[string]string{"HOME": "/root"}, Cwd: "/", User: "root",
	}, &control.AttachOptions{})
	var output string
	if err == nil {
		defer stream.Close()
		output, err = sudoReady(stream)
	}
	if err != nil {
		// For example, a tree without mkfifo: its steps have no sudo.
		r.log.printf("debug", "", "sudo is not available to the step: %s %v", output, err)
		return func() error { return nil }, nil
	}
	_, err = f.Write(ctx, sudoPath, strings.NewReader(sudoShim), protocol.WriteOptions{Mode: 0o755, Parents: true})
	if err != nil {
		return nil, fmt.Errorf("write the sudo helper: %w", err)
	}
	return func() error {
		ctx := context.WithoutCancel(ctx)
		err := r.t.cfg.Jails.Signal(ctx, r.jail, st.ID, "KILL")
		if errors.Is(err, fault.NotFound) || errors.Is(err, fault.Conflict) { // it has ended
			err = nil
		}
		f, openErr := r.t.cfg.Jails.Files(ctx, r.jail)
		if openErr != nil {
			return errors.Join(err, openErr)
		}
		defer f.Close()
		if text, readErr := readText(ctx, f, sudoPath); readErr != nil || text == sudoShim { // otherwise the step has installed its own
			err = errors.Join(err, readErr, gone(f.Remove(ctx, sudoPath, false)))
		}
		return errors.Join(err, gone(f.Remove(ctx, sudoDir, true)))
	}, nil
}

// gone returns nil for a fault.NotFound.
func gone(err error) error {
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// sudoReady waits until the helper accepts requests. If it ends, sudoReady returns its output.
func sudoReady(stream *control.Stream) (output string, err error) {
	for {
		c, err := stream.Next()
		if err == io.EOF {
			return output, errors.New("the helper has ended")
		}
		if err != nil {
			return output, err
		}
		output += string(c.Data)
		if c.Stream != protocol.Stderr && strings.Contains(output, "ready\n") {
			return output, nil
		}
	}
}
