package jailed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// run starts the capability's program, writes the input to its standard input, and returns
// its output and the end of its log.
func (s *sandbox) run(ctx context.Context, input []byte) (body []byte, log string, err error) {
	argv, text := s.c.Runtime.Entrypoint, s.c.Runtime.Stdio == manifest.TextStdio
	if text {
		if argv, input, err = textInput(argv, input); err != nil {
			return nil, "", err
		}
	}
	stream, st, err := s.engine.cfg.Jails.Exec(ctx, s.jail, jail.ExecRequest{Argv: argv, Stdin: true, Ring: scriptRing}, lossless)
	if errors.Is(err, fault.Invalid) || errors.Is(err, fault.NotFound) {
		return nil, "", troublef(engine.Unstarted, err, "its entrypoint cannot be started: %v", err)
	}
	if err != nil {
		return nil, "", err
	}
	defer stream.Close()
	var feeding sync.WaitGroup
	defer feeding.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	feeding.Go(func() { s.feed(ctx, st, input) })

	var out, stderr bytes.Buffer
	var end tail
	err = collect(stream, func(c protocol.Chunk) error {
		if c.Stream == protocol.Stdout {
			out.Write(c.Data)
		} else if end.add(c.Data); text {
			stderr.Write(c.Data)
		}
		if out.Len()+stderr.Len() > maxOutput {
			return troublef(engine.Garbled, nil, "its output exceeds %d bytes", maxOutput)
		}
		return nil
	})
	switch log = end.String(); {
	case err != nil:
		return nil, log, err
	case text:
		body, err = s.textOutput(out.Bytes(), stderr.Bytes(), stream.Status())
		return body, log, err
	}
	return out.Bytes(), log, verdict(stream.Status(), log)
}

// textInput returns the command line and the standard input of a program with the stdio
// mode text, which takes arguments and text instead of JSON.
func textInput(argv []string, input []byte) ([]string, []byte, error) {
	var in struct {
		Args  []string `json:"args"`
		Stdin string   `json:"stdin"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, nil, troublef(engine.Failed, err, "its input is not {:args [\"…\"] :stdin \"…\"}: %v", err)
	}
	return append(slices.Clone(argv), in.Args...), []byte(in.Stdin), nil
}

// textOutput returns the output and the exit code of such a program as JSON. A nonzero exit
// code is not an error, but a kill by the OOM killer is.
func (s *sandbox) textOutput(stdout, stderr []byte, st protocol.ExecStatus) ([]byte, error) {
	if st.Code == 128+int(syscall.SIGKILL) {
		stats, err := s.engine.cfg.Jails.Stats(context.Background(), s.jail)
		if s.outOfMemory(stats, err) {
			return nil, troublef(engine.Memory, nil, "its program %s", describeExit(st))
		}
	}
	return json.Marshal(struct {
		Stdout   string `json:"stdout"`
		Stderr   string `json:"stderr"`
		ExitCode int    `json:"exit_code"`
	}{validText(stdout), validText(stderr), st.Code})
}

// feed writes the input to the standard input of a program. Write errors are ignored: a
// program may exit without reading its input.
func (s *sandbox) feed(ctx context.Context, st protocol.ExecStatus, input []byte) {
	in, err := s.engine.cfg.Jails.Stdin(ctx, s.jail, st.ID)
	if err != nil {
		return
	}
	in.Write(input)
	in.Close()
}

// verdict returns an error if a script was killed by a signal or exited with a nonzero code.
func verdict(st protocol.ExecStatus, log string) error {
	switch {
	case st.Signal != "":
		return troublef(engine.Crashed, nil, "its program %s", describeExit(st))
	case st.Code != 0:
		reason := "its program " + describeExit(st)
		if log = strings.TrimSpace(log); log != "" {
			reason += ": " + engine.LogEnd([]byte(log), maxReason, false)
		}
		return troublef(engine.Failed, nil, "%s", validText([]byte(reason)))
	}
	return nil
}

// collect calls f with each chunk of output until the program ends. It returns the error of
// f, or an error if the jail has ended.
func collect(stream *control.Stream, f func(protocol.Chunk) error) error {
	for {
		c, err := stream.Next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("the sandbox of the capability ended: %w", err)
		}
		if err := f(c); err != nil {
			return err
		}
	}
}

// validText returns output as valid UTF-8.
func validText(b []byte) string { return strings.ToValidUTF8(string(b), "�") }
