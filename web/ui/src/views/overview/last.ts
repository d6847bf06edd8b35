// Totals of the last 24 hours, from the audit log.
import { get } from "../../api/client";
import { Problem } from "../../api/problem";
import { spent, wrong, type Entry } from "../chain/entry";

const span = 24 * 3600_000;
const page = 1000;
const most = 10; // pages; then the totals are lower bounds

export interface Totals {
  denied: number;
  byPolicy: number; // denied decisions
  byEgress: number; // denied connections and requests
  bySecret: number; // refused secrets
  latest: Entry[]; // the latest denials, newest first
  cost: number; // of model calls, in millionths of a dollar
  calls: number;
  tokens: number;
  partial: boolean; // there are more entries than were read
}

// totals adds entries, newest first, to totals.
export function totals(entries: Entry[], partial: boolean): Totals {
  const sum: Totals = { denied: 0, byPolicy: 0, byEgress: 0, bySecret: 0, latest: [], cost: 0, calls: 0, tokens: 0, partial };
  for (const entry of entries) {
    if (entry.kind === "llm.called") {
      const { tokens, cost } = spent(entry);
      sum.calls++;
      sum.cost += cost;
      sum.tokens += tokens;
      continue;
    }
    if (!wrong(entry)) continue;
    // An egress entry stands for equal ones that followed it.
    const n = 1 + Number((entry.body as { repeats?: number } | null)?.repeats ?? 0);
    sum.denied += n;
    if (entry.kind === "decision") sum.byPolicy += n;
    else if (entry.kind === "egress") sum.byEgress += n;
    else sum.bySecret += n;
    if (sum.latest.length < 6) sum.latest.push(entry);
  }
  return sum;
}

// lastDay returns the totals, or undefined if the audit log is disabled.
export async function lastDay(): Promise<Totals | undefined> {
  const from = new Date(Date.now() - span).toISOString();
  const entries: Entry[] = [];
  try {
    for (let after: number | undefined, pages = 1; ; pages++) {
      const got = await get("/chain", { query: { kind: "decision,egress,secret.refused,llm.called", newest: true, from, limit: page, after } });
      entries.push(...got.items);
      if (!got.next || pages === most) return totals(entries, Boolean(got.next));
      after = Number(got.next);
    }
  } catch (thrown) {
    if (Problem.from(thrown).status === 501) return undefined;
    throw thrown;
  }
}
