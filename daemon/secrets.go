package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/fleet/pki"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy/chain"
	"glasshouse/policy/secret"
)

// Secrets configures how secrets are sealed and where else they are stored.
type Secrets struct {
	KeyFile    string   `yaml:"key_file"`   // key for sealing stored values; default {data}/secrets.key, created at the first start
	Passphrase string   `yaml:"passphrase"` // passphrase of the key file: file:PATH, fd:N or env:NAME; "" means that only the file mode protects it
	Env        []string `yaml:"env"`        // environment variables of the daemon that secrets may refer to, as env:NAME
	Dir        string   `yaml:"dir"`        // directory of files that secrets may refer to, as file:PATH
	Vault      Vault    `yaml:"vault"`
}

// Vault configures a HashiCorp Vault server, to whose values secrets may refer, as
// vault:MOUNT/data/PATH#KEY.
type Vault struct {
	Address      string        `yaml:"address"` // https://host:port; "" disables it
	Namespace    string        `yaml:"namespace"`
	CAFile       string        `yaml:"ca_file"`
	TokenFile    string        `yaml:"token_file"`
	RoleID       string        `yaml:"role_id"`
	SecretIDFile string        `yaml:"secret_id_file"`
	AuthPath     string        `yaml:"auth_path"`
	Timeout      time.Duration `yaml:"timeout"`
	CacheTTL     time.Duration `yaml:"keep"` // cache time of values in memory
}

// ownKeyFile returns the key file of a daemon that shares no secrets.
func (c Config) ownKeyFile() string {
	return cmp.Or(c.Secrets.KeyFile, filepath.Join(c.Data, "secrets.key"))
}

// sharedKeyFile returns the key file of the secrets of a fleet.
func (c Config) sharedKeyFile() string {
	return cmp.Or(c.Secrets.KeyFile, fleetKeyFile(c.Data))
}

// fleetKeyFile returns where a node has the key of the secrets of its fleet.
func fleetKeyFile(data string) string { return filepath.Join(FleetDir(data), secretsKey) }

// openSecrets opens the secret store. In a fleet, it moves the secrets of this daemon there.
func (d *Daemon) openSecrets(ctx context.Context) error {
	if err := d.secrets.Open(ctx); err != nil {
		return fmt.Errorf("open the secrets: %w", err)
	}
	if d.Config.Fleet.Listen == "" {
		return nil
	}
	left, err := d.secrets.Move(ctx, d.store.Secrets(), d.Config.ownKeyFile())
	if err != nil {
		return fmt.Errorf("share the secrets with the other daemons: %w", err)
	}
	if len(left) > 0 {
		d.log.Warn("secrets of this daemon are not used, because the fleet has others with their names: store them again under new names", "secrets", strings.Join(left, ", "))
	}
	return nil
}

// newSecrets creates the secret store.
func (d *Daemon) newSecrets() error {
	c := d.Config.Secrets
	conf := secret.Config{
		Store: d.store.Secrets(), Recorder: secretRecorder{d.chain}, KeyFile: d.Config.ownKeyFile(),
		Providers: map[string]secret.Provider{}, Changed: d.refreshSecrets, Log: d.log.With("part", "secret"),
	}
	if d.Config.Fleet.Listen != "" {
		identity, err := pki.Open(FleetDir(d.Config.Data))
		if err != nil {
			return err
		}
		shared := d.work.Secrets()
		conf.Store, conf.KeyFile = shared, d.Config.sharedKeyFile()
		conf.Shared = &secret.Shared{
			Version: shared.Version, MakesKey: identity.Issuer() != nil,
			Has: func(jid id.Jail) bool {
				_, err := d.jails.Get(context.Background(), jid)
				return err == nil
			},
		}
	}
	var err error
	if c.Passphrase != "" {
		if conf.Passphrase, err = secret.ReadPassphrase(c.Passphrase); err != nil {
			return err
		}
	}
	if len(c.Env) > 0 {
		conf.Providers["env"] = secret.Environment{Allow: c.Env}
	}
	if c.Dir != "" {
		conf.Providers["file"] = secret.Files{Dir: c.Dir}
	}
	if c.Vault.Address != "" {
		if conf.Providers["vault"], err = secret.NewVault(secret.VaultConfig(c.Vault)); err != nil {
			return err
		}
	}
	d.secrets = secret.NewManager(conf)
	d.onClose(d.secrets.Close)
	return nil
}

