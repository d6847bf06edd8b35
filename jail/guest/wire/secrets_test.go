package wire

import (
	"bytes"
	"reflect"
	"testing"
)

func TestSecretsAreSealed(t *testing.T) {
	key, err := NewSecretKey()
	if err != nil {
		t.Fatal(err)
	}
	public := key.PublicKey().Bytes()
	if len(public) != SecretKeySize {
		t.Errorf("a key has %d bytes, want %d", len(public), SecretKeySize)
	}
	want := []Secret{{Name: "KEY", Data: []byte("canary"), UID: 1, GID: 2}, {Name: "KEPT"}}
	sealed, err := SealSecrets(public, want)
	if err != nil || bytes.Contains(sealed, []byte("KEY")) || bytes.Contains(sealed, []byte("Y2FuYXJ5")) {
		t.Fatalf("SealSecrets = %q, %v; want no readable text", sealed, err)
	}
	if got, err := OpenSecrets(key, sealed); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("OpenSecrets = %v, %v; want %v", got, err, want)
	}
	other, err := NewSecretKey()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := OpenSecrets(other, sealed); err == nil {
		t.Errorf("OpenSecrets with another key = %v, want an error", got)
	}
	for n := range sealed {
		damaged := bytes.Clone(sealed)
		damaged[n] ^= 1
		if got, err := OpenSecrets(key, damaged); err == nil {
			t.Errorf("OpenSecrets with byte %d changed = %v, want an error", n, got)
		}
	}
	for _, public := range [][]byte{nil, make([]byte, 5), make([]byte, SecretKeySize), bytes.Repeat([]byte{255}, 1000)} {
		if sealed, err := SealSecrets(public, want); err == nil {
			t.Errorf("SealSecrets for the key %x = %x, want an error", public, sealed)
		}
	}
}
