package wire

import (
	"crypto/ecdh"
	"crypto/hpke"
	"encoding/json"
	"fmt"
)

// A SecretKey is a public key for secrets in an answer, and a seed for it in a request: the random
// numbers of a restored machine are those of all others that were restored from the same state.
type SecretKey struct {
	Seed []byte `json:"seed,omitempty"`
	Key  []byte `json:"key,omitempty"`
}

// SecretKeySize is the size of a SecretKey's Key.
const SecretKeySize = 32

// SealedSecrets are a list of Secret, encrypted for the last SecretKey.
type SealedSecrets struct {
	Data []byte `json:"data"`
}

// A Secret is a file with a secret.
type Secret struct {
	Name string `json:"name"`
	Data []byte `json:"data"` // nil: an existing file of this name is kept
	UID  uint32 `json:"uid"`  // in the jail
	GID  uint32 `json:"gid"`
}

// An Account is a user of the jail, as in jail.Spec, and in an answer its ids.
type Account struct {
	User string `json:"user"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
}

// secretsInfo separates the encryption of secrets from other uses of HPKE (RFC 9180).
var secretsInfo = []byte("glasshouse secrets of a virtual machine")

// SealSecrets encrypts secrets for a public key.
func SealSecrets(public []byte, secrets []Secret) ([]byte, error) {
	key, err := hpke.DHKEM(ecdh.X25519()).NewPublicKey(public)
	if err != nil {
		return nil, fmt.Errorf("the key for secrets: %w", err)
	}
	plain, err := json.Marshal(secrets)
	if err != nil {
		return nil, err
	}
	defer clear(plain)
	return hpke.Seal(key, hpke.HKDFSHA256(), hpke.ChaCha20Poly1305(), secretsInfo, plain)
}

// OpenSecrets decrypts what SealSecrets has returned.
func OpenSecrets(key hpke.PrivateKey, sealed []byte) (secrets []Secret, err error) {
	plain, err := hpke.Open(key, hpke.HKDFSHA256(), hpke.ChaCha20Poly1305(), secretsInfo, sealed)
	if err != nil {
		return nil, fmt.Errorf("decrypt: %w", err)
	}
	defer clear(plain)
	return secrets, json.Unmarshal(plain, &secrets)
}

// NewSecretKey returns a key pair for secrets.
func NewSecretKey() (hpke.PrivateKey, error) { return hpke.DHKEM(ecdh.X25519()).GenerateKey() }
