// Sessions and runs; the actions on a run and the states in which the daemon allows them.
import { confirm } from "../lib/confirm.svelte";
import { attempt } from "../lib/toasts.svelte";
import { visible } from "../lib/visible";
import type { IconName } from "../ui/Icon.svelte";
import { place, post, type Schema } from "./client";
import { follow, type Following } from "./follow";
import { me } from "./me.svelte";

export type Run = Schema["Run"];
export type Session = Schema["Session"];
export type Message = Schema["Message"];
export type Step = Schema["RunAction"];
export type Checkpoint = Schema["Checkpoint"];
export type RunEvent = Schema["RunEvent"];

export const over = (run: Run) => run.state === "done" || run.state === "failed" || run.state === "cancelled";

// waits says why a run is paused, or what it waits for.
const waits: Record<NonNullable<Run["why"]>, string> = {
  approval: "for approval",
  checkpoint: "after a checkpoint, until resumed",
  schedule: "for its scheduled time",
  event: "for a message",
  budget: "for more budget",
  watchdog: "for review: the watchdog stopped it",
  operator: "by an operator",
};

export function waitsFor(run: Run): string {
  if (run.state === "scheduled") return "for its scheduled time";
  return run.state === "paused" && run.why ? waits[run.why] : "";
}

export interface RunAction {
  id: string;
  label: string;
  icon: IconName;
  danger?: boolean;
  can: (run: Run) => boolean;
  run: (run: Run) => Promise<unknown>;
}

const is = (...states: Run["state"][]) => (run: Run) => states.includes(run.state);
const named = (run: Run) => `“${visible(run.goal).slice(0, 60)}”`;

// The daemon rejects these actions for viewers, so the UI hides them.
const all: RunAction[] = [
  { id: "resume", label: "Resume", icon: "play", can: is("paused"),
    run: (run) => attempt(`Resuming ${named(run)}`, () => post("/chat/run/{run}/resume", { path: { run: run.id } }), "Run resumed") },
  { id: "pause", label: "Pause", icon: "pause", can: is("active"),
    run: (run) => attempt(`Pausing ${named(run)}`, () => post("/chat/run/{run}/pause", { path: { run: run.id } }), "Run paused") },
  { id: "checkpoint", label: "Checkpoint", icon: "camera", can: is("active", "paused"),
    run: (run) => attempt(`Taking a checkpoint of ${named(run)}`, () => post("/chat/run/{run}/checkpoint", { path: { run: run.id } }), "Checkpoint taken") },
  { id: "cancel", label: "Cancel", icon: "stop", danger: true, can: (run) => !over(run), run: cancel },
];

export function runActions(run: Run): RunAction[] {
  return me.may("operator") ? all.filter((a) => a.can(run)) : [];
}

async function cancel(run: Run): Promise<boolean> {
  const scheduled = run.state === "scheduled" && run.schedule;
  const sure = await confirm.ask({
    title: scheduled ? "Delete the schedule?" : "Cancel the run?",
    text: scheduled
      ? `${named(run)} waits for its schedule. Cancelling it deletes the schedule, which then starts no more runs. Existing runs are kept.`
      : `${named(run)} and its child runs end and cannot be resumed. Commands that run in its jail are stopped. Its step log and checkpoints are kept; new runs can start from them.`,
    does: scheduled ? "Delete schedule" : "Cancel run",
    danger: true,
  });
  if (!sure) return false;
  return attempt(`Cancelling ${named(run)}`, () => post("/chat/run/{run}/cancel", { path: { run: run.id } }), "Run cancelled");
}

// followSession reads the events of a session from the first one. The returned function
// closes the stream.
export function followSession(session: string, happened: (event: RunEvent) => void, state: (state: Following) => void = () => {}): () => void {
  return follow(place("/chat/events/{session}", { session }), {
    onMessage: (message) => happened(JSON.parse(message.data) as RunEvent),
    onState: state,
  });
}

// soon debounces a function: several requests within ms call it once.
export function soon(ms: number, run: () => void): { ask: () => void; stop: () => void } {
  let timer = 0;
  return {
    ask: () => {
      timer ||= window.setTimeout(() => {
        timer = 0;
        run();
      }, ms);
    },
    stop: () => clearTimeout(timer),
  };
}
