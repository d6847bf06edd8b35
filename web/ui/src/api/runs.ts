// Sessions and their runs, and what can be done with a run, and when: the same
// table as the daemon's.
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

// What a run that is paused waits for, in words.
const waits: Record<NonNullable<Run["why"]>, string> = {
  approval: "for a person's answer",
  checkpoint: "since a checkpoint was taken, to be resumed",
  schedule: "for its time",
  event: "for a message",
  budget: "for more to spend",
  watchdog: "for somebody to look: the watchdog stopped it",
  operator: "for whoever paused it",
};

export function waitsFor(run: Run): string {
  if (run.state === "scheduled") return "for its time";
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

// A viewer is offered nothing that the daemon would refuse.
const all: RunAction[] = [
  { id: "resume", label: "Resume", icon: "play", can: is("paused"),
    run: (run) => attempt(`Resuming ${named(run)}`, () => post("/chat/run/{run}/resume", { path: { run: run.id } }), "The run goes on") },
  { id: "pause", label: "Pause", icon: "pause", can: is("active"),
    run: (run) => attempt(`Pausing ${named(run)}`, () => post("/chat/run/{run}/pause", { path: { run: run.id } }), "The run waits") },
  { id: "checkpoint", label: "Checkpoint", icon: "camera", can: is("active", "paused"),
    run: (run) => attempt(`A checkpoint of ${named(run)}`, () => post("/chat/run/{run}/checkpoint", { path: { run: run.id } }), "A checkpoint is taken") },
  { id: "cancel", label: "Cancel", icon: "stop", danger: true, can: (run) => !over(run), run: cancel },
];

export function runActions(run: Run): RunAction[] {
  return me.may("operator") ? all.filter((a) => a.can(run)) : [];
}

async function cancel(run: Run): Promise<boolean> {
  const scheduled = run.state === "scheduled" && run.schedule;
  const sure = await confirm.ask({
    title: scheduled ? "End the schedule?" : "Cancel the run?",
    text: scheduled
      ? `${named(run)} waits for its schedule. To cancel it is to remove the schedule: it makes no more runs. Those that it has made stay.`
      : `${named(run)} ends, with all runs that are a part of it, and never goes on. What is under way in its jail is stopped. Its journal and its checkpoints stay: other runs can begin from them.`,
    does: scheduled ? "End the schedule" : "Cancel the run",
    danger: true,
  });
  if (!sure) return false;
  return attempt(`Cancelling ${named(run)}`, () => post("/chat/run/{run}/cancel", { path: { run: run.id } }), "The run is cancelled");
}

// followSession tells what happens in a session, from its first event on. What it
// returns ends it.
export function followSession(session: string, happened: (event: RunEvent) => void, state: (state: Following) => void = () => {}): () => void {
  return follow(place("/chat/events/{session}", { session }), {
    onMessage: (message) => happened(JSON.parse(message.data) as RunEvent),
    onState: state,
  });
}

// soon runs something once after what happens together has happened.
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
