// The service worker that shows push notifications of approval requests, also when no page
// of the UI is open. A message does not contain the action to approve.
self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

self.addEventListener("push", (event) => {
  let message = {};
  try {
    message = event.data.json();
  } catch {
    // Keep the empty message: browsers require a notification for every push message
    // (Push API, userVisibleOnly).
  }
  const approval = /^a-[a-z0-9]{12}$/.test(message.approval) ? message.approval : "";
  const title = typeof message.title === "string" ? message.title : "Approval required";
  const body = typeof message.text === "string" ? message.text : "";
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
      // navigate fails for a page that this worker does not control.
      return page.navigate(to).catch(() => self.clients.openWindow(to));
    }),
  );
});
