package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/internal/text"
	"glasshouse/policy/chain"
	"glasshouse/store"

	"github.com/spf13/cobra"
	"golang.org/x/mod/sumdb/tlog"
)

func (c *command) audit() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit", Short: "Read, verify and export the audit log (the causal chain)", Args: cobra.NoArgs,
		Long: `The audit log (the causal chain) records all decisions and actions. Each entry
contains the hash of the previous one, and signed checkpoints cover all entries. An
export can be verified with the public key, without trusting this host.`,
	}
	cmd.AddCommand(c.auditList(), c.auditShow(), c.auditVerify(), c.auditExport(), c.auditHead(), c.auditProve())
	return cmd
}

func (c *command) auditList() *cobra.Command {
	var jail, session, run, capability, kind string
	var span timeFlags
	var under int64
	var newest bool
	cmd := &cobra.Command{
		Use: "ls", Short: "List entries, oldest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q := url.Values{}
			if err := span.query(q); err != nil {
				return err
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			for k, v := range map[string]string{"session": session, "run": run, "capability": capability, "kind": kind} {
				if v != "" {
					q.Set(k, v)
				}
			}
			if jail != "" {
				j, err := jailNamed(cmd.Context(), cl, jail)
				if err != nil {
					return err
				}
				q.Set("jail", string(j))
			}
			if under > 0 {
				q.Set("under", strconv.FormatInt(under, 10))
			}
			if newest {
				q.Set("newest", "true")
			}
			return c.listAuditLog(cmd.Context(), cl, q)
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&newest, "newest", false, "newest first")
	fs.StringVar(&jail, "jail", "", "only entries of this jail")
	fs.StringVar(&session, "session", "", "only runs of this session")
	fs.StringVar(&run, "run", "", "only entries of this run")
	fs.StringVar(&capability, "capability", "", "only entries of this capability")
	fs.StringVar(&kind, "kind", "", "only these kinds, comma-separated: decision, egress, …")
	span.add(fs)
	fs.Int64Var(&under, "under", 0, "only entries caused by this one, also indirectly")
	return cmd
}

// listAuditLog prints audit log entries as they arrive.
func (c *command) listAuditLog(ctx context.Context, cl *client.Client, q url.Values) error {
	if c.json {
		all, err := client.Collect(cl.Chain(ctx, q))
		if err != nil {
			return err
		}
		return c.print(all, nil)
	}
	for e, err := range cl.Chain(ctx, q) {
		if err != nil {
			return err
		}
		fmt.Fprintln(c.env.Stdout, entryLine(e))
	}
	return nil
}

// entryLine formats an entry as one line. Text from jails is escaped, so that it cannot control
// the terminal.
func entryLine(e wire.ChainEntry) string {
	when := e.Time
	if t, err := time.Parse(time.RFC3339, e.Time); err == nil {
		when = t.Local().Format("2006-01-02 15:04:05.000")
	}
	who := strings.TrimSpace(e.Jail + " " + e.Agent)
	if who == "" {
		who = "-"
	}
	return fmt.Sprintf("%6d %s %-18s %s  %s", e.Seq, when, e.Kind, text.Visible(who), text.Visible(bodyText(e)))
}

// bodyText formats an entry's body, the most informative fields first.
func bodyText(e wire.ChainEntry) string {
	var b map[string]any
	if json.Unmarshal(e.Body, &b) != nil {
		return string(e.Body)
	}
	word := func(k string) string {
		switch v := b[k].(type) {
		case string:
			return v
		case float64:
			return strconv.FormatFloat(v, 'f', -1, 64)
		}
		return ""
	}
	switch e.Kind {
	case "decision":
		return fmt.Sprintf("%s: %s [%s]", word("action"), word("resource"), word("tag"))
	case "egress":
		s := strings.TrimSpace(strings.Join([]string{word("kind"), word("method"), word("host") + ":" + word("port") + word("path"), word("status")}, " "))
		if b["allowed"] != true {
			s += ": refused, " + word("detail")
		}
		return s
	}
	return string(e.Body)
}

func entryNumber(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, usagef("%q is not an entry number", s)
	}
	return n, nil
}

