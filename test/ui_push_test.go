package test_test

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/serviceworker"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
)

// subscribes makes a page's browser subscribe to a simulated push service, because the real ones
// are on the Internet. Everything else is the browser's own.
const subscribes = `
PushManager.prototype.subscribe = async function (options) {
  if (!options.userVisibleOnly || options.applicationServerKey.length !== 87) throw new Error("not as browsers want it");
  const made = { endpoint: "https://push.invalid/x", unsubscribe: async () => true, toJSON: () => ({ endpoint: made.endpoint, keys: { p256dh: %q, auth: %q } }) };
  return made;
};`

// notifiesWithoutPage enables notifications, and delivers messages as a push service would.
func (u *ui) notifiesWithoutPage() {
	p := u.login(u.T, u.browser, "operator")
	p.phone()
	origin := strings.TrimSuffix(p.base, "/")
	var mu sync.Mutex
	var worker serviceworker.RegistrationID
	if err := chromedp.Listen(p.ctx, func(ev any) {
		mu.Lock()
		defer mu.Unlock()
		if told, ok := ev.(*serviceworker.EventWorkerRegistrationUpdated); ok && len(told.Registrations) > 0 {
			worker = told.Registrations[0].RegistrationID
		}
	}); err != nil {
		u.Fatal(err)
	}
	p.run(func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		where, err := cdp.Call(ctx, t, target.GetTargetInfo, target.GetTargetInfoParams{})
		if err != nil {
			return chromedp.Void{}, err
		}
		if _, err := cdp.Call(ctx, t, browser.SetPermission, browser.SetPermissionParams{
			Permission: &browser.PermissionDescriptor{Name: "notifications"}, Setting: browser.PermissionSettingGranted,
			Origin: origin, BrowserContextID: where.TargetInfo.BrowserContextID,
		}); err != nil {
			return chromedp.Void{}, err
		}
		_, err = cdp.Call(ctx, t, serviceworker.Enable, cdp.Empty{})
		return chromedp.Void{}, err
	})
	key, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		u.Fatal(err)
	}
	p.open("/approvals")
	p.waitText("Notify me")
	encoded := base64.RawURLEncoding.EncodeToString
	p.do(fmt.Sprintf(subscribes, encoded(key.PublicKey().Bytes()), encoded(make([]byte, 16))))
	p.tap("button", "Notify me")
	p.waitText("Do not notify me")
	if told := evaluate[int](p, `fetch("/push/browsers").then(r => r.json()).then(l => l.items.filter(b => b.service === "push.invalid").length)`); told != 1 {
		u.Errorf("%d browsers are subscribed, want 1", told)
	}

	if !within(30*time.Second, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return worker != ""
	}) {
		u.Fatal("the browser has no service worker")
	}
	evaluate[bool](p, `navigator.serviceWorker.ready.then(r => new Promise(yes => {
		const look = () => r.active?.state === "activated" ? yes(true) : setTimeout(look, 20);
		look();
	}))`)
	for data, want := range map[string]string{
		`{"approval":"a-abcdefghjkmn","title":"Approval required","text":"j-aaaaaaaaaaaa: bash"}`: "Approval required|j-aaaaaaaaaaaa: bash|/approvals/a-abcdefghjkmn",
		`{"approval":"//evil.example/","title":"<b>x</b>","text":3}`:                              "<b>x</b>||/approvals",
	} {
		shown := `navigator.serviceWorker.ready.then(r => r.getNotifications()).then(all => all.map(n => n.title + "|" + n.body + "|" + n.data.to))`
		var got []string
		if !within(30*time.Second, func() bool { // a push service retries a failed delivery
			p.run(func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
				_, err := cdp.Call(ctx, t, serviceworker.DeliverPushMessage, serviceworker.DeliverPushMessageParams{Origin: origin, RegistrationID: worker, Data: data})
				return chromedp.Void{}, err
			})
			return within(time.Second, func() bool {
				got = evaluate[[]string](p, shown)
				return strings.Contains(strings.Join(got, "\n"), want)
			})
		}) {
			u.Errorf("after push %s the browser shows %q, want %q", data, got, want)
		}
	}
	p.tap("button", "Do not notify me")
	p.waitText("Notify me")
	var left int
	if !within(30*time.Second, func() bool {
		left = evaluate[int](p, `fetch("/push/browsers").then(r => r.json()).then(l => l.items.length)`)
		return left == 0
	}) {
		u.Errorf("%d browsers are still subscribed", left)
	}
}
