package approval_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math/big"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/policy/access"
	"glasshouse/policy/approval"
	"glasshouse/store"
	"glasshouse/store/storetest"
)

// A device is a browser with a login, and the HTTP server that is its push service.
type device struct {
	*receiver
	t     *testing.T
	key   *ecdh.PrivateKey
	auth  []byte
	login id.Login
}

var b64 = base64.RawURLEncoding

// device logs a browser in and returns it together with its subscription.
func (d *harness) device(role access.Role, status func(int) int) (*device, approval.Browser) {
	d.t.Helper()
	key, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		d.t.Fatal(err)
	}
	v := &device{receiver: newReceiver(d.t, status), t: d.t, key: key, auth: []byte("sixteen bytes ok")}
	logins := access.Logins{Store: d.database().Logins()}
	_, code, err := logins.Link(d.t.Context(), access.Caller{Name: "ann", Role: access.Admin}, role, "")
	if err != nil {
		d.t.Fatal(err)
	}
	l, _, err := logins.Redeem(d.t.Context(), code)
	if err != nil {
		d.t.Fatal(err)
	}
	v.login = l.ID
	return v, approval.Browser{
		ID: id.NewBrowser(), Login: l.ID, Endpoint: v.URL + "/canary-endpoint", Created: time.Now(),
		Keys: approval.BrowserKeys{P256dh: b64.EncodeToString(key.PublicKey().Bytes()), Auth: b64.EncodeToString(v.auth)},
	}
}

// database opens the harness's database again.
func (d *harness) database() *store.Store {
	d.t.Helper()
	s, err := storetest.Open(d.t, d.path)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { s.Close() })
	return s
}

// decrypt returns the text of a push message as a browser decrypts it (RFC 8188 and RFC 8291).
func (v *device) decrypt(p post) (text string) {
	v.t.Helper()
	b := p.body
	if len(b) < 86 || p.header.Get("Content-Encoding") != "aes128gcm" {
		v.t.Fatalf("message of %d bytes has encoding %q", len(b), p.header.Get("Content-Encoding"))
	}
	salt, size, from, sealed := b[:16], binary.BigEndian.Uint32(b[16:20]), b[21:86], b[86:]
	if b[20] != 65 || int(size) < len(sealed) {
		v.t.Fatalf("key of %d bytes, record of %d bytes", b[20], size)
	}
	public, err := ecdh.P256().NewPublicKey(from)
	if err != nil {
		v.t.Fatal(err)
	}
	shared, err := v.key.ECDH(public)
	if err != nil {
		v.t.Fatal(err)
	}
	derive := func(secret, salt []byte, info string, n int) []byte {
		k, err := hkdf.Key(sha256.New, secret, salt, info, n)
		if err != nil {
			v.t.Fatal(err)
		}
		return k
	}
	ikm := derive(shared, v.auth, "WebPush: info\x00"+string(v.key.PublicKey().Bytes())+string(from), 32)
	block, err := aes.NewCipher(derive(ikm, salt, "Content-Encoding: aes128gcm\x00", 16))
	if err != nil {
		v.t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		v.t.Fatal(err)
	}
	plain, err := gcm.Open(nil, derive(ikm, salt, "Content-Encoding: nonce\x00", 12), sealed, nil)
	if err != nil {
		v.t.Fatalf("decrypt the message: %v", err)
	}
	return strings.TrimSuffix(strings.TrimRight(string(plain), "\x00"), "\x02")
}

