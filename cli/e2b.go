package cli

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"glasshouse/api/wire"
	"glasshouse/internal/atomicfile"

	"github.com/spf13/cobra"
)

func (c *command) e2b() *cobra.Command {
	var ask wire.CreateE2BKey
	cmd := &cobra.Command{
		Use: "e2b", Short: "Print the environment variables that point E2B clients to this daemon", Args: cobra.NoArgs,
		Long: `Create an API key and print shell lines that set the environment variables of E2B
clients. A project that uses an E2B SDK then creates its sandboxes on this daemon.

Each key can access only its own sandboxes, and nothing else of the daemon. Glasshouse
token ls lists keys, glasshouse token rm revokes one. The daemon must serve E2B
clients: set e2b.listen in its configuration.

If the daemon uses TLS with its own certificate authority (serve --e2b-tls), the CA
certificate is saved below ~/.local/state, and the printed lines make Node and Python
trust it. For other programs, pass the file in NODE_EXTRA_CA_CERTS, such as with curl
--cacert.`,
		Example: `  eval "$(glasshouse e2b)"                      for this shell
  glasshouse e2b --name ci >>.env               for a project`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.dial() // a daemon that a command starts for itself serves nobody else
			if err != nil {
				return err
			}
			k, err := cl.CreateE2BKey(cmd.Context(), ask)
			if err != nil {
				return err
			}
			lines := []string{"E2B_API_KEY=" + k.Key, "E2B_API_URL=" + k.URL, "E2B_SANDBOX_URL=" + k.URL, "E2B_VOLUME_API_URL=" + k.URL}
			if strings.HasPrefix(k.URL, "https://") { // SDKs before 2.0 know no other way
				lines = append(lines, "E2B_DOMAIN="+k.Domain)
			}
			if k.CA != "" {
				own, all, err := saveAuthority(stateDir(c.env.Getenv), k.CA)
				if err != nil {
					return fmt.Errorf("save the certificate that clients of E2B have to trust: %w", err)
				}
				lines = append(lines, "NODE_EXTRA_CA_CERTS="+own, "SSL_CERT_FILE="+all)
			}
			return c.print(k, func(w io.Writer) {
				for _, line := range lines {
					name, value, _ := strings.Cut(line, "=")
					fmt.Fprintf(w, "export %s=%s\n", name, shellWord(value))
				}
			})
		},
	}
	cmd.Flags().StringVar(&ask.Name, "name", "", "owner of the API key (default: you)")
	return cmd
}

// shellWord returns text as one word of a POSIX shell, in quotes if it needs them: the
// lines are evaluated, and a path or a daemon's answer may contain anything.
func shellWord(text string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./:@%+=,", r)
	}
	if text != "" && strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// systemRoots are where systems keep the certificates that programs trust: Debian and
// Alpine, Fedora, macOS.
var systemRoots = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"}

// saveAuthority writes a certificate to a file of its own, which Node adds to those that
// it trusts, and to one with the system's, which Python trusts in place of its own.
func saveAuthority(dir, ca string) (own, all string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", err
	}
	sum := sha256.Sum256([]byte(ca)) // daemons have authorities of their own
	own = filepath.Join(dir, fmt.Sprintf("e2b-%x.pem", sum[:4]))
	all = filepath.Join(dir, fmt.Sprintf("e2b-%x-and-system.pem", sum[:4]))
	text := []byte(ca)
	for _, name := range systemRoots {
		if roots, err := os.ReadFile(name); err == nil {
			text = append(append(roots, '\n'), text...)
			break
		}
	}
	return own, all, errors.Join(atomicfile.Write(own, []byte(ca), 0o644), atomicfile.Write(all, text, 0o644))
}
