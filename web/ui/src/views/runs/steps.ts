// What a run did as a tree: its steps, its checkpoints and the runs below it in
// their order, and below a step what the causal chain has of it.
import type { Checkpoint, Run, Step } from "../../api/runs";
import { millis } from "../../lib/format";
import { forest, type Entry, type Tree } from "../chain/entry";

export type Item =
  | { type: "step"; id: string; at: number; step: Step; children: Item[] }
  | { type: "entry"; id: string; at: number; entry: Entry; children: Item[] }
  | { type: "checkpoint"; id: string; at: number; checkpoint: Checkpoint; children: Item[] }
  | { type: "run"; id: string; at: number; run: Run; children: Item[] };

export interface Row {
  item: Item;
  depth: number;
}

// What the steps and checkpoints say already.
const said = new Set(["run.started", "checkpoint.taken"]);

// A step ends when that is written down, which is a little after its effect was.
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

// shown leaves out what is said already, and keeps what it caused.
function shown(tree: Tree): Tree[] {
  return said.has(tree.entry.kind) ? tree.children.flatMap(shown) : [tree];
}

function itemOf(tree: Tree): Item {
  return { type: "entry", id: `e${tree.entry.seq}`, at: millis(tree.entry.time), entry: tree.entry, children: tree.children.flatMap(shown).map(itemOf) };
}

// ownerOf is the step that an entry came of: one that was under way, of the sort
// that makes such entries. The chain has no numbers of steps.
function ownerOf(steps: Step[], entry: Entry): Step | undefined {
  if (entry.kind.startsWith("run.") || entry.kind.startsWith("session.") || entry.kind.startsWith("budget.")) return undefined;
  const at = millis(entry.time);
  const model = entry.kind === "llm.called";
  const action = (entry.body as { action?: unknown } | null)?.action;
  const open = steps.filter((s) => (s.kind === "model") === model && millis(s.began) <= at + 5 && (!s.ended || at <= millis(s.ended) + slack));
  return open.findLast((s) => s.name === action || s.name === entry.capability) ?? open.at(-1);
}

// rowsOf lists what is shown of a tree. What is below is folded unless it was
// opened, but for what waits for a person.
export function rowsOf(items: Item[], opened: ReadonlySet<string>, depth = 0): Row[] {
  return items.flatMap((item) => [{ item, depth }, ...(opened.has(item.id) ? rowsOf(item.children, opened, depth + 1) : [])]);
}

// spentBy sums what the models of a step took.
export function spentBy(item: Item): { tokens: number; cost: number } {
  const sum = { tokens: 0, cost: 0 };
  const add = (one: Item) => {
    if (one.type === "entry" && one.entry.kind === "llm.called") {
      const b = one.entry.body as Record<string, number>;
      sum.tokens += (b.input_tokens ?? 0) + (b.output_tokens ?? 0) + (b.cache_read_tokens ?? 0) + (b.cache_write_tokens ?? 0);
      sum.cost += b.cost_micros ?? 0;
    }
    one.children.forEach(add);
  };
  add(item);
  return sum;
}
