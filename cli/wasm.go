package cli

import (
	"os"
	"path/filepath"
	"strings"

	"glasshouse/engine/wasi"
	"glasshouse/engine/wasm"

	"github.com/spf13/cobra"
)

func (c *command) wasm() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "wasm",
		Short: "Run WebAssembly modules as capabilities see the world",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(c.wasmRun())
	return cmd
}

func (c *command) wasmRun() *cobra.Command {
	var env, mounts []string
	cmd := &cobra.Command{
		Use:   "run [--env K=V]... [--mount HOST:GUEST[:ro]]... MODULE [ARG...]",
		Short: "Run one module of WASI preview 1, in this process",
		Long: `Run one module of WASI preview 1, in this process: no daemon is needed.

The module has this command's standard streams, the arguments behind it, the
environment that --env gives it and nothing of this one's, and the directories
that --mount gives it, which it finds opened in this order. No path leads it out
of them, through symbolic links neither, and it has no network. The exit code is
the module's; 134 if it traps. What was compiled is kept in
glasshouse/wasm of the user's cache directory, if nobody else may enter there.`,
		Example: `  glasshouse wasm run hello.wasm
  glasshouse wasm run --mount .:/src:ro --mount /tmp/out:/out lint.wasm -v /src`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dirs, err := parseMounts(mounts)
			if err != nil {
				return err
			}
			for _, e := range env {
				if k, _, ok := strings.Cut(e, "="); !ok || k == "" {
					return usagef("--env %q is not K=V", e)
				}
			}
			code, err := wasm.Run(cmd.Context(), wasm.Program{
				Module: args[0], Args: append([]string{filepath.Base(args[0])}, args[1:]...), Env: env, Dirs: dirs,
				Stdin: c.env.Stdin, Stdout: c.env.Stdout, Stderr: c.env.Stderr,
				Cache: c.wasmCache(),
			})
			if err != nil && code == 0 {
				return err
			}
			if err != nil {
				complain(c.env.Stderr, err)
			}
			if code != 0 {
				return exitCode(code)
			}
			return nil
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringArrayVar(&env, "env", nil, "a variable of the module's environment, as K=V")
	cmd.Flags().StringArrayVar(&mounts, "mount", nil, "a directory that the module sees, as HOST:GUEST, or HOST:GUEST:ro to show it only")
	return cmd
}

// parseMounts reads HOST:GUEST[:ro].
func parseMounts(mounts []string) (dirs []wasi.Dir, err error) {
	for _, m := range mounts {
		rest, ro := strings.CutSuffix(m, ":ro")
		i := strings.LastIndexByte(rest, ':')
		if i <= 0 || i == len(rest)-1 {
			return nil, usagef("--mount %q is not HOST:GUEST[:ro]", m)
		}
		dirs = append(dirs, wasi.Dir{Host: rest[:i], Guest: rest[i+1:], ReadOnly: ro})
	}
	return dirs, nil
}

// wasmCache is where compiled modules of this user are kept; empty: nowhere.
func (c *command) wasmCache() string {
	dir := c.env.Getenv("XDG_CACHE_HOME")
	if dir == "" {
		if home := c.env.Getenv("HOME"); home != "" {
			dir = filepath.Join(home, ".cache")
		}
	}
	if !filepath.IsAbs(dir) {
		return ""
	}
	dir = filepath.Join(dir, "glasshouse", "wasm")
	if os.MkdirAll(dir, 0o700) != nil {
		return "" // a home that cannot be written costs time, and no more
	}
	return dir
}
