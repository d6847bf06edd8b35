// The tree of a run: its steps, checkpoints and child runs in order of time, with the audit
// log entries of each step as its children.
import type { Checkpoint, Run, Step } from "../../api/runs";
import { millis } from "../../lib/format";
import { forest, spent, type Entry, type Tree } from "../chain/entry";

export type Item =
  | { type: "step"; id: string; at: number; step: Step; children: Item[] }
  | { type: "entry"; id: string; at: number; entry: Entry; children: Item[] }
  | { type: "checkpoint"; id: string; at: number; checkpoint: Checkpoint; children: Item[] }
  | { type: "run"; id: string; at: number; run: Run; children: Item[] };

export interface Row {
  item: Item;
  depth: number;
}

// Kinds of entries that duplicate steps or checkpoints.
const duplicates = new Set(["run.started", "checkpoint.taken"]);

// The end of a step is recorded some milliseconds after its effects.
const slack = 250;

export function itemsOf(steps: Step[], entries: Entry[], checkpoints: Checkpoint[], below: Run[]): Item[] {
  const items: Item[] = [
    ...steps.map((step): Item => ({ type: "step", id: `s${step.n}`, at: millis(step.began), step, children: [] })),
    ...checkpoints.map((checkpoint): Item => ({ type: "checkpoint", id: checkpoint.id, at: millis(checkpoint.at), checkpoint, children: [] })),
    ...below.map((run): Item => ({ type: "run", id: run.id, at: millis(run.created), run, children: [] })),
  ];
  for (const tree of forest(entries).flatMap(shown)) {
    const item = itemOf(tree);
    const owner = ownerOf(steps, tree.entry);
    const step = owner && items.find((i) => i.type === "step" && i.step === owner);
    (step?.children ?? items).push(item);
  }
  const order = (list: Item[]) => list.sort((a, b) => a.at - b.at).forEach((item) => order(item.children));
  order(items);
  return items;
}

// shown removes duplicate entries and keeps their effects.
function shown(tree: Tree): Tree[] {
  return duplicates.has(tree.entry.kind) ? tree.children.flatMap(shown) : [tree];
}

function itemOf(tree: Tree): Item {
  return { type: "entry", id: `e${tree.entry.seq}`, at: millis(tree.entry.time), entry: tree.entry, children: tree.children.flatMap(shown).map(itemOf) };
}

// ownerOf returns the step that caused an entry: an active step of the matching kind. The
// audit log has no step numbers.
function ownerOf(steps: Step[], entry: Entry): Step | undefined {
  if (entry.kind.startsWith("run.") || entry.kind.startsWith("session.") || entry.kind.startsWith("budget.")) return undefined;
  const at = millis(entry.time);
  const model = entry.kind === "llm.called";
  const action = (entry.body as { action?: unknown } | null)?.action;
  const open = steps.filter((s) => (s.kind === "model") === model && millis(s.began) <= at + 5 && (!s.ended || at <= millis(s.ended) + slack));
  return open.findLast((s) => s.name === action || s.name === entry.capability) ?? open.at(-1);
}

// rowsOf lists the visible rows of a tree. Items are collapsed unless they are in opened.
export function rowsOf(items: Item[], opened: ReadonlySet<string>, depth = 0): Row[] {
  return items.flatMap((item) => [{ item, depth }, ...(opened.has(item.id) ? rowsOf(item.children, opened, depth + 1) : [])]);
}

// spentBy sums the tokens and costs of the model calls of a step.
export function spentBy(item: Item): { tokens: number; cost: number } {
  const sum = { tokens: 0, cost: 0 };
  const add = (one: Item) => {
    if (one.type === "entry" && one.entry.kind === "llm.called") {
      const { tokens, cost } = spent(one.entry);
      sum.tokens += tokens;
      sum.cost += cost;
    }
    one.children.forEach(add);
  };
  add(item);
  return sum;
}

// modelOf returns the model that answered a step, if the audit log has it.
export function modelOf(item: Item): string {
  if (item.type === "entry" && item.entry.kind === "llm.called") {
    const b = item.entry.body as { served?: string; model?: string };
    return b.served || b.model || "";
  }
  for (const child of item.children) {
    const found = modelOf(child);
    if (found) return found;
  }
  return "";
}

export interface Bar {
  left: number; // in percent of the whole time
  width: number;
}

// barOf returns the position of a step in the waterfall of the time from begin to end.
export function barOf(item: Item, begin: number, end: number, now: number): Bar | undefined {
  if (item.type !== "step" || end <= begin) return undefined;
  const from = Math.max(0, (item.at - begin) / (end - begin));
  const to = Math.min(1, ((item.step.ended ? millis(item.step.ended) : now) - begin) / (end - begin));
  return { left: from * 100, width: Math.max(0, to - from) * 100 };
}