func (c *command) auditShow() *cobra.Command {
	return &cobra.Command{
		Use: "show N", Short: "Show an entry and its causes", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			seq, err := entryNumber(args[0])
			if err != nil {
				return err
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			causes, err := cl.ChainCauses(cmd.Context(), seq)
			if err == nil && len(causes) == 0 {
				err = fault.Newf(fault.NotFound, "", "", "no entry %d", seq)
			}
			if err != nil {
				return err
			}
			return c.print(causes, func(w io.Writer) {
				for i, e := range causes {
					fmt.Fprintln(w, strings.Repeat("  ", i)+entryLine(e))
				}
				e := causes[len(causes)-1]
				fmt.Fprintf(w, "body %s\nprev %s\nhash %s\n", text.Visible(string(e.Body)), e.Prev, e.Hash)
			})
		},
	}
}

func (c *command) auditVerify() *cobra.Command {
	var export, key, earlier string
	var recent, offline, fleet bool
	var db string
	cmd := &cobra.Command{
		Use: "verify", Short: "Verify the audit log, or an export of it", Args: cobra.NoArgs,
		Long: `Verify the audit log: the hash of each entry, the link to the previous entry, that
no entry is missing, and that the signed checkpoints belong to this log. On failure
the first invalid entry is printed, and the exit code is 1.

With --export, an export is verified without a daemon. Give the public key with
--key (text or file): the key in the export proves only that the export was not
changed after it was signed. With --offline, the database in the data directory is
verified without the daemon; run the command as the daemon's user.

With --checkpoint, which takes an earlier checkpoint or the head file of the
configuration (audit.head_file), the command also verifies that no entry under that
checkpoint was changed or removed. Without it, a log that was rolled back to an
earlier state passes the verification.

With --fleet, the logs of all nodes are verified, and compared with what up to eight
other nodes have seen of each. A log that was changed, rolled back or lost is reported
with its node and the number of missing entries.`,
		Example: `  glasshouse audit verify
  glasshouse audit verify --checkpoint /var/log/glasshouse-heads
  glasshouse audit verify --offline --data /var/lib/glasshouse
  glasshouse audit verify --export chain.jsonl --key chain.pub
  glasshouse audit verify --fleet`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if fleet {
				return c.verifyFleet(cmd.Context())
			}
			verify := func(ctx context.Context) (wire.ChainReport, error) {
				return c.verify(ctx, export, key, earlier, recent)
			}
			if offline {
				if export != "" || recent {
					return usagef("--offline cannot be combined with --export or --recent")
				}
				verify = func(ctx context.Context) (wire.ChainReport, error) { return c.verifyOffline(ctx, db, key, earlier) }
			}
			r, err := verify(cmd.Context())
			if err != nil {
				return err
			}
			err = c.print(r, func(w io.Writer) {
				if r.Bad != nil {
					fmt.Fprintf(w, "BAD: %s\n", problemText(*r.Bad))
				} else {
					fmt.Fprintln(w, "the audit log is intact")
				}
				fmt.Fprintf(w, "%d entries verified, %d checkpoints verified, the last one covers %d\n", r.Entries, r.Checkpoints, r.Signed)
				if !r.KeyGiven {
					fmt.Fprintln(w, "the key was not given with --key but read from the verified data")
				}
			})
			if err == nil && r.Bad != nil {
				err = exitCode(exitError)
			}
			return err
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&export, "export", "", "file written by glasshouse audit export")
	fs.StringVar(&key, "key", "", "public key (text or file)")
	fs.StringVar(&earlier, "checkpoint", "", "file with an earlier checkpoint, or a head file")
	fs.BoolVar(&offline, "offline", false, "verify the data directory without the daemon")
	fs.StringVar(&db, "db", "", "database for --offline (default glasshouse.db in --data)")
	fs.BoolVar(&recent, "recent", false, "only entries since the last verification; not with --export")
	fs.BoolVar(&fleet, "fleet", false, "verify the audit logs of all nodes of the fleet")
	for _, other := range []string{"export", "key", "checkpoint", "offline", "db", "recent"} {
		cmd.MarkFlagsMutuallyExclusive("fleet", other)
	}
	return cmd
}

