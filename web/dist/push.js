// What a browser does when it is told that a person is asked, also when no page
// of ours is open. What it is told has nothing in it of what would be done.
self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

self.addEventListener("push", (event) => {
  let told = {};
  try {
    told = event.data.json();
  } catch {
    // A browser must show something whenever it is told something.
  }
  const approval = /^a-[a-z0-9]{12}$/.test(told.approval) ? told.approval : "";
  const title = typeof told.title === "string" ? told.title : "A person is asked";
  const body = typeof told.text === "string" ? told.text : "";
  event.waitUntil(
    self.registration.showNotification(title, { body, tag: approval || "approvals", data: { to: approval ? `/approvals/${approval}` : "/approvals" } }),
  );
});

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  const to = event.notification.data.to;
  event.waitUntil(
    self.clients.matchAll({ type: "window", includeUncontrolled: true }).then(async (pages) => {
      const page = pages.find((p) => "navigate" in p);
      if (!page) return self.clients.openWindow(to);
      await page.focus();
      // Not every page can be navigated by us: one that we do not control cannot.
      return page.navigate(to).catch(() => self.clients.openWindow(to));
    }),
  );
});
