package bundle_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"glasshouse/capability/bundle"
	"glasshouse/fault"
)

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func password(word string) func() ([]byte, error) {
	return func() ([]byte, error) { return []byte(word), nil }
}

// The files in testdata were made by minisign 0.11.

func TestMinisignKeysAreParsed(t *testing.T) {
	for _, name := range []string{"open", "sealed"} {
		public, err := bundle.ParsePublicKey(read(t, "testdata/"+name+".pub"))
		if err != nil {
			t.Fatal(err)
		}
		secret, err := bundle.ParseSecretKey(read(t, "testdata/"+name+".key"), password("correct horse"))
		if err != nil {
			t.Fatal(err)
		}
		if secret.Public() != public {
			t.Errorf("%s: the public and the secret key do not match", name)
		}
		if want := fmt.Sprintf("untrusted comment: minisign public key %s\n", public.ID()); !strings.HasPrefix(read(t, "testdata/"+name+".pub"), want) {
			t.Errorf("%s: id %s differs from that of minisign", name, public.ID())
		}
		if got := string(public.File()); got != read(t, "testdata/"+name+".pub") {
			t.Errorf("%s: the public key is written as\n%s", name, got)
		}
	}
}

func TestKeyFilesMatchMinisign(t *testing.T) {
	theirs := read(t, "testdata/open.key")
	secret, err := bundle.ParseSecretKey(theirs, nil)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := secret.File(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, want, _ := strings.Cut(theirs, "\n")
	if _, got, _ := strings.Cut(string(ours), "\n"); got != want {
		t.Errorf("written as\n%s\nminisign has\n%s", got, want)
	}
}

func TestEncryptedKeyNeedsItsPassword(t *testing.T) {
	k := newKey(t)
	text, err := k.File([]byte("open sesame"))
	if err != nil {
		t.Fatal(err)
	}
	back, err := bundle.ParseSecretKey(string(text), password("open sesame"))
	if err != nil || back.Public() != k.Public() {
		t.Errorf("with its password: %v", err)
	}
	theirs := read(t, "testdata/sealed.key") // with lower scrypt limits
	for name, ask := range map[string]func() ([]byte, error){"another": password("open"), "none": nil} {
		_, err = bundle.ParseSecretKey(theirs, ask)
		if !errors.Is(err, bundle.ErrPassword) || !errors.Is(err, fault.Denied) {
			t.Errorf("with %s: %v", name, err)
		}
	}
	broken := errors.New("no terminal")
	if _, err = bundle.ParseSecretKey(theirs, func() ([]byte, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("without a password function: %v", err)
	}
}

func TestSecretKeyIsNotPrinted(t *testing.T) {
	k := newKey(t)
	open, err := k.File(nil)
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal([]any{k})
	if err != nil {
		t.Fatal(err)
	}
	line := strings.Split(string(open), "\n")[1]
	for _, said := range []string{fmt.Sprint(k), fmt.Sprintf("%+v %#v", k, k), string(asJSON)} {
		if strings.Contains(said, line[len(line)-200:]) || len(said) > 200 {
			t.Errorf("the output contains the key: %s", said)
		}
	}
	// Parse errors do not contain the key.
	_, err = bundle.ParsePublicKey(string(open))
	if err == nil || strings.Contains(err.Error(), line[:20]) {
		t.Errorf("parsed as a public key: %v", err)
	}
}

func TestInvalidKeysAreRejected(t *testing.T) {
	open := read(t, "testdata/open.key")
	sealed := read(t, "testdata/sealed.key")
	pub := read(t, "testdata/open.pub")
	flip := func(s string, at int) string {
		lines := strings.Split(s, "\n")
		b := []byte(lines[1])
		b[at] ^= 1
		return lines[0] + "\n" + string(b) + "\n"
	}
	for name, text := range map[string]string{
		"nothing": "", "a comment": "untrusted comment: x\n", "two": pub + pub, "short": "RWQ=", "no base64": "RW!!",
		"another algorithm": flip(pub, 1), "long": strings.Repeat("RWQ", 4000),
	} {
		if _, err := bundle.ParsePublicKey(text); !errors.Is(err, fault.Invalid) || fault.RemedyOf(err) == "" {
			t.Errorf("public, %s: %v", name, err)
		}
	}
	for name, text := range map[string]string{
		"a public key": pub, "another algorithm": flip(open, 1), "another seal": flip(open, 3),
		"halves of two keys": flip(open, 140), "a price nobody pays": costly(t, sealed),
	} {
		if _, err := bundle.ParseSecretKey(text, password("correct horse")); !errors.Is(err, fault.Invalid) {
			t.Errorf("secret, %s: %v", name, err)
		}
	}
}

// costly returns an encrypted key with excessive scrypt limits.
func costly(t *testing.T, sealed string) string {
	t.Helper()
	lines := strings.Split(sealed, "\n")
	b := []byte(lines[1])
	copy(b[56:], "/////////////////////") // the limits, aligned to whole base64 characters
	return lines[0] + "\n" + string(b) + "\n"
}

func FuzzKeys(f *testing.F) {
	for _, name := range []string{"open.key", "open.pub", "sealed.pub"} {
		b, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := bundle.ParsePublicKey(text); err == nil {
			if again, err := bundle.ParsePublicKey(string(p.File())); err != nil || again != p {
				t.Errorf("%s does not come back: %v", p, err)
			}
		}
		k, err := bundle.ParseSecretKey(text, nil)
		if err != nil {
			return
		}
		file, err := k.File(nil)
		if err != nil {
			t.Fatal(err)
		}
		again, err := bundle.ParseSecretKey(string(file), nil)
		if err != nil || again.Public() != k.Public() {
			t.Errorf("it does not come back: %v", err)
		}
		if twice, _ := again.File(nil); !bytes.Equal(twice, file) {
			t.Error("the two encodings differ")
		}
	})
}
