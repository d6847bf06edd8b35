import { expect, it, vi } from "vitest";
import { feed } from "./feed.svelte";
import { pending, type Approval } from "./pending.svelte";

vi.mock("../lib/router.svelte", () => ({ router: {} })); // needs a browser
vi.mock("../lib/notices.svelte", () => ({ notices: { say: () => {} } }));

it("keeps an approval that is requested while the list is read", async () => {
  const approval = { id: "a-1", state: "pending", title: "t", what: "w", created_at: "2026-01-02T03:04:05Z" } as Approval;
  let respond = (_: Response) => {};
  vi.stubGlobal("fetch", () => new Promise<Response>((resolve) => (respond = resolve)));
  let event = (_: unknown) => {};
  vi.spyOn(feed, "on").mockImplementation((_topic, listen) => {
    event = listen as typeof event;
    return () => {};
  });
  pending.start();
  event({ approval });
  respond(Response.json({ items: [] })); // from before the request
  await vi.waitFor(() => expect(pending.known).toBe(true));
  expect(pending.list.map((a) => a.id)).toEqual(["a-1"]);
  event({ approval: { ...approval, state: "approved" } });
  expect(pending.list).toEqual([]);
});
