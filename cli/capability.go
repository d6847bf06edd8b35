package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"glasshouse/api/wire"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

func (c *command) capability() *cobra.Command {
	cmd := &cobra.Command{
		Use: "capability", Aliases: []string{"cap"}, Short: "Register and call capabilities (functions with a manifest)", Args: cobra.NoArgs,
		Long: `A capability is a function with a manifest. The manifest declares the input, the
output, the engine and the permissions. The permissions need approval before the first
call, and again when a new version needs more.`,
	}
	cmd.AddCommand(c.capabilityRegister(), c.capabilityList(), c.capabilityShow(), c.capabilityRemove(), c.capabilityRevoke(), c.capabilityTrust())
	return cmd
}

func (c *command) capabilityRegister() *cobra.Command {
	var dir string
	var again bool
	cmd := &cobra.Command{
		Use: "register FILE", Short: "Register the capabilities of a manifest", Args: cobra.ExactArgs(1),
		Long: `Register the capabilities of a manifest. The files that the manifest names, relative
to its own directory, are copied, so that approved code cannot change afterwards.`,
		Example: `  glasshouse capability register places.search.rtfs
  glasshouse approval ls
  glasshouse approve a-…`,
		RunE: func(cmd *cobra.Command, args []string) error {
			manifest, at, err := manifestIn(args[0], dir)
			if err != nil {
				return err
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := cl.Register(cmd.Context(), wire.Register{Manifest: manifest, File: filepath.Base(args[0]), Dir: at, Again: again})
			if err != nil {
				return err
			}
			return c.print(all, func(w io.Writer) {
				for _, v := range all {
					fmt.Fprintf(w, "%s@%s is %s\n", text.Visible(v.ID), text.Visible(v.Version), v.State)
					if v.State != "pending" {
						continue
					}
					for _, n := range v.New {
						fmt.Fprintln(w, "  "+text.Visible(n))
					}
					fmt.Fprintf(w, "  to allow this: glasshouse approve %s\n", v.Approval)
				}
			})
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "base directory of paths in the manifest (default: its own)")
	cmd.Flags().BoolVar(&again, "again", false, "request approval again for a denied or revoked version")
	return cmd
}

// manifestIn reads a manifest. It also returns the directory that the manifest's paths are
// relative to: dir or, if dir is empty, the directory of the file.
func manifestIn(file, dir string) (text, at string, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", "", fmt.Errorf("read the manifest: %w", err)
	}
	if dir == "" {
		dir = filepath.Dir(file)
	}
	at, err = filepath.Abs(dir)
	return string(b), at, err
}

func (c *command) capabilityList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List registered capabilities", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			all, err := cl.Capabilities(cmd.Context())
			if err != nil {
				return err
			}
			return c.print(all, func(w io.Writer) {
				rows := [][]string{{"CAPABILITY", "VERSION", "STATE", "RUNTIME", "EFFECTS", "TIER", "SINCE", "WHAT"}}
				for _, v := range all {
					rows = append(rows, []string{text.Visible(v.ID), text.Visible(v.Version), v.State, v.Runtime, strings.Join(v.Effects, ","), v.Tier, ago(v.Created, time.Now()), text.Visible(v.Description)})
				}
				table(w, rows)
			})
		},
	}
}

// versioned splits id@version.
func versioned(ref string) (cid, version string) {
	cid, version, _ = strings.Cut(ref, "@")
	return cid, version
}

func (c *command) capabilityShow() *cobra.Command {
	return &cobra.Command{
		Use: "show ID[@VERSION]", Short: "Show the permissions and the manifest of a capability", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			cid, version := versioned(args[0])
			v, err := cl.Capability(cmd.Context(), cid, version)
			if err != nil {
				return err
			}
			return c.print(v, func(w io.Writer) {
				table(w, [][]string{
					{"capability", text.Visible(v.ID) + "@" + text.Visible(v.Version)}, {"state", v.State}, {"why", text.Visible(v.Why)},
					{"runtime", v.Runtime}, {"effects", strings.Join(v.Effects, ", ")}, {"hosts", text.Visible(strings.Join(v.Hosts, ", "))},
					{"secrets", text.Visible(strings.Join(v.Secrets, ", "))}, {"tier", v.Tier}, {"each time", strconv.FormatBool(v.PerUse)},
					{"approval", string(v.Approval)}, {"bundle", text.Visible(v.Bundle)}, {"by", text.Visible(v.By)}, {"digest", v.Digest},
				})
				fmt.Fprintln(w)
				for line := range strings.Lines(v.Manifest) {
					fmt.Fprintln(w, text.Visible(strings.TrimSuffix(line, "\n")))
				}
			})
		},
	}
}

func (c *command) capabilityRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm ID[@VERSION]", Short: "Remove a version and its stored files", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			cid, version := versioned(args[0])
			return cl.RemoveCapability(cmd.Context(), cid, version)
		},
	}
}

func (c *command) capabilityRevoke() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "revoke ID[@VERSION]", Short: "Revoke a version, so that it cannot be called", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			cid, version := versioned(args[0])
			_, err = cl.RevokeCapability(cmd.Context(), cid, wire.RevokeCapability{Version: version, Reason: reason})
			return err
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "reason, shown to callers")
	return cmd
}

