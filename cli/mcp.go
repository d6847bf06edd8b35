package cli

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/capability/mcp"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

func (c *command) mcp() *cobra.Command {
	var listen string
	var noJails, ask bool
	cmd := &cobra.Command{
		Use: "mcp", Short: "Serve capabilities and jails over the Model Context Protocol", Args: cobra.NoArgs,
		Long: `Serve capabilities and jails as tools of the Model Context Protocol (MCP), and jails,
events, snapshots and skills as resources. Skills are also prompts. The transport is
standard input and output or, with --listen, streamable HTTP for clients that have the
printed token. The daemon evaluates the policy for every call and records it. With
--ask, a client that supports elicitation asks its user to approve pending requests of
its calls. Use --ask only with clients that show these forms to a person.`,
		Example: `  glasshouse mcp
  glasshouse mcp --listen 127.0.0.1:8090`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			var jails mcp.Jails
			if !noJails {
				jails = mcpJails{cl}
			}
			s := mcp.NewServer(version, mcpCapabilities{cl, ask}, jails)
			if !noJails {
				s.OfferSource(mcpSource{cl})
			}
			defer s.Close()
			if listen != "" {
				return c.serveMCP(cmd.Context(), s, listen)
			}
			in, ok := c.env.Stdin.(io.ReadCloser)
			if !ok {
				in = io.NopCloser(c.env.Stdin)
			}
			return s.Serve(cmd.Context(), in, keptOpen{c.env.Stdout})
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "serve streamable HTTP on this loopback address")
	cmd.Flags().BoolVar(&noJails, "no-jails", false, "serve capabilities only")
	cmd.Flags().BoolVar(&ask, "ask", false, "request approvals of calls from the client's user")
	cmd.AddCommand(c.mcpImport())
	return cmd
}

func (c *command) mcpImport() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "import FILE", Short: "Import the tools of an MCP server as capabilities", Args: cobra.ExactArgs(1),
		Long: `Start an MCP server in a jail, as described by a manifest with :stdio :mcp, request its
list of tools, and print a manifest for each tool. Nothing is registered. Review the
output, save it to a file, and register the file.`,
		Example: `  glasshouse mcp import files.rtfs > files-tools.rtfs
  glasshouse capability register files-tools.rtfs --dir .`,
		RunE: func(cmd *cobra.Command, args []string) error {
			manifest, at, err := manifestIn(args[0], dir)
			if err != nil {
				return err
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			im, err := cl.ImportServer(cmd.Context(), wire.ImportServer{Manifest: manifest, File: filepath.Base(args[0]), Dir: at})
			if err != nil {
				return err
			}
			for _, l := range im.Lost {
				fmt.Fprintf(c.env.Stderr, "not in any manifest: %s\n", text.Visible(l))
			}
			for _, r := range im.Refused {
				fmt.Fprintf(c.env.Stderr, "no capability: %s\n", text.Visible(r))
			}
			return c.print(im, func(w io.Writer) {
				for _, m := range im.Manifests {
					fmt.Fprintln(w, text.ForTerminal(strings.TrimSpace(m))+"\n")
				}
			})
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "base directory of paths in the manifest (default: its own)")
	return cmd
}

// keptOpen is standard output, which Close leaves open.
type keptOpen struct{ io.Writer }

func (keptOpen) Close() error { return nil }

// serveMCP serves HTTP to clients that have the token. Requests act as this user.
func (c *command) serveMCP(ctx context.Context, s *mcp.Server, address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("open the listener for MCP clients: %w", err)
	}
	if a, ok := l.Addr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
		return errors.Join(usagef("--listen %s is not an address of the loopback: put a TLS reverse proxy in front of it", address), l.Close())
	}
	token := rand.Text()
	fmt.Fprintf(c.env.Stdout, "url: http://%s/\nheader: Authorization: Bearer %s\n", l.Addr(), token)
	handler := s.Handler()
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || subtle.ConstantTimeCompare([]byte(given), []byte(token)) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "use the token that was printed at startup", http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	})}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve MCP clients: %w", err)
	}
	return nil
}

// mcpCapabilities are the capabilities that the daemon lets this user call.
type mcpCapabilities struct {
	*client.Client
	ask bool // ask the client's user about approvals
}

func (m mcpCapabilities) List(ctx context.Context) ([]mcp.Tool, error) {
	all, err := m.Capabilities(ctx)
	if err != nil {
		return nil, err
	}
	var tools []mcp.Tool
	seen := map[string]bool{}
	for _, v := range all { // the newest version of each comes first
		if v.State != "approved" || seen[v.ID] {
			continue
		}
		seen[v.ID] = true
		full, err := m.Capability(ctx, v.ID, v.Version)
		if err != nil {
			return nil, err
		}
		tools = append(tools, mcp.Tool{ID: v.ID, Description: v.Description, Input: full.InputSchema, Output: full.OutputSchema, Effects: v.Effects})
	}
	return tools, nil
}

