package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/otel"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/atomicfile"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

func (c *command) export() *cobra.Command {
	cmd := &cobra.Command{
		Use: "export", Short: "Export events and the audit log to other systems", Args: cobra.NoArgs,
	}
	cmd.AddCommand(c.exportOTel())
	return cmd
}

// otelFlags are the flags of export otel.
type otelFlags struct {
	endpoint, jail, run, cursor string
	span                        timeFlags
	follow                      bool
}

// windowRetryTime limits the retries of an export of a time window while the collector is
// unavailable. An export with --follow retries without a limit.
const windowRetryTime = 5 * time.Minute

func (c *command) exportOTel() *cobra.Command {
	var f otelFlags
	cmd := &cobra.Command{
		Use: "otel [TERM...]", Short: "Export events and the audit log to an OpenTelemetry collector",
		Long: `Export events of jails and the audit log to a collector with OTLP over HTTP. Processes,
capability calls, runs and steps become spans; events and audit log entries become log
records. The terms filter events, as in glasshouse events; spans of processes are made
from events of type proc. The command exports all stored data, or the window from
--since to --until. With --follow it continues until it is interrupted.

With --cursor, a file stores the export position, so that the next export continues
there without gaps. Data that was in flight when an export was aborted is sent again
with the same ids. If the collector is busy or unreachable, the command retries for
five minutes, or with --follow without limit.

The collector is set by --endpoint or OTEL_EXPORTER_OTLP_ENDPOINT (default
` + otel.DefaultEndpoint + `), its headers by OTEL_EXPORTER_OTLP_HEADERS (comma-separated
KEY=VALUE), and the service name by OTEL_SERVICE_NAME. For collectors without protobuf,
set OTEL_EXPORTER_OTLP_PROTOCOL=http/json. The mapping is in docs/how-to/telemetry.md.`,
		Example: `  glasshouse export otel --since 1h
  glasshouse export otel --follow --cursor /var/lib/otel.cursor type:proc,net,gap
  glasshouse export otel --run r-4k2v9c7m1xqe --endpoint https://collector.example.com:4318`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.exportTo(cmd.Context(), f, strings.Join(args, " "))
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.endpoint, "endpoint", "", "collector base URL (OTEL_EXPORTER_OTLP_ENDPOINT)")
	fs.StringVar(&f.jail, "jail", "", "only entries of this jail")
	fs.StringVar(&f.run, "run", "", "only audit log entries of this run")
	f.span.add(fs)
	c.renameFlags(cmd, map[string]string{"from": "since", "to": "until"})
	fs.BoolVarP(&f.follow, "follow", "f", false, "follow new events")
	fs.StringVar(&f.cursor, "cursor", "", "file with the export position, to continue from")
	cmd.MarkFlagsMutuallyExclusive("until", "follow")
	return cmd
}

// exported counts the exported spans and log records.
type exported struct {
	Spans    int   `json:"spans"`
	Logs     int   `json:"logs"`
	Rejected int64 `json:"rejected"`
}

func (c *command) exportTo(ctx context.Context, f otelFlags, filter string) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var done exported
	sender, err := c.sender(f, &done)
	if err != nil {
		return err
	}
	x := &otel.Exporter{Run: id.Run(f.run), Filter: filter, Follow: f.follow}
	x.From, x.To, err = f.span.times()
	if err != nil {
		return err
	}
	if f.cursor != "" {
		unlock, err := lockCursor(f.cursor)
		if err != nil {
			return err
		}
		defer unlock()
		x.Cursor, err = readCursor(f.cursor)
		if err != nil {
			return err
		}
		x.Keep = func(at otel.Cursor) error { return writeCursor(f.cursor, at) }
	}
	cl, err := c.client(ctx)
	if err != nil {
		return err
	}
	if f.jail != "" {
		j, err := jailNamed(ctx, cl, f.jail)
		if err != nil {
			return err
		}
		x.Jails = []id.Jail{j}
	}
	x.Daemon = cl
	sender.From.Jails = jailNames(ctx, cl)
	x.Send = func(ctx context.Context, b *otel.Batch) error {
		if err := sender.Send(ctx, b); err != nil {
			return err
		}
		spans, logs := b.Count()
		done.Spans += spans
		done.Logs += logs
		return nil
	}
	if err := x.Export(ctx); err != nil {
		return err
	}
	return c.print(done, func(w io.Writer) {
		fmt.Fprintf(w, "sent %d spans and %d log records to %s\n", done.Spans, done.Logs, sender.Endpoint)
	})
}

