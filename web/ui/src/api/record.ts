// What is recorded of a jail, in the pieces in which it is looked at.
import type { Event, Kind } from "../lib/event";
import type { Piece } from "../ui/windows.svelte";
import { place } from "./client";
import { Problem } from "./problem";

async function read(address: string, accept: string, signal: AbortSignal): Promise<Response> {
  const answer = await fetch(address, { headers: { Accept: `${accept}, application/problem+json` }, signal });
  if (!answer.ok) throw await Problem.of(answer);
  return answer;
}

async function lines(jail: string, query: object, signal: AbortSignal): Promise<Event[]> {
  const answer = await read(place("/jails/{id}/events", { id: jail }, query), "application/x-ndjson", signal);
  return (await answer.text()).split("\n").filter(Boolean).map((line) => JSON.parse(line) as Event);
}

const times = (from?: number, to?: number) => ({ since: from && new Date(from).toISOString(), until: to && new Date(to).toISOString() });

// events is a window of what a filter matches.
export async function events(jail: string, q: string, from: number | undefined, to: number | undefined, offset: number, limit: number, signal: AbortSignal): Promise<Piece<Event>> {
  const found = await lines(jail, { q, ...times(from, to), limit: 50_000 }, signal);
  return { items: found.slice(offset, offset + limit), total: found.length };
}

// lastEvents are the last before a moment, oldest first.
export async function lastEvents(jail: string, until: number, most: number, signal: AbortSignal): Promise<Event[]> {
  return lines(jail, { q: "-type:usage", ...times(undefined, until), tail: most }, signal);
}

// A Timeline counts records in buckets of time, by kind.
export interface Timeline {
  from: number; // of the first bucket, in milliseconds
  step: number;
  counts: Partial<Record<Kind, number[]>>;
  lanes: Lane[];
}

// A Lane is one process of a timeline.
export interface Lane {
  pid: number;
  comm: string;
  counts: Partial<Record<Kind, number[]>>;
}

export async function timeline(jail: string, q: string, from: number | undefined, to: number | undefined, buckets: number, lanes: number, signal: AbortSignal): Promise<Timeline> {
  const found = await lines(jail, { q, ...times(from, to), limit: 50_000 }, signal);
  const begin = from ?? found[0]?.ts ?? Date.now();
  const end = to ?? found.at(-1)?.ts ?? begin;
  const step = Math.max(1, Math.ceil((end - begin + 1) / buckets));
  const counts: Timeline["counts"] = {};
  const by = new Map<number, Lane>();
  for (const e of found) {
    const at = Math.floor((e.ts - begin) / step);
    const count = (c: Timeline["counts"]) => {
      const list = (c[e.type] ??= Array<number>(buckets).fill(0));
      list[at] = (list[at] ?? 0) + 1;
    };
    count(counts);
    if (!e.pid) continue;
    const lane = by.get(e.pid) ?? { pid: e.pid, comm: "", counts: {} };
    lane.comm = e.comm ?? lane.comm;
    by.set(e.pid, lane);
    count(lane.counts);
  }
  const size = (l: Lane) => Object.values(l.counts).flat().reduce((a, b) => a + b, 0);
  return { from: begin, step, counts, lanes: [...by.values()].sort((a, b) => size(b) - size(a)).slice(0, lanes).sort((a, b) => a.pid - b.pid) };
}

export interface Latency {
  p50_ns: number;
  p90_ns: number;
  p99_ns: number;
  total_ns: number;
  buckets: { from_ns: number; count: number }[];
}

export interface SyscallProfile {
  count: number;
  list: { name: string; count: number; failed: number; denied: number; timed: number; latency: Latency }[];
  failures: { name: string; errno: string; class: string; count: number; comm?: string; path?: string }[];
}

export async function syscalls(jail: string, from: number | undefined, to: number | undefined, signal: AbortSignal): Promise<SyscallProfile> {
  const report = await (await read(place("/jails/{id}/report", { id: jail }, { format: "json", ...times(from, to) }), "application/json", signal)).json();
  return { count: report.syscalls.count, list: report.syscalls.list, failures: report.failures.list };
}

export interface Peer {
  dir: string;
  proto: string;
  host: string; // its name if it was asked for, else its address
  port?: number;
  connections: number;
  refused: number;
  unanswered: number;
  bytes_out: number;
  bytes_in: number;
  comm?: string;
  pid?: number;
  events: { q: string };
}

export interface Connections {
  connections: number;
  refused: number;
  list: Peer[];
  lookups: { host: string }[];
}

export async function connections(jail: string, from: number | undefined, to: number | undefined, signal: AbortSignal): Promise<Connections> {
  const report = await (await read(place("/jails/{id}/report", { id: jail }, { format: "json", ...times(from, to) }), "application/json", signal)).json();
  return { connections: report.network.connections.count, refused: report.network.refused, list: report.network.list, lookups: report.network.lookups };
}

export interface FileThen {
  path: string;
  op: string; // the last
  written: number;
  comm: string;
  ts: number;
}

// filesAt lists what had been changed by a moment, the last change first.
export async function filesAt(jail: string, at: number, signal: AbortSignal): Promise<FileThen[]> {
  const found = await lines(jail, { q: "type:file -op:open,read,close,mmap -ret:<0", ...times(undefined, at), limit: 50_000 }, signal);
  const by = new Map<string, FileThen>();
  for (const e of found) {
    const path = (e.op === "rename" && e.to) || e.path || "";
    const known = by.get(path);
    by.delete(path);
    by.set(path, { path, op: e.op ?? "", written: (known?.written ?? 0) + (e.op === "write" ? (e.bytes ?? 0) : 0), comm: e.comm ?? "", ts: e.ts });
  }
  return [...by.values()].reverse();
}
