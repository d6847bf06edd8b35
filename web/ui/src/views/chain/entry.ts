// The description of audit log entries in one line, and the tree of their causes.
import type { Schema } from "../../api/client";
import { cost } from "../runs/dimensions";
import { bytes, of, took } from "../../lib/format";

export type Entry = Schema["ChainEntry"];

// Families of kinds of entries, each with a color, like the kinds of events.
export const families = [
  { id: "run", label: "Runs", color: "var(--lineage)", kinds: ["session.opened", "session.closed", "run.started", "run.moved", "run.ended", "checkpoint.taken", "checkpoint.resumed", "sibling.told"] },
  { id: "decision", label: "Decisions", color: "var(--amber)", kinds: ["decision", "approval.asked", "approval.answered", "approval.expired", "policy.changed"] },
  { id: "call", label: "Calls", color: "var(--syscall)", kinds: ["call.started", "call.ended", "llm.called", "budget.charged", "budget.spent"] },
  { id: "egress", label: "Egress", color: "var(--net)", kinds: ["egress"] },
  { id: "secret", label: "Secrets", color: "var(--file)", kinds: ["secret.stored", "secret.deleted", "secret.used", "secret.refused", "secret.granted", "secret.revoked"] },
  { id: "jail", label: "Jails", color: "var(--lineage)", kinds: ["jail.created", "jail.started", "jail.paused", "jail.resumed", "jail.stopped", "jail.failed", "jail.deleted", "jail.limited", "jail.branched", "jail.rewound", "snapshot.taken", "snapshot.deleted", "events.sealed"] },
  { id: "house", label: "Daemon", color: "var(--other)", kinds: ["daemon.started", "daemon.stopped", "bundle.installed", "bundle.removed", "operator.acted"] },
] as const;

export type Family = (typeof families)[number]["id"];

const familyOf = new Map<string, Family>(families.flatMap((f) => f.kinds.map((kind) => [kind, f.id] as const)));
export const family = (kind: string): Family => familyOf.get(kind) ?? "house";

type Body = Record<string, unknown>;
const body = (e: Entry): Body => (typeof e.body === "object" && e.body !== null ? (e.body as Body) : {});

// spent returns the tokens, also cached ones, and the cost of a model call in millionths of a dollar.
export function spent(entry: Entry): { tokens: number; cost: number } {
  const b = body(entry) as Record<string, number>;
  return {
    tokens: (b.input_tokens ?? 0) + (b.output_tokens ?? 0) + (b.cache_read_tokens ?? 0) + (b.cache_write_tokens ?? 0),
    cost: b.cost_micros ?? 0,
  };
}

function word(value: unknown): string {
  if (value === undefined || value === null || value === "" || value === false) return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}
const words = (...all: unknown[]) => all.map(word).filter(Boolean).join(" ");

const known: Record<string, (b: Body) => string> = {
  decision: (b) => words(b.allowed ? "allowed" : "denied", b.action, b.resource),
  "approval.asked": (b) => words(b.action, b.resource, b.approval),
  "approval.answered": (b) => words(b.verdict ?? b.answer, b.approval, b.by && `by ${word(b.by)}`),
  "llm.called": (b) => [word(b.served ?? b.model), word(b.outcome), of(Number(b.input_tokens ?? 0) + Number(b.output_tokens ?? 0), "token"), `cost ${cost(Number(b.cost_micros ?? 0))}`, b.took_ms !== undefined && took(Number(b.took_ms) * 1e6)].filter(Boolean).join(", "),
  egress: (b) => words(b.allowed === false ? "denied" : (b.verdict ?? b.outcome ?? ""), b.method, b.host ?? b.address, b.path, typeof b.bytes_out === "number" && `${bytes(b.bytes_out)} out`),
  "run.started": (b) => words(b.goal, b.state),
  "run.moved": (b) => words(b.from, "→", b.to ?? b.state, b.why, b.reason),
  "run.ended": (b) => words(b.from, "→", b.to ?? b.state ?? "ended", b.reason, b.error),
  "checkpoint.taken": (b) => words(b.checkpoint, `after ${of(Number(b.steps ?? 0), "step")}`, b.reason),
  "checkpoint.resumed": (b) => words(b.checkpoint),
  "daemon.started": (b) => words("version", b.version),
};

// sentence describes an entry in a line. It contains untrusted text: show it with Text.
export function sentence(e: Entry): string {
  const fields = body(e);
  const line = known[e.kind]?.(fields);
  if (line) return line;
  return Object.entries(fields)
    .filter(([name, value]) => name !== "record" && value !== null && value !== "" && value !== false)
    .map(([name, value]) => `${name}: ${word(value)}`)
    .join(", ");
}

// wrong reports whether an entry is about a denial or a failure.
export function wrong(e: Entry): boolean {
  const b = body(e);
  return b.allowed === false || e.kind === "secret.refused" || e.kind === "jail.failed" || e.kind === "approval.expired" || b.outcome === "failed" || b.outcome === "refused" || b.state === "failed";
}

export interface Tree {
  entry: Entry;
  children: Tree[];
}

// forest puts entries below their causes. An entry whose cause is not in the list is a root.
export function forest(entries: Entry[]): Tree[] {
  const nodes = new Map<number, Tree>();
  const roots: Tree[] = [];
  for (const entry of [...entries].sort((a, b) => a.seq - b.seq)) {
    const node = { entry, children: [] };
    nodes.set(entry.seq, node);
    (nodes.get(entry.parent)?.children ?? roots).push(node);
  }
  return roots;
}
