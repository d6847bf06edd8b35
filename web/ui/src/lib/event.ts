// The description of an event in one line. docs/reference/events.md lists the fields.
import type { Schema } from "../api/client";
import { errno } from "./errno";
import { bytes, count, of, took } from "./format";
import { commandLine } from "./visible";

export type Event = Schema["Event"];
export type Kind = Event["type"];

// kinds lists the frequent event types in display order.
export const kinds: { id: "proc" | "file" | "net" | "syscall"; label: string }[] = [
  { id: "proc", label: "Processes" },
  { id: "file", label: "Files" },
  { id: "net", label: "Network" },
  { id: "syscall", label: "System calls" },
];

// sentence describes an event in a line. It contains untrusted text: show it with Text.
export function sentence(e: Event): string {
  switch (e.type) {
    case "syscall":
      return `${e.name}(${operands(e)})${result(e)}`;
    case "file":
      return [e.op, e.path || "(unknown)", e.to && `→ ${e.to}`, e.bytes != null && bytes(e.bytes), e.calls && `in ${of(e.calls, "call")}`].filter(Boolean).join(" ");
    case "net":
      return [e.proto, e.dir === "ingress" ? "←" : "→", peer(e), e.bytes != null && bytes(e.bytes), e.tcp, e.packets && of(e.packets, "packet")].filter(Boolean).join("  ");
    case "proc":
      return process(e);
    case "gap":
      return `${e.lost === -1 ? "An unknown number of" : count(e.lost ?? 0)} ${e.source} events are missing: ${e.reason}`;
    case "usage":
      return `${took(e.cpu_ns ?? 0)} of CPU time, ${bytes(e.memory_bytes ?? 0)} of memory, ${of(e.pids ?? 0, "task")}`;
    case "lineage":
      return `${e.op} ${e.snapshot}`;
  }
}

// operands returns the paths and addresses of a call, or else its numeric arguments. An
// event does not say how many arguments a call has, so trailing zeros are omitted.
function operands(e: Event): string {
  const names = [e.path, e.to, e.addr].filter(Boolean);
  if (names.length > 0) return names.join(", ");
  const args = e.args ?? [];
  const last = args.findLastIndex((arg) => arg !== 0);
  return args.slice(0, last + 1).map(operand).join(", ");
}

// operand formats small numbers in decimal, and large ones, mostly addresses and flags, in
// hexadecimal. JSON numbers beyond 2^53 are not exact in a browser.
function operand(arg: number): string {
  if (!Number.isSafeInteger(arg)) return "…";
  return arg < 2 ** 31 ? String(arg) : `0x${arg.toString(16)}`;
}

// failed returns the name of the error of a failed call, or "".
export function failed(e: Event): string {
  return e.denied ? "denied" : errno(e.ret);
}

const pause = 20; // milliseconds between the events of a burst

// continues reports whether an event belongs to the same burst as the one before it: of the same
// process and kind, shortly after it.
export function continues(before: Event, e: Event): boolean {
  return before.type === e.type && before.pid === e.pid && before.comm === e.comm && e.type !== "gap" && e.ts - before.ts >= 0 && e.ts - before.ts <= pause;
}

function result(e: Event): string {
  if (e.unfinished) return " never returned";
  return e.ret == null || e.ret < 0 ? "" : ` = ${e.ret}`;
}

function peer(e: Event): string {
  const far = (e.dir === "ingress" ? e.src : e.dst) ?? "";
  return e.host ? `${e.host} (${far})` : far;
}

function process(e: Event): string {
  const what = e.thread ? "thread " : "";
  switch (e.op) {
    case "exec":
      return `exec ${commandLine(e.argv ?? [e.exe ?? ""])}`;
    case "exit":
      return `${what}exit ${e.signal ? `by ${e.signal}` : `with ${e.exit_code ?? 0}`}`;
    default:
      return `${what}${e.op ?? ""} by ${e.ppid ?? 0}`;
  }
}

// namesProcess reports whether a filter selects events by process, thread or number.
export function namesProcess(q: string): boolean {
  return /(^|\s)(pid|tid|host_pid|seq):/.test(q);
}

// withoutInit extends a filter to exclude events of init, the first process of a jail. A
// filter that names a process can refer to init, so it is not changed.
export function withoutInit(q: string): string {
  return namesProcess(q) ? q : `${q} -pid:1`.trim();
}

// term formats a term of a filter, and quotes the value where needed.
export function term(key: string, value: string | number): string {
  const text = String(value);
  return `${key}:${/^[\w./@=%+~-]+$/.test(text) ? text : `"${text.replace(/["\\*]/g, "\\$&")}"`}`;
}
