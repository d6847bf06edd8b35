import { afterEach, expect, it, vi } from "vitest";

import { Stretch, timeline } from "./record";

// A daemon with an event log of one event per ten milliseconds, from 1000 on.
const all = Array.from({ length: 1000 }, (_, i) => ({ type: "syscall", seq: i + 1, ts: 1000 + i * 10 }));
let recorded = 0;
let asked: URL[] = [];

function daemon(): void {
  asked = [];
  vi.stubGlobal("fetch", async (address: string) => {
    const url = new URL(address, "http://daemon");
    asked.push(url);
    const q = url.searchParams;
    const list = all.slice(0, recorded);
    const at = Date.parse(q.get("at") ?? "");
    const offset = q.has("at") ? list.filter((e) => e.ts < at).length : Number(q.get("offset"));
    return Response.json({ offset, total: list.length, items: list.slice(offset, offset + Number(q.get("limit"))) });
  });
}
afterEach(() => vi.unstubAllGlobals());

const over = new AbortController().signal;

it("requests only the visible windows", async () => {
  daemon();
  recorded = 1000;
  const rows = new Stretch("j-1", "type:syscall");
  const found = await rows.read(500, 128, over);
  expect([found.total, found.items.length, found.items[0]?.seq]).toEqual([1000, 128, 501]);
  expect(asked.map((url) => url.pathname + url.search)).toEqual(["/jails/j-1/events?q=type%3Asyscall&offset=500&limit=128"]);
});

it("is a separate list between two moments", async () => {
  daemon();
  recorded = 1000;
  const rows = new Stretch("j-1", "", 2000, 3000);
  const found = await rows.read(0, 128, over);
  expect([found.total, found.items.length, found.items[0]?.ts]).toEqual([101, 101, 2000]);
  expect((await rows.read(100, 128, over)).items.map((e) => e.ts)).toEqual([3000]);
  expect((await rows.read(200, 128, over)).items).toEqual([]);
  expect(await rows.find(2500)).toBe(50);
  expect(await rows.find(0)).toBe(0);
});

it("grows with the event log, up to its end", async () => {
  daemon();
  recorded = 150;
  const rows = new Stretch("j-1", "", 2000, 3000);
  expect((await rows.read(0, 128, over)).total).toBe(50);
  recorded = 180;
  expect((await rows.read(0, 128, over)).total).toBe(50); // the next read updates the end
  expect((await rows.read(0, 128, over)).total).toBe(80);
  recorded = 1000;
  await rows.read(0, 128, over);
  expect((await rows.read(0, 128, over)).total).toBe(101);
});

it("requests its bounds again after an error", async () => {
  daemon();
  recorded = 1000;
  const rows = new Stretch("j-1", "", 2000);
  const answers = vi.mocked(fetch);
  vi.stubGlobal("fetch", async () => Promise.reject(new TypeError("no network")));
  await expect(rows.read(0, 10, over)).rejects.toThrow("no network");
  vi.stubGlobal("fetch", answers);
  expect((await rows.read(0, 10, over)).items[0]?.ts).toBe(2000);
});

it("sorts the lanes of a timeline by process id", async () => {
  const counts = { file: [0, 1], net: [0, 0], proc: [1, 0], syscall: [5, 6], other: [0, 0] };
  vi.stubGlobal("fetch", async () =>
    Response.json({ from: "2026-01-02T03:04:05.678Z", bucket_ms: 64, counts, total: 13, lanes: [{ pid: 9, comm: "b", total: 7, counts }, { pid: 3, comm: "a", total: 6, counts }] }),
  );
  const found = await timeline("j-1", "", undefined, undefined, 100, 2, over);
  expect([found.from, found.step, found.buckets, found.lanes.map((l) => l.pid)]).toEqual([Date.parse("2026-01-02T03:04:05.678Z"), 64, 2, [3, 9]]);
});
