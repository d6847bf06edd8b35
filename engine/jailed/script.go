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

	"glasshouse/engine"
	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jailinit/control"
	"glasshouse/jailinit/protocol"
	"glasshouse/manifest"
)

// run starts the capability's program, gives it the input, and returns what it
// answers.
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

	var out, said bytes.Buffer
	var end tail
	err = collect(stream, func(c protocol.Chunk) error {
		if c.Stream == protocol.Stdout {
			out.Write(c.Data)
		} else if end.add(c.Data); text {
			said.Write(c.Data)
		}
		if out.Len()+said.Len() > maxOutput {
			return troublef(engine.Garbled, nil, "its answer is longer than %d bytes", maxOutput)
		}
		return nil
	})
	switch log = end.String(); {
	case err != nil:
		return nil, log, err
	case text:
		body, err = s.textOutput(out.Bytes(), said.Bytes(), stream.Status())
		return body, log, err
	}
	return out.Bytes(), log, verdict(stream.Status(), log)
}

// textInput adds the arguments of a script that knows nothing of capabilities to its
// command line, and returns what it is to read.
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

// textOutput is what such a script has to say, however it ended. That it was killed
// for its memory is nothing it says.
func (s *sandbox) textOutput(stdout, stderr []byte, st protocol.ExecStatus) ([]byte, error) {
	if st.Code == 128+int(syscall.SIGKILL) {
		stats, err := s.engine.cfg.Jails.Stats(context.Background(), s.jail)
		if s.outOfMemory(stats, err) {
			return nil, troublef(engine.Memory, nil, "its program %s", ending(st))
		}
	}
	return json.Marshal(struct {
		Stdout   string `json:"stdout"`
		Stderr   string `json:"stderr"`
		ExitCode int    `json:"exit_code"`
	}{validText(stdout), validText(stderr), st.Code})
}

// feed gives a program its input. One that does not want it ends before it has it
// all.
func (s *sandbox) feed(ctx context.Context, st protocol.ExecStatus, input []byte) {
	in, err := s.engine.cfg.Jails.Stdin(ctx, s.jail, st.ID)
	if err != nil {
		return
	}
	in.Write(input)
	in.Close()
}

// verdict is what the end of a script says of its call.
func verdict(st protocol.ExecStatus, log string) error {
	switch {
	case st.Signal != "":
		return troublef(engine.Crashed, nil, "its program %s", ending(st))
	case st.Code != 0:
		reason := "its program " + ending(st)
		if log = strings.TrimSpace(log); log != "" {
			reason += ": " + engine.LogEnd([]byte(log), maxReason, false)
		}
		return troublef(engine.Failed, nil, "%s", validText([]byte(reason)))
	}
	return nil
}

// collect calls f with what a program writes, to its end. An error is f's, or that
// the program's jail has ended.
func collect(stream *control.Stream, f func(protocol.Chunk) error) error {
	for {
		c, err := stream.Next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("its sandbox ended: %w", err)
		}
		if err := f(c); err != nil {
			return err
		}
	}
}

// validText is what a program wrote, as text.
func validText(b []byte) string { return strings.ToValidUTF8(string(b), "�") }
