package cli

import (
	"os"
	"path/filepath"
	"strings"

	"glasshouse/capability/engine/wasi"
	"glasshouse/capability/engine/wasm"

	"github.com/spf13/cobra"
)

func (c *command) wasm() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "wasm",
		Short: "Run WebAssembly modules in the environment of capabilities",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(c.wasmRun())
	return cmd
}

func (c *command) wasmRun() *cobra.Command {
	var env, mounts []string
	cmd := &cobra.Command{
		Use:   "run [flags] MODULE [ARG...]",
		Short: "Run one WASI preview 1 module in this process",
		Long: `Run one WASI preview 1 module in this process. No daemon is needed.

The module gets the standard streams of this command, the given arguments, only the
environment variables of --env, and the directories of --mount, pre-opened in this
order. It cannot leave these directories, not even through symbolic links, and has no
network access. The exit code is that of the module, or 134 if it traps. Compiled code
is cached in glasshouse/wasm of the user's cache directory, if only the user can access
it.`,
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
	cmd.Flags().StringArrayVar(&env, "env", nil, "environment variable KEY=VALUE; may be repeated")
	cmd.Flags().StringArrayVar(&mounts, "mount", nil, "mount HOST:GUEST[:ro] in the module; may be repeated")
	return cmd
}

// parseMounts parses HOST:GUEST[:ro].
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

// wasmCache returns the directory of this user's compiled modules, or "" for no cache.
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
		return "" // without a writable home, modules are compiled each time
	}
	return dir
}