// sender returns a sender that is configured by the flags and the environment. It prints the
// number of rejected items and counts them in done.
func (c *command) sender(f otelFlags, done *exported) (*otel.Sender, error) {
	header, err := otel.ParseHeaders(c.env.Getenv("OTEL_EXPORTER_OTLP_HEADERS"))
	if err != nil {
		return nil, err
	}
	protocol := c.env.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL")
	if protocol != "" && protocol != "http/protobuf" && protocol != "http/json" {
		return nil, &fault.Error{Op: "export", Kind: fault.Unsupported, Err: fmt.Errorf("unsupported OTEL_EXPORTER_OTLP_PROTOCOL %.40q", protocol), Remedy: "set it to http/protobuf or http/json, and use the collector's HTTP port"}
	}
	s := &otel.Sender{
		JSON:     protocol == "http/json",
		Endpoint: cmp.Or(f.endpoint, c.env.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"), otel.DefaultEndpoint),
		Header:   header,
		From:     otel.Source{Service: cmp.Or(c.env.Getenv("OTEL_SERVICE_NAME"), "glasshouse"), Host: c.daemonHost()},
		Rejected: func(n int64, why string) {
			done.Rejected += n
			fmt.Fprintf(c.env.Stderr, "glasshouse: the collector rejected %d items: %s\n", n, text.Visible(why))
		},
	}
	if !f.follow {
		s.Patience = windowRetryTime
	}
	return s, s.Check()
}

// daemonHost returns the name of the daemon's host.
func (c *command) daemonHost() string {
	u, err := url.Parse(c.address())
	if err == nil && u.Scheme != "unix" && u.Hostname() != "localhost" {
		if ip := net.ParseIP(u.Hostname()); ip == nil || !ip.IsLoopback() {
			return u.Hostname()
		}
	}
	name, _ := os.Hostname() // an empty name is omitted
	return name
}

// jailNames returns a function that maps jail ids to names, for the jails that the daemon knows.
func jailNames(ctx context.Context, cl *client.Client) func(id.Jail) string {
	known := map[id.Jail]string{}
	return func(j id.Jail) string {
		name, ok := known[j]
		if !ok {
			if found, err := cl.Jail(ctx, j); err == nil || errors.Is(err, fault.NotFound) {
				name = found.Name
				known[j] = name
			}
		}
		return name
	}
}

// lockCursor locks a cursor file. Two exports with the same cursor would overwrite each other's
// position.
func lockCursor(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the cursor: %w", err)
	}
	err = flock(f, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = &fault.Error{Op: "export", On: name, Kind: fault.Conflict, Err: errors.New("another export uses this cursor"), Remedy: "give each export its own --cursor"}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

func readCursor(name string) (otel.Cursor, error) {
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return otel.Cursor{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the cursor: %w", err)
	}
	var at otel.Cursor
	if err := json.Unmarshal(data, &at); err != nil {
		return nil, &fault.Error{Op: "export", On: name, Kind: fault.Mismatch, Err: fmt.Errorf("not a cursor: %w", err), Remedy: "give another file, or remove this one to export from the start"}
	}
	return at, nil
}

func writeCursor(name string, at otel.Cursor) error {
	data, err := json.Marshal(at)
	if err != nil {
		return fmt.Errorf("encode the cursor: %w", err)
	}
	return atomicfile.Durable(name, append(data, '\n'), 0o600)
}
