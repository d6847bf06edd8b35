import { expect, it } from "vitest";

import type { Entry } from "../chain/entry";
import { totals } from "./last";

const entry = (seq: number, kind: string, body: object) => ({ seq, kind, body }) as unknown as Entry;

it("counts denials with their repeats, and the cost of model calls", () => {
  const sum = totals(
    [
      entry(7, "egress", { allowed: false, repeats: 4 }),
      entry(6, "llm.called", { cost_micros: 1200, input_tokens: 100, output_tokens: 20 }),
      entry(5, "decision", { allowed: true }),
      entry(4, "decision", { allowed: false }),
      entry(3, "secret.refused", {}),
      entry(2, "egress", { allowed: true }),
      entry(1, "llm.called", { cost_micros: 300 }),
    ],
    false,
  );
  expect(sum).toMatchObject({ denied: 7, byEgress: 5, byPolicy: 1, bySecret: 1, cost: 1500, calls: 2, tokens: 120, partial: false });
  expect(sum.latest.map((e) => e.seq)).toEqual([7, 4, 3]);
});

it("counts cached tokens of model calls, as on the page of a run", () => {
  expect(totals([entry(1, "llm.called", { input_tokens: 1, output_tokens: 2, cache_read_tokens: 30, cache_write_tokens: 400 })], false).tokens).toBe(433);
});
