import { expect, it, vi } from "vitest";

import { Windows } from "./windows.svelte";

const arrived = () => new Promise((resolve) => setTimeout(resolve));

it("caches a bounded part of an unbounded list", async () => {
  const total = 1_000_000;
  const read = vi.fn(async (offset: number, limit: number) => ({ items: Array.from({ length: Math.min(limit, total - offset) }, (_, i) => offset + i), total }));
  const rows = new Windows<number>(read);
  for (let at = 0; at < total; at += 10_000) {
    rows.want(at, at + 40);
    await arrived();
    expect(rows.row(at + 39)).toBe(at + 39);
  }
  expect(rows.row(0)).toBeUndefined(); // evicted; loaded again when needed
  rows.want(999_990, 1_000_000);
  await arrived();
  expect(rows.row(999_999)).toBe(999_999);
});

it("loads only rows that are not cached", async () => {
  let total = 100;
  const read = vi.fn(async (offset: number, limit: number) => ({ items: Array.from({ length: Math.max(0, Math.min(limit, total - offset)) }, (_, i) => offset + i), total }));
  const rows = new Windows<number>(read);
  await rows.renew();
  rows.want(0, 40);
  rows.want(10, 50);
  expect(read).toHaveBeenCalledTimes(1);
  total = 120;
  await rows.renew();
  expect(rows.total).toBe(120);
  expect(rows.row(119)).toBe(119);
});

it("aborts requests for rows out of view", async () => {
  const given: number[] = [];
  const rows = new Windows<number>((offset, _limit, signal) => new Promise((_, no) => signal.addEventListener("abort", () => (given.push(offset), no(signal.reason)))));
  rows.want(0, 40);
  rows.want(500_000, 500_040);
  expect(given[0]).toBe(0);
  await Promise.resolve();
  expect(rows.error).toBeUndefined();
});

it("prefetches the next and the previous page", async () => {
  const total = 10_000;
  const read = vi.fn(async (offset: number, limit: number) => ({ items: Array.from({ length: limit }, (_, i) => offset + i), total }));
  const rows = new Windows<number>(read);
  await rows.renew();
  rows.want(1000, 1040);
  await arrived();
  expect(rows.row(1040 + 100)).toBe(1140);
  expect(rows.row(1000 - 100)).toBe(900);
});

it("clears the cache when entries were removed from the front", async () => {
  let dropped = 0;
  const all = Array.from({ length: 1000 }, (_, i) => i);
  const rows = new Windows<number>(async (offset, limit) => ({ items: all.slice(dropped + offset, dropped + offset + limit), total: all.length - dropped }));
  await rows.renew();
  rows.want(0, 40);
  await arrived();
  expect(rows.row(0)).toBe(0);
  dropped = 300;
  await rows.renew();
  rows.want(0, 40);
  await arrived();
  expect(rows.row(0)).toBe(300);
});
