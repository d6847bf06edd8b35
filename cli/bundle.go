package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"glasshouse/capability/bundle"
	"glasshouse/daemon"
	"glasshouse/fault"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func (c *command) bundle() *cobra.Command {
	cmd := &cobra.Command{
		Use: "bundle", Short: "Create, sign and verify bundles of skills and capabilities", Args: cobra.NoArgs,
		Long: `A bundle is a directory with a skill, manifests of capabilities and their code, or a
zip or tar.gz archive of such a directory. The publisher signs the bundle. A user
installs it after trusting the publisher and approving its permissions. The format is
in docs/how-to/bundles.md.`,
	}
	cmd.AddCommand(c.bundleKeygen(), c.bundleSign(), c.bundleVerify(),
		c.bundleInstall(), c.bundleList(), c.bundleRemove(), c.bundleTrust(), c.bundlePublishers(), c.bundleRotate(), c.bundleDistrust())
	return cmd
}

func (c *command) bundleKeygen() *cobra.Command {
	var out, file string
	var seal bool
	cmd := &cobra.Command{
		Use: "keygen", Short: "Generate a key pair for signing bundles", Args: cobra.NoArgs,
		Long: `Generate a key pair for signing bundles and markets, and print the public key. The
files NAME.key and NAME.pub have the format of minisign and are interchangeable with
its keys. With --seal, the secret key is encrypted with a password.`,
		Example: `  glasshouse bundle keygen --out acme --seal`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := bundle.GenerateKey()
			if err != nil {
				return err
			}
			var password []byte
			if seal || file != "" {
				password, err = c.newPassword(file)
				if err != nil {
					return err
				}
			}
			secret, err := k.File(password)
			if err != nil {
				return err
			}
			if err := writeNew(out+".key", secret, 0o600); err != nil {
				return err
			}
			if err := writeNew(out+".pub", k.Public().File(), 0o644); err != nil {
				return errors.Join(err, os.Remove(out+".key"))
			}
			made := struct {
				ID     string `json:"id"`
				Public string `json:"public"`
				Key    string `json:"key_file"`
				Pub    string `json:"public_file"`
			}{k.Public().ID(), k.Public().String(), out + ".key", out + ".pub"}
			return c.print(made, func(w io.Writer) {
				fmt.Fprintf(w, "key %s: secret key in %s (keep it private), public key in %s\n%s\n", made.ID, made.Key, made.Pub, made.Public)
			})
		},
	}
	cmd.Flags().StringVar(&out, "out", "bundle", "base name of the files NAME.key and NAME.pub")
	cmd.Flags().BoolVar(&seal, "seal", false, "encrypt the secret key with a password from a prompt")
	cmd.Flags().StringVar(&file, "password-file", "", "encrypt it with the password in this file")
	return cmd
}

// writeNew creates a file. It fails if the file exists.
func writeNew(name string, data []byte, mode os.FileMode) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Close(), os.Remove(name))
	}
	return errors.Join(f.Sync(), f.Close())
}

// newPassword reads a new password. At a terminal it asks for it twice.
func (c *command) newPassword(file string) ([]byte, error) {
	password, typed, err := c.readPassword("password for the new key", file)
	if err != nil || len(password) == 0 {
		return nil, errors.Join(err, emptyPassword(password))
	}
	if typed {
		again, _, err := c.readPassword("repeat the password", file)
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(password, again) {
			return nil, errors.New("the two passwords differ")
		}
	}
	return password, nil
}

func emptyPassword(password []byte) error {
	if len(password) == 0 {
		return usagef("an empty password does not protect the key")
	}
	return nil
}

// readPassword reads a password from a file, a terminal, or a line of standard input.
func (c *command) readPassword(prompt, file string) (password []byte, typed bool, err error) {
	if file != "" {
		password, err = os.ReadFile(file)
		return bytes.TrimRight(password, "\r\n"), false, err
	}
	if in, ok := c.env.Stdin.(*os.File); ok && term.IsTerminal(int(in.Fd())) {
		fmt.Fprintf(c.env.Stderr, "%s: ", prompt)
		password, err = term.ReadPassword(int(in.Fd()))
		fmt.Fprintln(c.env.Stderr)
		return password, true, err
	}
	line, err := bufio.NewReader(io.LimitReader(c.env.Stdin, 4<<10)).ReadBytes('\n')
	if err == io.EOF {
		err = nil
	}
	return bytes.TrimRight(line, "\r\n"), false, err
}

// secretKey reads a signing key.
func (c *command) secretKey(file, passwordFile string) (*bundle.SecretKey, error) {
	st, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("find the secret key: %w", err)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, &fault.Error{
			Op: "bundle", On: file, Kind: fault.Denied, Err: fmt.Errorf("other users can read this key (mode %04o)", st.Mode().Perm()),
			Remedy: "if no other user has read it, chmod 600 " + file,
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the secret key: %w", err)
	}
	return bundle.ParseSecretKey(string(text), func() ([]byte, error) {
		password, _, err := c.readPassword("password of "+file, passwordFile)
		return password, err
	})
}