func (m mcpCapabilities) Call(ctx context.Context, cid string, input json.RawMessage) (json.RawMessage, error) {
	if peer := mcp.PeerOf(ctx); m.ask && peer != nil && peer.CanAsk() {
		others, err := m.pendingCalls(ctx, cid)
		if err != nil {
			return nil, fmt.Errorf("list the approvals that are pending before the call: %w", err)
		}
		asking, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { m.askApprovals(asking, peer, cid, others) })
		defer wg.Wait()
		defer stop()
	}
	out, err := m.Client.Call(ctx, cid, wire.Call{Input: input})
	if err != nil {
		return nil, err
	}
	if e := out.Error; e != nil {
		// An error without a kind would be an internal error to the client.
		return nil, &fault.Error{Kind: fault.Kind(e.Kind), Err: errors.New(e.Reason), Remedy: e.Remedy}
	}
	return out.Output, nil
}

// mcpJails are the daemon's jails.
type mcpJails struct{ *client.Client }

func mcpJail(j wire.Jail) mcp.Jail {
	return mcp.Jail{ID: string(j.ID), Name: j.Name, State: j.State, Image: j.Rootfs.OCI}
}

func (m mcpJails) Create(ctx context.Context, n mcp.NewJail) (mcp.Jail, error) {
	r := wire.CreateJail{
		Name: n.Name, Env: n.Env, Network: n.Network, Start: true,
		Rootfs: wire.Rootfs{OCI: n.Image}, Limits: wire.Limits{MemoryMB: n.MemoryMB, DiskMB: n.DiskMB},
	}
	if len(n.Hosts) > 0 {
		r.Egress = &wire.Egress{}
		for _, h := range n.Hosts {
			r.Egress.Allow = append(r.Egress.Allow, wire.EgressRule{Host: h})
		}
	}
	j, err := m.CreateJail(ctx, r)
	return mcpJail(j), err
}

func (m mcpJails) List(ctx context.Context) ([]mcp.Jail, error) {
	var all []mcp.Jail
	for j, err := range m.Jails(ctx, client.JailFilter{}) {
		if err != nil {
			return nil, err
		}
		all = append(all, mcpJail(j))
	}
	return all, nil
}

func (m mcpJails) Exec(ctx context.Context, r mcp.Command) (mcp.Ended, error) {
	x, err := m.Client.Exec(ctx, id.Jail(r.Jail), wire.ExecRequest{Argv: r.Argv, Cmd: r.Cmd, Env: r.Env, Cwd: r.Cwd, Stdin: r.Stdin, TimeoutMS: r.TimeoutMS})
	if err != nil {
		return mcp.Ended{}, err
	}
	e := mcp.Ended{Signal: x.Signal, TimedOut: x.TimedOut, Stdout: x.Stdout, Stderr: x.Stderr, Truncated: x.Truncated}
	if x.ExitCode != nil {
		e.ExitCode = *x.ExitCode
	}
	if x.Encoding == "base64" {
		e.Stdout, e.Stderr = decodeOutput(x.Stdout), decodeOutput(x.Stderr)
	}
	return e, nil
}

// decodeOutput decodes base64 output. MCP text is UTF-8, so invalid bytes are replaced.
func decodeOutput(s string) string {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return s
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

func (m mcpJails) Snapshot(ctx context.Context, jail, name string) (mcp.Snapshot, error) {
	s, err := m.TakeSnapshot(ctx, id.Jail(jail), wire.TakeSnapshot{Name: name})
	return mcp.Snapshot{ID: string(s.ID), Jail: string(s.Jail), Name: s.Name, Memory: s.Memory}, err
}

func (m mcpJails) Branch(ctx context.Context, from string, count int) ([]mcp.Jail, error) {
	var made wire.Branches
	var err error
	if r := (wire.Branch{Count: max(count, 1)}); strings.HasPrefix(from, "s-") {
		made, err = m.BranchSnapshot(ctx, id.Snapshot(from), r)
	} else {
		made, err = m.BranchJail(ctx, id.Jail(from), r)
	}
	var all []mcp.Jail
	for _, j := range made.Jails {
		all = append(all, mcpJail(j))
	}
	return all, err
}

func (m mcpJails) ReadFile(ctx context.Context, jail, path string, offset, limit int64) ([]byte, int64, error) {
	f, err := m.Stat(ctx, id.Jail(jail), path)
	if err != nil {
		return nil, 0, err
	}
	r, err := m.Client.ReadFile(ctx, id.Jail(jail), path, offset, limit)
	if err != nil {
		return nil, 0, err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	return data, f.Size, err
}

func (m mcpJails) WriteFile(ctx context.Context, jail, path string, data []byte) error {
	_, err := m.Client.WriteFile(ctx, id.Jail(jail), path, strings.NewReader(string(data)), client.WriteOptions{Parents: true, Mode: 0o644})
	return err
}

func (m mcpJails) Delete(ctx context.Context, jail string) error {
	return m.DeleteJail(ctx, id.Jail(jail))
}
