package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"filippo.io/age"

	"glasshouse/fault"
	"glasshouse/fleet/pki"
	"glasshouse/fleet/route"
	"glasshouse/internal/atomicfile"
)

// The keys of a fleet besides those of its authority.
const (
	secretsKey = "secrets.key" // of stored secrets
	runsKey    = "runs.key"    // of personal data in runs
)

// InitFleet creates a fleet, and the certificate of its first node in a data directory. It returns
// the fingerprint of the fleet's authority.
func InitFleet(data string) (authority string, err error) {
	node, err := nodeID(data)
	if err != nil {
		return "", err
	}
	identity, err := pki.Init(FleetDir(data), node, time.Now())
	if err != nil {
		return "", err
	}
	return pki.Fingerprint(identity.Authority()), nil
}

// JoinFleet gets a certificate for the node with a data directory from the node at an address.
func JoinFleet(ctx context.Context, data, addr, token, authority string) error {
	node, err := nodeID(data)
	if err != nil {
		return err
	}
	key, err := route.Join(ctx, FleetDir(data), node, addr, token, authority)
	if err != nil {
		return err
	}
	defer clear(key)
	if err := os.WriteFile(fleetKeyFile(data), key, 0o600); err != nil {
		return fmt.Errorf("store the key of the secrets of the fleet: %w", err)
	}
	return nil
}

// InFleet reports whether a data directory is that of a node of a fleet.
func InFleet(data string) bool { return pki.Vacant(FleetDir(data)) != nil }

// nodeID returns the instance ID of a data directory, which may not have been used before.
func nodeID(data string) (string, error) {
	if err := os.MkdirAll(data, 0o711); err != nil {
		return "", fmt.Errorf("create the data directory: %w", err)
	}
	node, err := readInstanceID(data)
	if err != nil || node != "" {
		return node, err
	}
	return createInstanceID(data)
}

// NewFleetKeys creates the keys of a new fleet, for fleet.keys of its daemons. It returns the
// contents of their files by name, and the fingerprint of the fleet's authority.
func NewFleetKeys() (files map[string][]byte, authority string, err error) {
	a, err := pki.NewAuthority(time.Now())
	if err != nil {
		return nil, "", err
	}
	files, err = a.Files()
	if err != nil {
		return nil, "", err
	}
	for _, name := range []string{secretsKey, runsKey} {
		key, err := age.GenerateX25519Identity()
		if err != nil {
			return nil, "", fmt.Errorf("generate a key: %w", err)
		}
		files[name] = []byte(key.String() + "\n")
	}
	return files, pki.Fingerprint(a.Certificate()), nil
}

// enroll makes this daemon a node of the fleet whose keys are in fleet.keys.
func (d *Daemon) enroll() error {
	from := d.Config.Fleet.Keys
	if from == "" {
		return nil
	}
	a, err := pki.ReadAuthority(from)
	if err != nil {
		return err
	}
	dir := FleetDir(d.Config.Data)
	identity, err := pki.Open(dir)
	member := err == nil
	if !member && !errors.Is(err, fault.NotFound) {
		return err
	}
	if member && !identity.Authority().Equal(a.Certificate()) {
		return &fault.Error{Op: "daemon.enroll", On: from, Kind: fault.Conflict, Err: fmt.Errorf("these are the keys of another fleet than that of this node, %s", pki.Fingerprint(identity.Authority())),
			Remedy: "to move the node to that fleet, remove " + dir + "; secrets of the other fleet cannot be read then"}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the directory of certificates: %w", err)
	}
	for _, name := range []string{secretsKey, runsKey} {
		if err := copyKey(filepath.Join(from, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if member {
		return nil
	}
	node, err := nodeID(d.Config.Data)
	if err != nil {
		return err
	}
	_, err = pki.Enroll(dir, node, a, time.Now())
	return err
}

// copyKey copies a key file unless there is a copy, which may since have been encrypted with a
// passphrase.
func copyKey(from, to string) error {
	if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	key, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("read a key of the fleet: %w", err)
	}
	defer clear(key)
	if err := atomicfile.Durable(to, key, 0o600); err != nil {
		return fmt.Errorf("store a key of the fleet: %w", err)
	}
	return nil
}
