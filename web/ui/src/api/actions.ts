// The actions on a jail and the states in which the daemon allows them.
import { confirm } from "../lib/confirm.svelte";
import { router } from "../lib/router.svelte";
import { attempt, toasts } from "../lib/toasts.svelte";
import type { IconName } from "../ui/Icon.svelte";
import { post, remove } from "./client";
import { jails, type Jail } from "./jails.svelte";
import { me } from "./me.svelte";

export interface Action {
  id: string;
  label: string;
  icon: IconName;
  danger?: boolean;
  can: (jail: Jail) => boolean; // whether its state allows the action
  run: (jail: Jail) => Promise<unknown>;
}

const named = (jail: Jail) => jail.name || jail.id;
const is = (...states: Jail["state"][]) => (jail: Jail) => states.includes(jail.state);

// change returns an action whose request returns the updated jail.
function change(what: string, done: string, run: (jail: Jail) => Promise<Jail>): (jail: Jail) => Promise<unknown> {
  return (jail) => attempt(`${what} ${named(jail)}`, async () => jails.put(await run(jail)), `${named(jail)} ${done}`);
}

const actions: Action[] = [
  { id: "start", label: "Start", icon: "play", can: is("created", "stopped", "failed"),
    run: change("Starting", "started", (jail) => post("/jails/{id}/start", { path: { id: jail.id } })) },
  { id: "resume", label: "Resume", icon: "play", can: is("paused"),
    run: change("Resuming", "resumed", (jail) => post("/jails/{id}/resume", { path: { id: jail.id } })) },
  { id: "pause", label: "Pause", icon: "pause", can: is("running"),
    run: change("Pausing", "paused", (jail) => post("/jails/{id}/pause", { path: { id: jail.id } })) },
  { id: "stop", label: "Stop", icon: "stop", can: is("running", "paused"),
    run: change("Stopping", "stopped", (jail) => post("/jails/{id}/stop", { path: { id: jail.id } })) },
  { id: "snapshot", label: "Take snapshot", icon: "camera", can: is("running", "paused", "stopped"), run: snapshot },
  { id: "branch", label: "Branch", icon: "branch", can: is("running", "paused", "stopped"), run: branch },
  { id: "delete", label: "Delete", icon: "remove", danger: true, can: () => true, run: destroy },
];

// possible returns the actions that the state of the jail and the role of the user allow.
export function possible(jail: Jail): Action[] {
  return me.may("operator") ? actions.filter((action) => action.can(jail)) : [];
}

function snapshot(jail: Jail): Promise<unknown> {
  return attempt(`Taking a snapshot of ${named(jail)}`, async () => {
    const taken = await post("/jails/{id}/snapshot", { path: { id: jail.id } });
    toasts.say(`Snapshot ${taken.name || taken.id} of ${named(jail)} taken`);
  });
}

function branch(jail: Jail): Promise<unknown> {
  return attempt(`Branching ${named(jail)}`, async () => {
    const made = await post("/jails/{id}/branch", { path: { id: jail.id }, body: { count: 1 } });
    for (const one of made.jails) jails.put(one);
    const first = made.jails[0];
    if (!first) return;
    toasts.say(`Created ${named(first)}, a branch of ${named(jail)}`);
    router.go(`/jails/${first.id}`);
  });
}

async function destroy(jail: Jail): Promise<boolean> {
  const sure = await confirm.ask({
    title: `Delete ${named(jail)}?`,
    text: "This kills its processes and deletes its files and event log. Its snapshots are kept.",
    does: "Delete",
    danger: true,
  });
  if (!sure) return false;
  return attempt(`Deleting ${named(jail)}`, async () => {
    await remove("/jails/{id}", { path: { id: jail.id } });
    jails.put(jail, true);
  }, `${named(jail)} deleted`);
}