func (c *command) bundleSign() *cobra.Command {
	var key, password, out string
	var good time.Duration
	cmd := &cobra.Command{
		Use: "sign DIR", Short: "Sign and pack a bundle", Args: cobra.ExactArgs(1),
		Long: `Sign all files of the bundle in a directory, and write signature.json there. With -o,
also pack the bundle. The command rejects bundles that an installation would reject:
links, invalid names, and capabilities that need more than metadata.json declares.`,
		Example: `  glasshouse bundle sign local-places --key acme.key -o local-places-1.2.0.tar.gz`,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := c.secretKey(key, password)
			if err != nil {
				return err
			}
			var expires time.Time
			if good > 0 {
				expires = time.Now().Add(good)
			}
			b, err := bundle.Sign(args[0], k, expires)
			if err != nil {
				return err
			}
			if out != "" {
				if err := b.Pack(out); err != nil {
					return err
				}
			}
			return c.print(signedBundle(b), func(w io.Writer) { fmt.Fprint(w, signedText(b)) })
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&key, "key", "bundle.key", "secret key file")
	fs.StringVar(&password, "password-file", "", "file with the key's password (default: from a prompt)")
	fs.StringVarP(&out, "output", "o", "", "archive to write, .tar.gz or .zip")
	durationVar(fs, &good, "expires", 0, "validity, such as 365d (default: unlimited)")
	return cmd
}

// verified is a verified bundle, as JSON.
type verified struct {
	bundle.Metadata
	Digest string `json:"digest"`
	Key    string `json:"key"`
	KeyID  string `json:"key_id"`
	Signed string `json:"signed"`
	Until  string `json:"until,omitempty"`
	Files  int    `json:"files"`
}

func signedBundle(b *bundle.Bundle) verified {
	v := verified{
		Metadata: b.Metadata, Digest: b.Digest(), Key: b.Signature.Key.String(), KeyID: b.Signature.Key.ID(),
		Signed: b.Signature.Signed, Files: len(b.Signature.Files),
	}
	if at := b.Expires(); !at.IsZero() {
		v.Until = at.UTC().Format(time.RFC3339)
	}
	return v
}

func signedText(b *bundle.Bundle) string {
	v := signedBundle(b)
	s := fmt.Sprintf("%s %s by %s, %s, %d files\nsigned by key %s at %s", v.Name, v.Version, v.Publisher, v.Tier, v.Files, v.KeyID, v.Signed)
	if v.Until != "" {
		s += ", until " + v.Until
	}
	return s + "\ndigest " + v.Digest + "\n"
}

func (c *command) bundleVerify() *cobra.Command {
	var keys []string
	cmd := &cobra.Command{
		Use: "verify FILE|DIR", Short: "Verify a bundle without installing it", Args: cobra.ExactArgs(1),
		Long: `Verify a bundle: that it contains exactly the signed files, that its capabilities need
no more than it declares, and that the signer is trusted by the trust store of the
data directory or by --key. On a node of a fleet, --key is required. No file is
written. If the bundle is rejected, the exit code is 1, and the reason is one of those in
docs/how-to/bundles.md.`,
		Example: `  glasshouse bundle verify local-places-1.2.0.tar.gz --key acme.pub`,
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := c.verifyBundle(args[0], keys)
			if reason := bundle.ReasonOf(err); reason != "" && c.json {
				refused := map[string]string{"refused": string(reason), "detail": err.Error(), "remedy": fault.RemedyOf(err)}
				return errors.Join(c.print(refused, nil), exitCode(exitError))
			}
			if err != nil {
				return err
			}
			return c.print(signedBundle(b), func(w io.Writer) { fmt.Fprint(w, signedText(b)) })
		},
	}
	cmd.Flags().StringArrayVar(&keys, "key", nil, "trust only this public key (text or file); may be repeated")
	return cmd
}

func (c *command) verifyBundle(path string, keys []string) (*bundle.Bundle, error) {
	b, err := bundle.Open(path)
	if err != nil {
		return nil, err
	}
	if len(keys) == 0 && daemon.InFleet(c.dataDir()) {
		return nil, fault.Cannot("cli.verifyBundle", "the publishers that a fleet trusts are in its database, which this command does not read",
			"use --key with the key of the publisher, which glasshouse bundle publishers shows")
	}
	if len(keys) == 0 {
		trust, err := bundle.OpenTrust(filepath.Join(c.dataDir(), bundle.TrustFile))
		if err != nil {
			return nil, err
		}
		return b, errors.Join(trust.Check(b), b.CheckClaims())
	}
	var public []bundle.PublicKey
	for _, k := range keys {
		p, err := publicKey(k)
		if err != nil {
			return nil, err
		}
		public = append(public, p)
	}
	return b, errors.Join(b.CheckKey(public...), b.CheckClaims())
}

// publicKey parses a public key, given as text or as a file.
func publicKey(given string) (bundle.PublicKey, error) {
	if text, err := os.ReadFile(given); err == nil {
		return bundle.ParsePublicKey(string(text))
	} else if !errors.Is(err, os.ErrNotExist) {
		return bundle.PublicKey{}, fmt.Errorf("read the public key: %w", err)
	}
	p, err := bundle.ParsePublicKey(strings.TrimSpace(given))
	if err != nil {
		return p, fmt.Errorf("%.100q is not a file: %w", given, err)
	}
	return p, nil
}