func problemText(b wire.ChainBad) string {
	switch {
	case b.Seq > 0:
		return fmt.Sprintf("entry %d: %s", b.Seq, text.Visible(b.Reason))
	case b.Line > 0:
		return fmt.Sprintf("line %d: %s", b.Line, text.Visible(b.Reason))
	}
	return text.Visible(b.Reason)
}

func (c *command) verify(ctx context.Context, export, key, earlier string, recent bool) (wire.ChainReport, error) {
	if export == "" {
		if key != "" {
			return wire.ChainReport{}, usagef("--key requires --export or --offline")
		}
		return c.verifyLive(ctx, earlier, recent)
	}
	trust, err := trustAnchors(key, earlier)
	if err != nil {
		return wire.ChainReport{}, err
	}
	f, err := os.Open(export)
	if err != nil {
		return wire.ChainReport{}, err
	}
	defer f.Close()
	r, err := chain.VerifyExport(ctx, f, trust)
	if err != nil {
		return wire.ChainReport{}, err
	}
	return chainReport(r), nil
}

// verifyLive asks the daemon to verify the log. If earlier names a checkpoint file, the daemon
// also proves that the log contains the entries that the checkpoint signs, and verifyLive checks
// this proof.
func (c *command) verifyLive(ctx context.Context, earlier string, recent bool) (wire.ChainReport, error) {
	cl, err := c.client(ctx)
	if err != nil {
		return wire.ChainReport{}, err
	}
	r, err := cl.VerifyChain(ctx, !recent)
	if err != nil || earlier == "" || r.Bad != nil {
		return r, err
	}
	key, err := chain.ParsePublic(r.Key)
	if err != nil {
		return r, err
	}
	seen, err := newestCheckpoint(earlier, key)
	if err != nil {
		return r, err
	}
	reason, err := contradiction(ctx, cl, key, seen)
	if reason != "" {
		r.Bad = &wire.ChainBad{Reason: reason}
	}
	return r, err
}

// contradiction asks a daemon to prove that its log contains a checkpoint, and checks the proof. It
// returns why the log does not, or "".
func contradiction(ctx context.Context, cl *client.Client, key chain.PublicKey, seen string) (string, error) {
	p, err := cl.ChainConsistency(ctx, seen)
	switch {
	case errors.Is(err, fault.Conflict):
		return err.Error(), nil
	case err != nil:
		return "", err
	}
	proof := chain.Consistency{From: seen, To: p.To}
	for _, text := range p.Path {
		var h tlog.Hash
		h, err = tlog.ParseHash(text)
		if err != nil {
			return "", fmt.Errorf("proof from the daemon: %w", err)
		}
		proof.Path = append(proof.Path, h)
	}
	if err := proof.Check(key); err != nil {
		return "proof from the daemon that the log contains the checkpoint: " + err.Error(), nil
	}
	return "", nil
}

// verifyOffline verifies the log in a data directory, without a daemon.
func (c *command) verifyOffline(ctx context.Context, db, key, earlier string) (wire.ChainReport, error) {
	if key == "" {
		key = filepath.Join(c.dataDir(), chain.PublicFile)
	}
	t, err := trustAnchors(key, "")
	if err != nil {
		return wire.ChainReport{}, err
	}
	if earlier != "" {
		t.Seen, err = newestCheckpoint(earlier, t.Key)
		if err != nil {
			return wire.ChainReport{}, err
		}
	}
	if db == "" {
		db = filepath.Join(c.dataDir(), "glasshouse.db")
		if _, err := os.Stat(db); err != nil { // opening it would create it
			return wire.ChainReport{}, fmt.Errorf("find the database of the daemon: %w", err)
		}
	}
	st, err := store.Open(ctx, db)
	if err != nil {
		return wire.ChainReport{}, err
	}
	defer st.Close()
	r, err := chain.VerifyStore(ctx, st.Chain(), t)
	if err != nil {
		return wire.ChainReport{}, err
	}
	return chainReport(r), nil
}

