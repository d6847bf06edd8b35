import { expect, it } from "vitest";

import type { Timeline } from "../../api/record";
import { lives, type Process } from "./lives";

const process = (pid: number, comm: string, second: number, more: Partial<Process> = {}): Process =>
  ({ pid, comm, began: `2026-01-02T00:00:0${second}Z`, begin_ns: second, state: "exited", exit_code: 0, ...more }) as Process;
const data = { from: 0, step: 1, buckets: 0, counts: {}, lanes: [{ pid: 3, total: 40 }, { pid: 5, total: 9 }] } as unknown as Timeline;

it("groups the processes of a program, and orders the rows by their start", () => {
  const found = lives([process(5, "sed", 4), process(1, "init", 0), process(3, "bash", 1), process(4, "sed", 2, { exit_code: 2 })], data, false, 10);
  expect(found.rows.map((r) => [r.comm, r.processes.map((p) => p.pid), r.events, r.failed])).toEqual([
    ["bash", [3], 40, 0],
    ["sed", [4, 5], 9, 1],
  ]);
  expect(found.more).toBe(0);
});

it("keeps the rows with the most events, and counts the others", () => {
  const all = [process(2, "ls", 1), process(3, "bash", 2), process(5, "sed", 3), process(1, "init", 0)];
  expect(lives(all, data, true, 2)).toMatchObject({ rows: [{ comm: "bash" }, { comm: "sed" }], more: 2 });
});