// verify fails the test unless a push is signed for this push service, with the key that
// browsers subscribe with (RFC 8292).
func (v *device) verify(p post, public string) {
	v.t.Helper()
	rest, signed := strings.CutPrefix(p.header.Get("Authorization"), "vapid t=")
	token, key, _ := strings.Cut(rest, ", k=")
	parts := strings.Split(token, ".")
	if !signed || key != public || len(parts) != 3 {
		v.t.Fatalf("Authorization = %q", p.header.Get("Authorization"))
	}
	raw, err := b64.DecodeString(key)
	if err != nil {
		v.t.Fatal(err)
	}
	sig, err := b64.DecodeString(parts[2])
	if err != nil || len(sig) != 64 {
		v.t.Fatalf("signature of %d bytes, %v, want 64 bytes", len(sig), err)
	}
	pub, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), raw)
	if err != nil {
		v.t.Fatalf("parse the public key of the subscription: %v", err)
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if !ecdsa.Verify(pub, sum[:], new(big.Int).SetBytes(sig[:32]), new(big.Int).SetBytes(sig[32:])) {
		v.t.Error("the signature does not match the key that browsers subscribe with")
	}
	var claims struct {
		Aud, Sub string
		Exp      int64
	}
	text, err := b64.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(text, &claims)
	}
	if left := time.Until(time.Unix(claims.Exp, 0)); err != nil || claims.Aud != v.URL || !strings.HasPrefix(claims.Sub, "https://") || left <= 0 || left > 24*time.Hour {
		v.t.Errorf("claims = %+v, %v", claims, err)
	}
}

// newBrowserHarness is a harness with Web Push.
func newBrowserHarness(t *testing.T, cfg approval.Config) *harness {
	t.Helper()
	d := &harness{t: t, path: t.TempDir() + "/g.db", cfg: cfg}
	d.cfg.Browsers.Store = d.database().Browsers()
	d.open()
	return d
}

func (d *harness) subscribe(b approval.Browser) {
	d.t.Helper()
	if err := d.database().Browsers().PutBrowser(d.t.Context(), b, 8); err != nil {
		d.t.Fatal(err)
	}
}

func secretQuestion() approval.Request {
	return approval.Request{
		Question: policy.Question{Action: policy.ActionRun, Resource: "curl -H 'token: canary-command' https://x", Subject: policy.Subject{Jail: "j-aaaaaaaaaaaa"}},
		Reason:   "canary-reason", Context: json.RawMessage(`{"x":"canary-context"}`),
	}
}

func TestBrowserIsNotified(t *testing.T) {
	d := newBrowserHarness(t, approval.Config{})
	v, b := d.device(access.Operator, always(http.StatusCreated))
	d.subscribe(b)
	other, watcher := d.device(access.Viewer, always(http.StatusCreated))
	d.subscribe(watcher)
	r, err := d.Open(t.Context(), secretQuestion())
	if err != nil {
		t.Fatal(err)
	}
	p := v.next(t)
	text := v.decrypt(p)
	var message struct{ Approval, Title, Text string }
	if err := json.Unmarshal([]byte(text), &message); err != nil || message.Approval != string(r.ID) || message.Text != "j-aaaaaaaaaaaa: bash" || message.Title == "" {
		t.Errorf("message = %s, %v", text, err)
	}
	if strings.Contains(text, "canary") {
		t.Errorf("the message contains details of the request: %s", text)
	}
	key, err := d.PushKey()
	if err != nil {
		t.Fatal(err)
	}
	v.verify(p, key)
	if p.header.Get("Urgency") != "high" || p.header.Get("Ttl") == "0" || p.header.Get("Topic") != string(r.ID) {
		t.Errorf("headers = %v", p.header)
	}
	if len(other.got) != 0 {
		t.Error("a viewer was notified")
	}
	eventually(t, func() bool { // all notices are delivered
		left, err := d.database().Approvals().Notices(context.Background())
		return err == nil && len(left) == 0
	})
}

func TestPushKeySurvivesRestart(t *testing.T) {
	d := newBrowserHarness(t, approval.Config{})
	before, err := d.PushKey()
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	d.open()
	if after, err := d.PushKey(); err != nil || after != before || before == "" {
		t.Errorf("PushKey after a restart = %s, %v, want %s", after, err, before)
	}
}

func TestExpiredPushSubscriptionIsDeleted(t *testing.T) {
	for _, status := range []int{http.StatusGone, http.StatusNotFound} {
		d := newBrowserHarness(t, approval.Config{})
		v, b := d.device(access.Operator, always(status))
		d.subscribe(b)
		if _, err := d.Open(t.Context(), secretQuestion()); err != nil {
			t.Fatal(err)
		}
		v.next(t)
		eventually(t, func() bool {
			list, err := d.Browsers(context.Background())
			return err == nil && len(list) == 0
		})
		if dead, err := d.DeadLetters(t.Context()); err != nil || len(dead) != 0 {
			t.Errorf("status %d: dead letters = %+v, %v, want none", status, dead, err)
		}
	}
}