// newestCheckpoint returns the newest checkpoint in a file. The file contains one checkpoint, or is a head
// file.
func newestCheckpoint(name string, key chain.PublicKey) (string, error) {
	if _, err := os.Stat(name); err != nil {
		return "", fmt.Errorf("find the earlier checkpoint: %w", err)
	}
	cp, err := chain.ReadHead(name, key)
	if err != nil || cp.Size > 0 {
		return cp.Note, err
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("read the earlier checkpoint: %w", err)
	}
	if _, err := key.Open(string(b)); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return string(b), nil
}

func chainReport(r chain.Report) wire.ChainReport {
	w := wire.ChainReport{Entries: r.Entries, Checkpoints: r.Checkpoints, Signed: r.Signed, Key: r.Key, KeyGiven: r.KeyGiven}
	if r.Bad != nil {
		w.Bad = &wire.ChainBad{Seq: r.Bad.Seq, Line: r.Bad.Line, Reason: r.Bad.Reason}
	}
	return w
}

// trustAnchors returns the trust anchors to verify an export with: a key, given as text or as a file,
// and a checkpoint, given as a file.
func trustAnchors(key, earlier string) (chain.TrustedInput, error) {
	var t chain.TrustedInput
	if key != "" {
		text := key
		if b, err := os.ReadFile(key); err == nil {
			text = string(b)
		} else if !errors.Is(err, os.ErrNotExist) {
			return t, fmt.Errorf("read the public key: %w", err)
		}
		public, err := chain.ParsePublic(strings.TrimSpace(text))
		if err != nil {
			return t, err
		}
		t.Key = public
	}
	if earlier != "" {
		b, err := os.ReadFile(earlier)
		if err != nil {
			return t, fmt.Errorf("read the earlier checkpoint: %w", err)
		}
		t.Seen = string(b)
	}
	return t, nil
}

func (c *command) auditExport() *cobra.Command {
	var stored string
	cmd := &cobra.Command{
		Use: "export", Short: "Write the audit log, its checkpoints and its public key to standard output", Args: cobra.NoArgs,
		Long: `Write the audit log, its checkpoints and its public key to standard output.

In a fleet with an object store, --stored writes the copy of a node's log that is
there, also if the node is lost. Verify it with glasshouse audit verify --export.`,
		Example: `  glasshouse audit export > chain.jsonl
  glasshouse audit export --stored box2 > chain.jsonl`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			export := cl.ExportChain
			if stored != "" {
				export = func(ctx context.Context) (io.ReadCloser, error) { return cl.ExportStoredLog(ctx, stored) }
			}
			r, err := export(cmd.Context())
			if err != nil {
				return err
			}
			defer r.Close()
			_, err = io.Copy(c.env.Stdout, r)
			if err != nil {
				return fmt.Errorf("copy the export: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&stored, "stored", "", "node: its copy in the object store, also of a node that is lost")
	return cmd
}

func (c *command) auditHead() *cobra.Command {
	return &cobra.Command{
		Use: "head", Short: "Show the public key and the newest checkpoint", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			h, err := cl.ChainHead(cmd.Context())
			if err != nil {
				return err
			}
			return c.print(h, func(w io.Writer) {
				fmt.Fprintf(w, "%d entries\n%s\n\n%s", h.Entries, h.Key, h.Checkpoint)
			})
		},
	}
}

func (c *command) auditProve() *cobra.Command {
	return &cobra.Command{
		Use: "prove N", Short: "Print an inclusion proof for an entry, verifiable with the public key", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			seq, err := entryNumber(args[0])
			if err != nil {
				return err
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			p, err := cl.ChainProof(cmd.Context(), seq)
			if err != nil {
				return err
			}
			enc := json.NewEncoder(c.env.Stdout)
			enc.SetIndent("", "  ")
			return enc.Encode(p)
		},
	}
}
