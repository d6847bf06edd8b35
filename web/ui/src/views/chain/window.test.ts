import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { newest } from "./window";

const length = 1000;
let asked: URL[] = [];

// The audit log of a daemon. Every third entry is a decision.
function daemon(address: string): Response {
  const url = new URL(address, "http://daemon");
  asked.push(url);
  const after = Number(url.searchParams.get("after"));
  const limit = Number(url.searchParams.get("limit"));
  const all = Array.from({ length }, (_, i) => ({ seq: length - i, kind: (length - i) % 3 === 0 ? "decision" : "egress" }));
  const found = all.filter((e) => e.seq < after && (!url.searchParams.get("kind") || e.kind === "decision"));
  const items = found.slice(0, limit);
  return Response.json({ items, next: items.length === limit ? String(items.at(-1)?.seq) : undefined });
}
beforeEach(() => {
  asked = [];
  vi.stubGlobal("fetch", async (address: string) => daemon(address));
});
afterEach(() => vi.unstubAllGlobals());

const page = 128;
const none = new AbortController().signal;

test("the length of the unfiltered list is known, and any page of it is one request", async () => {
  const rows = newest(length, {});
  const piece = await rows.read(5 * page, page, none);
  expect(piece.total).toBe(length);
  expect(piece.items[0]?.seq).toBe(length - 5 * page);
  expect(asked.length).toBe(1);
});

test("the list does not contain later entries", async () => {
  const rows = newest(900, {});
  const piece = await rows.read(0, page, none);
  expect(piece.items[0]?.seq).toBe(900);
  expect(piece.total).toBe(900);
});

test("pages of a filtered list follow each other up to the last entry", async () => {
  const rows = newest(length, { kind: "decision" });
  const seqs: number[] = [];
  let total = 0;
  for (let at = 0; at === 0 || at < total; at += page) {
    const piece = await rows.read(at, page, none);
    seqs.push(...piece.items.map((e) => e.seq));
    expect(piece.total).toBeGreaterThanOrEqual(total);
    total = piece.total;
  }
  expect(seqs).toEqual(Array.from({ length: 333 }, (_, i) => 999 - 3 * i));
  expect(total).toBe(333);
});

test("a distant page is found through the pages before it", async () => {
  const rows = newest(length, { kind: "decision" });
  const piece = await rows.read(2 * page, page, none);
  expect(piece.items[0]?.seq).toBe(999 - 3 * 2 * page);
  expect(piece.total).toBe(333);
});
