// What an approved action can change, as far as the daemon knows: sentences for the person who
// answers.
import type { Jail } from "../../api/jails.svelte";
import type { Approval } from "../../api/pending.svelte";

const titles: Record<string, string> = {
  bash: "Run a command", edit: "Change a file", write: "Change a file", read: "Read a file", webfetch: "Fetch a web page", connect: "Open a network connection", exec: "Start a program",
};

// heading names the action without the ids that the details list.
export function heading(approval: Approval): string {
  return titles[approval.question.action] ?? approval.title;
}

const networks: Record<Jail["network"], string> = {
  isolated: "The jail has no network access.",
  proxy: "The jail reaches the hosts that its egress rules allow.",
  bridged: "The jail reaches the other jails of its network group.",
  full: "The jail has unrestricted network access.",
};

export function impact(approval: Approval, jail: Jail | undefined): string[] {
  const said: string[] = [];
  const action = approval.question.action;
  if (jail) {
    if (action === "connect" || action === "webfetch") said.push("Data can leave the jail.");
    else said.push(`The action runs in the jail ${jail.name || jail.id}, not on this host.`);
    if (action !== "read") said.push(networks[jail.network]);
    const mounted = jail.mounts?.some((m) => m.write);
    if (jail.workspace) said.push("Changes of the workspace stay in the jail until you apply them.");
    if (mounted) said.push("The jail can write to directories of this host that are mounted.");
  }
  if (approval.tier === "elevated") said.push("The request is elevated: type the confirmation phrase, or let a second person approve it too.");
  said.push("Without an answer the request is denied when it expires.");
  return said;
}
