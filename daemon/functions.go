package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"glasshouse/capability/engine"
	"glasshouse/capability/engine/builtin"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/protocol"
	"glasshouse/policy"
)

// RTFS configures which parts of the daemon's environment RTFS programs may read.
type RTFS struct {
	Env []string `yaml:"env"` // environment variables of the daemon that get-env returns
}

// builtins is the engine of the daemon's own capabilities: memory and the RTFS host functions.
type builtins struct {
	engine.Engine // memory
	functions     engine.Engine
}

func (b builtins) Call(ctx context.Context, call *engine.Call) (engine.Result, error) {
	if strings.HasPrefix(call.Capability.ID, builtin.Prefix) {
		return b.functions.Call(ctx, call)
	}
	return b.Engine.Call(ctx, call)
}

// hostFunctions implements the RTFS host functions on the calling jail.
func (d *Daemon) hostFunctions() builtin.Config {
	env := map[string]string{}
	for _, name := range d.Config.RTFS.Env {
		if value, ok := os.LookupEnv(name); ok {
			env[name] = value
		}
	}
	return builtin.Config{
		Env: env,
		Read: func(ctx context.Context, call *engine.Call, path string, limit int64) (b []byte, err error) {
			err = d.withFiles(ctx, call, policy.ActionRead, path, func(files jail.Files) error {
				r, _, err := files.Read(ctx, path, 0, limit)
				if err != nil {
					return err
				}
				defer r.Close()
				b, err = io.ReadAll(io.LimitReader(r, limit))
				return err
			})
			return b, err
		},
		Write: func(ctx context.Context, call *engine.Call, path string, data []byte) error {
			return d.withFiles(ctx, call, policy.ActionEdit, path, func(files jail.Files) error {
				_, err := files.Write(ctx, path, strings.NewReader(string(data)), protocol.WriteOptions{})
				return err
			})
		},
		Delete: func(ctx context.Context, call *engine.Call, path string) error {
			return d.withFiles(ctx, call, policy.ActionEdit, path, func(files jail.Files) error {
				return files.Remove(ctx, path, false)
			})
		},
		Exists: func(ctx context.Context, call *engine.Call, path string) (there bool, err error) {
			err = d.withFiles(ctx, call, policy.ActionRead, path, func(files jail.Files) error {
				_, err := files.Stat(ctx, path)
				there = err == nil
				if errors.Is(err, fault.NotFound) {
					return nil
				}
				return err
			})
			return there, err
		},
		Fetch: func(ctx context.Context, call *engine.Call, r *http.Request) (*http.Response, error) {
			return d.kernel.Fetch(ctx, id.Jail(call.Jail), r)
		},
	}
}

// withFiles calls f with the files of the calling jail if its policy allows the action.
func (d *Daemon) withFiles(ctx context.Context, call *engine.Call, action, path string, f func(jail.Files) error) error {
	who := policy.Subject{Jail: id.Jail(call.Jail), Session: call.Session, Run: call.Run, Agent: call.Agent}
	v, err := d.kernel.Evaluate(ctx, govern.Ask{Question: policy.Question{Subject: who, Action: action, Resource: path}, Parent: call.Entry})
	if err != nil {
		return err
	}
	if !v.Allow || v.Instead != "" {
		return &fault.Error{Op: call.Capability.ID, On: path, Kind: fault.Denied, Err: errors.New(v.Decision.Reason), Remedy: v.Decision.Remedy}
	}
	files, err := d.jails.Files(ctx, id.Jail(call.Jail))
	if err != nil {
		return fmt.Errorf("open the files of %s: %w", call.Jail, err)
	}
	return errors.Join(f(files), files.Close())
}