func (c *command) capabilityTrust() *cobra.Command {
	var no bool
	cmd := &cobra.Command{
		Use: "trust ID[@VERSION] DIGEST", Short: "Trust a version, by its digest, to run outside a sandbox", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			cid, version := versioned(args[0])
			_, err = cl.TrustCapability(cmd.Context(), cid, wire.TrustCapability{Version: version, Digest: args[1], Trust: !no})
			return err
		},
	}
	cmd.Flags().BoolVar(&no, "no", false, "revoke the trust")
	return cmd
}

func (c *command) call() *cobra.Command {
	var call wire.Call
	var jail, file string
	var budget []string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "call ID[@VERSION] [INPUT]", Short: "Call a capability", Args: cobra.RangeArgs(1, 2),
		Long: `Call a capability. The input is JSON, from an argument or a file; - is standard input.
The result is printed; --json prints the complete record of the call.`,
		Example: `  glasshouse call places.search '{"query":"coffee","location":{"lat":51.5,"lng":-0.1}}'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			input, err := c.callInput(args[1:], file)
			if err != nil {
				return err
			}
			call.Input, call.TimeoutMS = input, timeout.Milliseconds()
			call.Budget, err = parseBudget(budget)
			if err != nil {
				return err
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			if jail != "" {
				call.Jail, err = jailNamed(cmd.Context(), cl, jail)
				if err != nil {
					return err
				}
			}
			out, err := cl.Call(cmd.Context(), args[0], call)
			if err != nil {
				return err
			}
			if out.Warning != "" {
				fmt.Fprintf(c.env.Stderr, "glasshouse: warning: %s\n", text.Visible(out.Warning))
			}
			err = c.print(out, func(w io.Writer) {
				if len(out.Output) > 0 { // a call that failed has none
					fmt.Fprintln(w, string(text.JSON(out.Output)))
				}
			})
			if err != nil || out.Error == nil {
				return err
			}
			return fmt.Errorf("%s failed: %s: %s", text.Visible(out.Capability), out.Error.Kind, text.Visible(out.Error.Reason))
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&file, "file", "", "read the input from this file")
	fs.StringVar(&jail, "jail", "", "call on behalf of this jail, under its policy")
	fs.StringVar(&call.Session, "session", "", "session whose files a capability of mode session uses")
	fs.StringVar(&call.Run, "run", "", "run whose budget is charged")
	fs.StringSliceVar(&call.Labels, "label", nil, "data class of the input: public, redacted, pii, secret")
	fs.StringSliceVar(&budget, "budget", nil, "limit DIMENSION=N, such as steps=50; may be repeated")
	durationVar(fs, &timeout, "timeout", 0, "time limit, at most that of the capability")
	return cmd
}

// maxInput is how many bytes of standard input are read as the input of a call.
const maxInput = 1 << 20

// callInput returns the JSON input of a call.
func (c *command) callInput(args []string, file string) (json.RawMessage, error) {
	var text []byte
	var err error
	switch {
	case len(args) == 1 && file != "":
		return nil, usagef("give the input as an argument or in a file, not both")
	case file == "-" || len(args) == 1 && args[0] == "-":
		text, err = io.ReadAll(io.LimitReader(c.env.Stdin, maxInput+1))
		if len(text) > maxInput {
			return nil, fmt.Errorf("the input is longer than %s", size(maxInput))
		}
	case file != "":
		text, err = os.ReadFile(file)
	case len(args) == 1:
		text = []byte(args[0])
	default:
		return nil, nil
	}
	if err == nil && !json.Valid(text) {
		err = usagef("the input is not JSON")
	}
	return text, err
}

func parseBudget(all []string) (map[string]int64, error) {
	amounts := map[string]int64{}
	for _, s := range all {
		name, text, ok := strings.Cut(s, "=")
		if !ok {
			return nil, usagef("--budget %q is not DIMENSION=N", s)
		}
		n, ok := amount(name, text)
		if !ok {
			return nil, usagef("--budget %q is not DIMENSION=N, such as steps=50, cost-micros=$0.50, wall-clock-ms=30m or network-bytes=2GiB", s)
		}
		amounts[name] = n
	}
	return amounts, nil
}

func (c *command) replay() *cobra.Command {
	return &cobra.Command{
		Use: "replay SEQ", Short: "Repeat a recorded call of a pure capability and compare the results", Args: cobra.ExactArgs(1),
		Long: `Repeat a call that is recorded in the audit log, answer its nested calls from the
record, and compare the result. SEQ is the number of the entry that records the end
of the call.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			seq, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil {
				return usagef("%q is not an entry number", args[0])
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			r, err := cl.Replay(cmd.Context(), seq)
			if err != nil {
				return err
			}
			if err := c.print(r, func(w io.Writer) { fmt.Fprintln(w, string(text.JSON(r.Output))) }); err != nil || r.Same {
				return err
			}
			return fmt.Errorf("the output differs from the recorded output")
		},
	}
}
