import { beforeEach, expect, it, vi } from "vitest";
import type { Schema } from "../../api/client";
import { Verdicts } from "./verdicts";

type Entry = Schema["ChainEntry"];

let log: Entry[] = [];
let sent = 0; // entries in all responses

beforeEach(() => {
  log = [];
  sent = 0;
  vi.stubGlobal("fetch", async (address: string) => {
    const query = new URL(address, "http://localhost").searchParams;
    const after = Number(query.get("after") ?? 0);
    const limit = Number(query.get("limit"));
    const newest = query.get("newest") === "true";
    const found = newest ? log.filter((e) => after === 0 || e.seq < after).reverse() : log.filter((e) => e.seq > after);
    const items = found.slice(0, limit);
    sent += items.length;
    return Response.json({ items, ...(items.length === limit ? { next: String(items.at(-1)?.seq) } : {}) });
  });
});

function append(kind: string, allowed: boolean): void {
  const seq = log.length + 1;
  log.push({ seq, time: new Date(seq * 1000).toISOString(), kind, body: { allowed } } as unknown as Entry);
}

it("finds denials and approval requests, oldest first", async () => {
  append("decision", true);
  append("egress", false);
  append("approval.asked", true);
  const verdicts = new Verdicts("j-1");
  await verdicts.read();
  expect(verdicts.list).toEqual([{ at: 2000, kind: "denied" }, { at: 3000, kind: "approval" }]);
});

it("reads each entry once", async () => {
  for (let i = 0; i < 500; i++) append("decision", false);
  const verdicts = new Verdicts("j-1");
  await verdicts.read();
  for (let i = 0; i < 3; i++) await verdicts.read();
  append("decision", false);
  await Promise.all([verdicts.read(), verdicts.read()]);
  expect(sent).toBe(501);
  expect(verdicts.list.map((v) => v.at / 1000)).toEqual(Array.from({ length: 501 }, (_, i) => i + 1));
});

it("reads all entries that are newer, and keeps the latest", async () => {
  const verdicts = new Verdicts("j-1");
  await verdicts.read();
  append("decision", false);
  await verdicts.read();
  for (let i = 0; i < 2500; i++) append("decision", false);
  await verdicts.read();
  expect(verdicts.list.length).toBe(1000);
  expect(verdicts.list.at(-1)?.at).toBe(2501_000);
});

it("reads again after an error", async () => {
  append("decision", false);
  const answer = fetch;
  vi.stubGlobal("fetch", async () => Promise.reject(new TypeError("no network")));
  const verdicts = new Verdicts("j-1");
  await expect(verdicts.read()).rejects.toThrow();
  vi.stubGlobal("fetch", answer);
  await verdicts.read();
  expect(verdicts.list.length).toBe(1);
});
