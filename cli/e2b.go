package cli

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"glasshouse/api/wire"
	"glasshouse/internal/atomicfile"
	"glasshouse/internal/text"

	"github.com/spf13/cobra"
)

func (c *command) e2b() *cobra.Command {
	var ask wire.CreateE2BKey
	var limits quotaFlags
	cmd := &cobra.Command{
		Use: "e2b", Short: "Print the environment variables that point E2B clients to this daemon", Args: cobra.NoArgs,
		Long: `Create an API key and print shell lines that set the environment variables of E2B
clients. A project that uses an E2B SDK then creates its sandboxes on this daemon.

By default sandboxes can reach the whole Internet, as with E2B. The key e2b.reach of the
daemon's configuration limits them; standard error says which hosts they can reach.

Each key can access only its own sandboxes, and nothing else of the daemon. Glasshouse
token ls lists keys, glasshouse token quota limits what one may create, glasshouse
token rm revokes one. The daemon must serve E2B clients: set e2b.listen in its
configuration.

If the daemon uses TLS with its own certificate authority (serve --e2b-tls), the CA
certificate is saved below ~/.local/state, and the printed lines make Node and Python
trust it. For other programs, pass the file in NODE_EXTRA_CA_CERTS, such as with curl
--cacert.`,
		Example: `  eval "$(glasshouse e2b)"                      # for this shell
  glasshouse e2b --name ci >>.env               # for a project`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			ask.Quota, err = limits.quota(cmd)
			if err != nil {
				return err
			}
			cl, err := c.dial() // a daemon that the CLI starts serves only this user
			if err != nil {
				return err
			}
			k, err := cl.CreateE2BKey(cmd.Context(), ask)
			if err != nil {
				return err
			}
			lines := []string{"E2B_API_KEY=" + k.Key, "E2B_API_URL=" + k.URL, "E2B_SANDBOX_URL=" + k.URL, "E2B_VOLUME_API_URL=" + k.URL}
			if strings.HasPrefix(k.URL, "https://") { // SDKs before 2.0 need the domain
				lines = append(lines, "E2B_DOMAIN="+k.Domain)
			}
			if k.CA != "" {
				own, all, err := saveAuthority(stateDir(c.env.Getenv), k.CA)
				if err != nil {
					return fmt.Errorf("save the CA certificate for E2B clients: %w", err)
				}
				lines = append(lines, "NODE_EXTRA_CA_CERTS="+own, "SSL_CERT_FILE="+all)
			}
			fmt.Fprintln(c.env.Stderr, "# "+reachText(k.Reach))
			return c.print(k, func(w io.Writer) {
				for _, line := range lines {
					name, value, _ := strings.Cut(line, "=")
					fmt.Fprintf(w, "export %s=%s\n", name, shellWord(value))
				}
			})
		},
	}
	cmd.Flags().StringVar(&ask.Name, "name", "", "owner of the API key (default: you)")
	limits.add(cmd)
	return cmd
}

// reachText says which hosts sandboxes can reach.
func reachText(hosts []string) string {
	switch {
	case len(hosts) == 0:
		return "sandboxes can reach no host: e2b.reach in the daemon's configuration is empty"
	case slices.Contains(hosts, "*"):
		return "sandboxes can reach the whole Internet unless the client forbids it; e2b.reach in the daemon's configuration limits them"
	}
	return "sandboxes can reach only e2b.reach: " + text.Visible(strings.Join(hosts, ", "))
}

// shellWord returns word as one word of a POSIX shell, quoted if necessary. Shells evaluate the
// printed lines, and a path or a response of the daemon may contain any character.
func shellWord(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./:@%+=,", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// systemRoots are the locations of the system's trusted CA certificates: Debian and Alpine,
// Fedora, macOS.
var systemRoots = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"}

// saveAuthority writes a CA certificate to two files. Node adds the first one to its trusted
// certificates (NODE_EXTRA_CA_CERTS). Python uses the second one in place of its own, so it also
// contains the system's certificates.
func saveAuthority(dir, ca string) (own, all string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", fmt.Errorf("create the directory of certificate authorities: %w", err)
	}
	sum := sha256.Sum256([]byte(ca)) // each daemon has its own CA
	own = filepath.Join(dir, fmt.Sprintf("e2b-%x.pem", sum[:4]))
	all = filepath.Join(dir, fmt.Sprintf("e2b-%x-and-system.pem", sum[:4]))
	bundle := []byte(ca)
	for _, name := range systemRoots {
		if roots, err := os.ReadFile(name); err == nil {
			bundle = append(append(roots, '\n'), bundle...)
			break
		}
	}
	return own, all, errors.Join(atomicfile.Write(own, []byte(ca), 0o644), atomicfile.Write(all, bundle, 0o644))
}
