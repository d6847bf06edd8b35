package cli

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"glasshouse/api/wire"
	"glasshouse/daemon"
	"glasshouse/host/probe"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
)

func (c *command) serve() *cobra.Command {
	var file, listen, db string
	var insecure, stopJails, ends, e2bTLS, entered bool
	var host int
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Long: `Run the daemon on a data directory.

The daemon listens on a unix socket in the data directory, for local callers, who are
identified by their user id, and on --listen, for callers with a token. The first
admin token is written to the file token in the data directory.

Jails keep running when the daemon is stopped or killed. The next daemon on the same
data directory adopts them.

In a container no process outlives the container: run the daemon under an init that
reaps orphaned processes, and stop the jails with --stop-jails. Or give the container the
privileges and the process IDs of the host, and use --host: the daemon copies itself and
its programs to the data directory of the host, and runs there. Jails then keep running.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Getpid() == 1 {
				return beneathInit(os.Args)
			}
			cfg := daemon.NewConfig(c.env.UID, c.env.Getenv("HOME"))
			if file != "" {
				if err := cfg.ReadFile(file); err != nil {
					return err
				}
			}
			if warning := cfg.ReadEnv(c.env.Getenv); warning != "" {
				fmt.Fprintln(c.env.Stderr, "glasshouse: "+warning)
			}
			for name, set := range map[string]func(){
				"data": func() { cfg.Data = c.data }, "listen": func() { cfg.Listen = listen },
				"db": func() { cfg.DB = db }, "insecure": func() { cfg.Insecure = insecure }, "stop-jails": func() { cfg.StopJails = stopJails },
				"e2b-tls": func() { cfg.E2B.TLS.Auto = e2bTLS },
			} {
				if cmd.Flags().Changed(name) {
					set()
				}
			}
			if host != 0 {
				return enterHost(host, cfg.Data, file)
			}
			if entered {
				if err := leaveContainer(cfg.Data); err != nil {
					return err
				}
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			if ends {
				cfg.Log.Level, cfg.Pool.Size = "warn", 0 // no jails in advance
			}
			d := c.daemon(cfg)
			if err := d.Open(ctx); err != nil {
				return err
			}
			if !ends {
				if err := c.recordService(cfg.Data, file); err != nil {
					return errors.Join(err, d.Close())
				}
			}
			if ends {
				if err := stopWhenIdle(cfg.Data, stop); err != nil {
					return errors.Join(err, d.Close())
				}
			}
			// The supervisor can start dependent services without polling the daemon. Unsetting
			// NOTIFY_SOCKET keeps it from the daemon's child processes (sd_notify(3)).
			if _, err := sd.SdNotify(true, sd.SdNotifyReady); err != nil {
				fmt.Fprintf(c.env.Stderr, "glasshouse: cannot notify systemd that the daemon is ready: %v\n", err)
			}
			return d.Run(ctx)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration file, YAML; see docs/reference/configuration.md")
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:8082", `TCP address of the API; "" for the unix socket alone (GLASSHOUSE_LISTEN)`)
	cmd.Flags().StringVar(&db, "db", "", "postgres://… (default: SQLite in the data directory, or GLASSHOUSE_DB)")
	cmd.Flags().BoolVar(&insecure, "insecure", false, "allow a listen address that is not loopback without TLS")
	cmd.Flags().BoolVar(&e2bTLS, "e2b-tls", false, "serve E2B clients over TLS; creates a CA if none is set")
	cmd.Flags().BoolVar(&stopJails, "stop-jails", false, "stop all jails when the daemon stops")
	cmd.Flags().IntVar(&host, "host", 0, "leave the container, and run on its host, in the namespaces of this process; a configuration file must be below /run")
	cmd.Flags().Lookup("host").NoOptDefVal = "1"
	cmd.Flags().BoolVar(&entered, enteredHost, false, "this process comes from a container")
	cmd.Flags().MarkHidden(enteredHost)
	cmd.MarkFlagsMutuallyExclusive("host", "stop-jails")
	cmd.Flags().BoolVar(&ends, whileUsed, false, "stop when no command uses this daemon")
	cmd.Flags().MarkHidden(whileUsed)
	return cmd
}

// recordService records whether the daemon of a data directory is a service.
func (c *command) recordService(dir, config string) error {
	if config != "" {
		var err error
		config, err = filepath.Abs(config)
		if err != nil {
			return fmt.Errorf("make the path of the configuration absolute: %w", err)
		}
	}
	return writeService(dir, serviceOf(config, c.env.Getenv))
}

func (c *command) daemon(cfg daemon.Config) *daemon.Daemon {
	kernel, _ := probe.KernelRelease() // only for information
	return &daemon.Daemon{
		Config: cfg, Programs: c.env.Programs, LogTo: c.env.Stderr,
		Version: wire.Version{Version: version, Go: runtime.Version(), Kernel: kernel, StartedAt: time.Now()},
	}
}