// secretRecorder records the use and changes of secrets in the audit log, by name.
type secretRecorder struct{ c *chain.Chain }

var secretKinds = map[secret.Kind]chain.Kind{
	secret.Stored: chain.SecretStored, secret.Deleted: chain.SecretDeleted, secret.Rotated: chain.SecretStored,
	secret.Granted: chain.SecretGranted, secret.Revoked: chain.SecretRevoked, secret.Expired: chain.SecretRevoked,
	secret.Used: chain.SecretUsed, secret.Refused: chain.SecretRefused,
}

func (r secretRecorder) Record(ctx context.Context, e secret.Event) error {
	body, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode the audit entry of a secret: %w", err)
	}
	_, err = r.c.Append(ctx, chain.Entry{
		Kind: secretKinds[e.Kind], Jail: e.Who.Jail, Session: e.Who.Session, Run: e.Who.Run, Capability: e.Who.Capability, Agent: e.By, Body: body,
	})
	return err
}

// jailSecrets adapts the secret store to the jail manager.
type jailSecrets struct{ k *secret.Manager }

func (s jailSecrets) Granted(ctx context.Context, jid id.Jail) ([]jail.Secret, error) {
	values, err := s.k.Files(ctx, secret.Scope{Jail: jid})
	out := make([]jail.Secret, len(values))
	for i, v := range values {
		out[i] = v
	}
	return out, err
}

func (s jailSecrets) CopyGrantsToBranch(ctx context.Context, from, branch id.Jail) error {
	return s.k.CopyGrantsToBranch(inTurn(ctx), from, branch)
}

func (s jailSecrets) JailDeleted(ctx context.Context, jid id.Jail) error {
	return s.k.JailDeleted(inTurn(ctx), jid)
}

type inTurnKey struct{}

// inTurn marks a context of an operation that holds the jail's lock. Refreshing secrets would
// wait for the same lock.
func inTurn(ctx context.Context) context.Context {
	return context.WithValue(ctx, inTurnKey{}, true)
}

// refreshSecrets updates the secret files of the jails that a scope covers.
func (d *Daemon) refreshSecrets(ctx context.Context, s secret.Scope) error {
	if ctx.Value(inTurnKey{}) != nil {
		return nil // the holder of the lock does it
	}
	ids := []id.Jail{s.Jail}
	if s.Jail == "" {
		all, err := d.jails.List(ctx, jail.ListOptions{})
		if err != nil {
			return fmt.Errorf("list the jails to refresh: %w", err)
		}
		ids = ids[:0]
		for _, j := range all {
			ids = append(ids, j.ID)
		}
	}
	var errs []error
	for _, jid := range ids {
		if err := d.jails.RefreshSecrets(ctx, jid); err != nil && !errors.Is(err, fault.NotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// injected adapts the secret store to the policy engine.
type injected struct{ k *secret.Manager }

func (s injected) Inject(ctx context.Context, jid id.Jail, name, host string) ([]byte, error) {
	v, err := s.k.Resolve(ctx, secret.Scope{Jail: jid}, name, secret.Use{Delivery: secret.Inject, Host: host})
	if err != nil {
		return nil, fmt.Errorf("for %s: %w", host, err)
	}
	return v.Bytes(), nil
}

func (s injected) InjectOwned(ctx context.Context, jid id.Jail, owner, name, host string) ([]byte, error) {
	v, err := s.k.ResolveOwned(ctx, secret.Scope{Jail: jid}, owner, name, host)
	if err != nil {
		return nil, fmt.Errorf("for %s: %w", host, err)
	}
	return v.Bytes(), nil
}
