package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/chain"

	"github.com/spf13/cobra"
)

func (c *command) audit() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit", Short: "The causal chain: what was decided and done, and the proof of it", Args: cobra.NoArgs,
		Long: `The causal chain records everything that was decided and done, each entry with the
hash of the one before, under signed checkpoints. Whoever has the public key can
verify an export of it without trusting this host.`,
	}
	cmd.AddCommand(c.auditList(), c.auditShow(), c.auditVerify(), c.auditExport(), c.auditHead(), c.auditProve())
	return cmd
}

func (c *command) auditList() *cobra.Command {
	var jail, session, run, capability, kind, since string
	var under int64
	var newest bool
	cmd := &cobra.Command{
		Use: "ls", Short: "List entries, oldest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			q := url.Values{}
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
			if since != "" {
				d, err := time.ParseDuration(since)
				if err != nil {
					return usagef("--since %q is not a time such as 10m", since)
				}
				q.Set("from", time.Now().Add(-d).UTC().Format(time.RFC3339Nano))
			}
			if newest {
				q.Set("newest", "true")
			}
			return c.listChain(cmd.Context(), cl, q)
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&newest, "newest", false, "the newest first")
	fs.StringVar(&jail, "jail", "", "only of this jail")
	fs.StringVar(&session, "session", "", "only of this session")
	fs.StringVar(&run, "run", "", "only of this run")
	fs.StringVar(&capability, "capability", "", "only of this capability")
	fs.StringVar(&kind, "kind", "", "only of these kinds: decision, egress, …, with commas between")
	fs.StringVar(&since, "since", "", "only of the last, such as 10m or 24h")
	fs.Int64Var(&under, "under", 0, "only what this entry caused, or what that caused, and so on")
	return cmd
}

// listChain prints entries of the chain, as they come.
func (c *command) listChain(ctx context.Context, cl *client.Client, q url.Values) error {
	if c.json {
		all, err := client.Collect(cl.Chain(ctx, q))
		if err != nil {
			return err
		}
		return c.print(append([]wire.ChainEntry{}, all...), nil)
	}
	for e, err := range cl.Chain(ctx, q) {
		if err != nil {
			return err
		}
		fmt.Fprintln(c.env.Stdout, entryLine(e))
	}
	return nil
}

// entryLine is an entry for a person, in which nothing that a jail said can drive
// a terminal.
func entryLine(e wire.ChainEntry) string {
	when := e.Time
	if t, err := time.Parse(time.RFC3339, e.Time); err == nil {
		when = t.Local().Format("2006-01-02 15:04:05.000")
	}
	who := strings.TrimSpace(e.Jail + " " + e.Agent)
	if who == "" {
		who = "-"
	}
	return fmt.Sprintf("%6d %s %-18s %s  %s", e.Seq, when, e.Kind, escape(who), escape(bodyText(e)))
}

// bodyText is what an entry says, the telling words first.
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
		return 0, usagef("%q is not the number of an entry", s)
	}
	return n, nil
}

func (c *command) auditShow() *cobra.Command {
	return &cobra.Command{
		Use: "show N", Short: "Show an entry and what caused it", Args: cobra.ExactArgs(1),
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
			if err != nil {
				return err
			}
			return c.print(causes, func(w io.Writer) {
				for i, e := range causes {
					fmt.Fprintln(w, strings.Repeat("  ", i)+entryLine(e))
				}
				e := causes[len(causes)-1]
				fmt.Fprintf(w, "body %s\nprev %s\nhash %s\n", escape(string(e.Body)), e.Prev, e.Hash)
			})
		},
	}
}

func (c *command) auditVerify() *cobra.Command {
	var export, key, earlier string
	var recent bool
	cmd := &cobra.Command{
		Use: "verify", Short: "Verify the chain, or an export of it", Args: cobra.NoArgs,
		Long: `Verify the chain: that its entries have the hashes they say, that each has that of
the one before, that none is missing, and that the signed checkpoints are of this
very chain. The first bad entry is named, and the exit code is 1.

With --export an export is verified, without any daemon. Give the public key with
--key, as text or in a file: the one in the export only says that it was not
changed since somebody signed it. With --checkpoint, a checkpoint that was seen
earlier, it is also verified that nothing under it was changed or cut off.`,
		Example: `  glasshouse audit verify
  glasshouse audit verify --export chain.jsonl --key chain.pub`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := c.verify(cmd.Context(), export, key, earlier, recent)
			if err != nil {
				return err
			}
			err = c.print(r, func(w io.Writer) {
				if r.Bad != nil {
					fmt.Fprintf(w, "BAD: %s\n", badText(*r.Bad))
				} else {
					fmt.Fprintln(w, "the chain is whole")
				}
				fmt.Fprintf(w, "%d entries are right, %d checkpoints were checked, the last vouches for %d\n", r.Entries, r.Checkpoints, r.Signed)
				if !r.KeyGiven {
					fmt.Fprintln(w, "the key was not given, but found beside what it vouches for")
				}
			})
			if err == nil && r.Bad != nil {
				err = exitCode(exitError)
			}
			return err
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&export, "export", "", "a file that glasshouse audit export wrote")
	fs.StringVar(&key, "key", "", "the public key, as text or a file")
	fs.StringVar(&earlier, "checkpoint", "", "a file with a checkpoint that was seen earlier")
	fs.BoolVar(&recent, "recent", false, "only what was added since it was last found right; without --export")
	return cmd
}

func badText(b wire.ChainBad) string {
	switch {
	case b.Seq > 0:
		return fmt.Sprintf("entry %d: %s", b.Seq, escape(b.Reason))
	case b.Line > 0:
		return fmt.Sprintf("line %d: %s", b.Line, escape(b.Reason))
	}
	return escape(b.Reason)
}

func (c *command) verify(ctx context.Context, export, key, earlier string, recent bool) (wire.ChainReport, error) {
	if export == "" {
		if key != "" || earlier != "" {
			return wire.ChainReport{}, usagef("--key and --checkpoint are for --export")
		}
		cl, err := c.client(ctx)
		if err != nil {
			return wire.ChainReport{}, err
		}
		return cl.VerifyChain(ctx, !recent)
	}
	trust, err := trustOf(key, earlier)
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
	w := wire.ChainReport{Entries: r.Entries, Checkpoints: r.Checkpoints, Signed: r.Signed, Key: r.Key, KeyGiven: r.KeyGiven}
	if r.Bad != nil {
		w.Bad = &wire.ChainBad{Seq: r.Bad.Seq, Line: r.Bad.Line, Reason: r.Bad.Reason}
	}
	return w, nil
}

// trustOf is what an export is verified with: a key, as text or in a file, and a
// checkpoint in a file.
func trustOf(key, earlier string) (chain.Trust, error) {
	var t chain.Trust
	if key != "" {
		text := key
		if b, err := os.ReadFile(key); err == nil {
			text = string(b)
		} else if !errors.Is(err, os.ErrNotExist) {
			return t, err
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
			return t, err
		}
		t.Seen = string(b)
	}
	return t, nil
}

func (c *command) auditExport() *cobra.Command {
	return &cobra.Command{
		Use: "export", Short: "Write the chain, its checkpoints and its key to standard output", Args: cobra.NoArgs,
		Example: `  glasshouse audit export > chain.jsonl`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			r, err := cl.ExportChain(cmd.Context())
			if err != nil {
				return err
			}
			defer r.Close()
			_, err = io.Copy(c.env.Stdout, r)
			return err
		},
	}
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
		Use: "prove N", Short: "Prove that an entry is in the chain, to who has the public key", Args: cobra.ExactArgs(1),
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
