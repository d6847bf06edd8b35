// The rows of the life bars: processes over time. Short processes of the same program form one
// row, so that a burst of a hundred commands needs no hundred rows.
import type { Timeline } from "../../api/record";
import type { Schema } from "../../api/client";

export type Process = Schema["Process"];

export interface Life {
  comm: string;
  processes: Process[]; // in order of their start
  begin: number; // milliseconds
  events: number; // of its processes, as far as the timeline counts them
  failed: number; // processes that ended by a signal or with a code other than 0
}

export const failedProcess = (p: Process) => Boolean(p.signal) || (p.exit_code ?? 0) !== 0;

// beginOf returns the start of a process; 0 means before the event log.
export const beginOf = (p: Process) => (p.began && !p.existing ? Date.parse(p.began) : 0);

// lives returns at most `most` rows, the ones with the most events, in order of their start.
// Init is excluded unless init is set. The second result is the number of omitted rows.
export function lives(processes: Process[], data: Timeline, init: boolean, most: number): { rows: Life[]; more: number } {
  const counted = new Map(data.lanes.map((lane) => [lane.pid, lane.total]));
  const rows = new Map<string, Life>();
  for (const p of processes.toSorted((a, b) => beginOf(a) - beginOf(b))) {
    if (p.pid === 1 && !init) continue;
    const comm = p.comm || "–";
    const row = rows.get(comm) ?? { comm, processes: [], begin: beginOf(p), events: 0, failed: 0 };
    row.processes.push(p);
    row.events += counted.get(p.pid) ?? 0;
    row.failed += failedProcess(p) ? 1 : 0;
    rows.set(comm, row);
  }
  const all = [...rows.values()];
  const chosen = all.toSorted((a, b) => b.events - a.events || b.processes.length - a.processes.length).slice(0, most);
  return { rows: chosen.sort((a, b) => a.begin - b.begin), more: all.length - chosen.length };
}