func TestFailingPushServiceIsRetriedUntilDeadLetter(t *testing.T) {
	d := newBrowserHarness(t, approval.Config{Retry: approval.Retry{First: time.Millisecond, Longest: time.Millisecond, Attempts: 3}})
	v, b := d.device(access.Operator, always(http.StatusInternalServerError))
	d.subscribe(b)
	if _, err := d.Open(t.Context(), secretQuestion()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		v.next(t)
	}
	var dead []approval.Notice
	eventually(t, func() (ok bool) {
		dead, _ = d.DeadLetters(context.Background())
		return len(dead) == 1
	})
	all, err := json.Marshal(dead)
	if err != nil || strings.Contains(string(all), "canary") || !strings.Contains(string(all), "500") {
		t.Errorf("dead letters = %s, %v", all, err)
	}
}

func TestLoggedOutBrowserIsNotNotified(t *testing.T) {
	d := newBrowserHarness(t, approval.Config{})
	v, b := d.device(access.Operator, always(http.StatusCreated))
	d.subscribe(b)
	loggedIn, c := d.device(access.Operator, always(http.StatusCreated))
	d.subscribe(c)
	if err := d.database().Logins().DeleteLogin(t.Context(), v.login); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Open(t.Context(), secretQuestion()); err != nil {
		t.Fatal(err)
	}
	loggedIn.next(t)
	if len(v.got) != 0 {
		t.Error("a logged-out browser was notified")
	}
	if list, err := d.Browsers(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("Browsers = %+v, %v, want 1", list, err)
	}
}

func TestInvalidBrowserIsRefused(t *testing.T) {
	d := newBrowserHarness(t, approval.Config{})
	_, good := d.device(access.Operator, always(http.StatusCreated))
	good.Endpoint = "https://push.example/x"
	if _, err := d.SubscribeBrowser(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	for field, spoil := range map[string]func(*approval.Browser){
		"endpoint":    func(b *approval.Browser) { b.Endpoint = "http://push.example/x" },
		"keys.p256dh": func(b *approval.Browser) { b.Keys.P256dh = b64.EncodeToString(make([]byte, 65)) },
		"keys.auth":   func(b *approval.Browser) { b.Keys.Auth = "AAAA" },
	} {
		b := good
		spoil(&b)
		if _, err := d.SubscribeBrowser(t.Context(), b); !errors.Is(err, fault.Invalid) || fault.FieldOf(err) != field {
			t.Errorf("bad %s: Subscribed = %v", field, err)
		}
	}
	for i := range 10 {
		good.Endpoint = "https://push.example/" + strings.Repeat("y", i+1)
		if _, err := d.SubscribeBrowser(t.Context(), good); err != nil && i < 7 || err == nil && i > 6 {
			t.Errorf("Subscribed of browser %d of a login = %v", i+2, err)
		}
	}
}

// The browser chooses the endpoint. The daemon must not connect to addresses that only the
// host can reach.
func TestAttackBrowserEndpointOnHostAddress(t *testing.T) {
	inside := errors.New("not there")
	d := newBrowserHarness(t, approval.Config{
		Browsers: approval.BrowserConfig{Reach: func(a netip.Addr) error {
			if a.IsLoopback() {
				return inside
			}
			return nil
		}},
		Retry: approval.Retry{First: time.Millisecond, Longest: time.Millisecond, Attempts: 1},
	})
	v, b := d.device(access.Operator, always(http.StatusCreated))
	d.subscribe(b)
	if _, err := d.Open(t.Context(), secretQuestion()); err != nil {
		t.Fatal(err)
	}
	var dead []approval.Notice
	eventually(t, func() (ok bool) {
		dead, _ = d.DeadLetters(context.Background())
		return len(dead) == 1
	})
	if len(v.got) != 0 || !strings.Contains(dead[0].Error, "not there") || strings.Contains(dead[0].Error, "canary") {
		t.Errorf("%d messages were sent, error %q", len(v.got), dead[0].Error)
	}
}
