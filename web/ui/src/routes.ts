import type { Route } from "./lib/router.svelte";
import type { IconName } from "./ui/Icon.svelte";

// routes lists every page. The code of a page is loaded when the page is opened.
export const routes: Route[] = [
  { pattern: "/", title: "Overview", nav: "overview", view: () => import("./views/overview/Overview.svelte") },
  { pattern: "/jails", title: "Jails", nav: "jails", view: () => import("./views/jails/Jails.svelte") },
  { pattern: "/jails/:id", title: "Jail", nav: "jails", view: () => import("./views/jail/Jail.svelte") },
  { pattern: "/snapshots", title: "Snapshots", nav: "snapshots", view: () => import("./views/lineage/Snapshots.svelte") },
  { pattern: "/snapshots/:id", title: "Snapshot", nav: "snapshots", view: () => import("./views/lineage/Lineage.svelte") },
  { pattern: "/lineage", title: "Lineage", nav: "snapshots", view: () => import("./views/lineage/Lineage.svelte") },
  { pattern: "/approvals", title: "Approvals", nav: "approvals", view: () => import("./views/approvals/Approvals.svelte") },
  { pattern: "/approvals/:id", title: "Approval", nav: "approvals", view: () => import("./views/approvals/Approvals.svelte") },
  { pattern: "/chat/run", title: "Agent runs", nav: "runs", view: () => import("./views/runs/Runs.svelte") },
  { pattern: "/chat/run/:id", title: "Agent run", nav: "runs", view: () => import("./views/runs/Run.svelte") },
  { pattern: "/chat/session", title: "Sessions", nav: "runs", view: () => import("./views/runs/Sessions.svelte") },
  { pattern: "/chat/session/:id", title: "Session", nav: "runs", view: () => import("./views/runs/Session.svelte") },
  { pattern: "/schedules", title: "Schedules", nav: "runs", view: () => import("./views/runs/Schedules.svelte") },
  { pattern: "/schedules/:id", title: "Schedule", nav: "runs", view: () => import("./views/runs/Schedules.svelte") },
  { pattern: "/connectors", title: "Connectors", nav: "runs", view: () => import("./views/runs/Connectors.svelte") },
  { pattern: "/governance", title: "Policy", nav: "policy", view: () => import("./views/governance/Governance.svelte") },
  { pattern: "/egress", title: "Egress", nav: "egress", view: () => import("./views/governance/EgressPage.svelte") },
  { pattern: "/capabilities", title: "Capabilities", nav: "extensions", view: () => import("./views/capabilities/Capabilities.svelte") },
  { pattern: "/capabilities/:id", title: "Capability", nav: "extensions", view: () => import("./views/capabilities/Capability.svelte") },
  { pattern: "/skills", title: "Skills", nav: "extensions", view: () => import("./views/capabilities/Skills.svelte") },
  { pattern: "/skills/:name", title: "Skill", nav: "extensions", view: () => import("./views/capabilities/Skills.svelte") },
  { pattern: "/bundles", title: "Bundles", nav: "extensions", view: () => import("./views/capabilities/Bundles.svelte") },
  { pattern: "/publishers", title: "Publishers", nav: "extensions", view: () => import("./views/capabilities/Publishers.svelte") },
  { pattern: "/chain", title: "Audit log", nav: "chain", view: () => import("./views/chain/Chain.svelte") },
  { pattern: "/chain/:seq", title: "Audit log", nav: "chain", view: () => import("./views/chain/Chain.svelte") },
  { pattern: "/doctor", title: "System", nav: "system", view: () => import("./views/health/Health.svelte") },
];

export interface Place {
  id: string;
  label: string;
  icon: IconName;
  address: string;
  key: string; // pressed after g
  more?: boolean; // on phones, in the menu More instead of the bar
}

// places lists the entries of the navigation. On a phone Approvals comes first, because
// answering approval requests is the main use of the UI there.
export const places: Place[] = [
  { id: "overview", label: "Overview", icon: "overview", address: "/", key: "o" },
  { id: "jails", label: "Jails", icon: "jails", address: "/jails", key: "j" },
  { id: "snapshots", label: "Snapshots", icon: "camera", address: "/snapshots", key: "s", more: true },
  { id: "approvals", label: "Approvals", icon: "approvals", address: "/approvals", key: "a" },
  { id: "runs", label: "Agent runs", icon: "runs", address: "/chat/run", key: "r" },
  { id: "policy", label: "Policy", icon: "policy", address: "/governance", key: "p", more: true },
  { id: "egress", label: "Egress", icon: "out", address: "/egress", key: "e", more: true },
  { id: "extensions", label: "Extensions", icon: "capabilities", address: "/capabilities", key: "x", more: true },
  { id: "chain", label: "Audit log", icon: "chain", address: "/chain", key: "l", more: true },
  { id: "system", label: "System", icon: "health", address: "/doctor", key: "y", more: true },
];

// pages lists the pages below the entries of the navigation, for the command palette.
export const pages: { label: string; of: string; icon: IconName; address: string }[] = [
  { label: "Lineage", of: "Snapshots", icon: "lineage", address: "/lineage" },
  { label: "Settled approvals", of: "Approvals", icon: "approvals", address: "/approvals?state=settled" },
  { label: "Sessions", of: "Agent runs", icon: "runs", address: "/chat/session" },
  { label: "Schedules", of: "Agent runs", icon: "runs", address: "/schedules" },
  { label: "Connectors", of: "Agent runs", icon: "runs", address: "/connectors" },
  { label: "Policy test", of: "Policy", icon: "policy", address: "/governance?view=explore" },
  { label: "Policies", of: "Policy", icon: "policy", address: "/governance?view=policy" },
  { label: "Secrets", of: "Policy", icon: "policy", address: "/governance?view=secrets" },
  { label: "Budgets", of: "Policy", icon: "policy", address: "/governance?view=budgets" },
  { label: "Capabilities", of: "Extensions", icon: "capabilities", address: "/capabilities" },
  { label: "Skills", of: "Extensions", icon: "capabilities", address: "/skills" },
  { label: "Bundles and market", of: "Extensions", icon: "capabilities", address: "/bundles" },
  { label: "Publishers", of: "Extensions", icon: "capabilities", address: "/publishers" },
  { label: "Host features", of: "System", icon: "health", address: "/doctor" },
  { label: "Fleet", of: "System", icon: "health", address: "/doctor?view=fleet" },
  { label: "Event gaps", of: "System", icon: "health", address: "/doctor?view=records" },
  { label: "Storage", of: "System", icon: "health", address: "/doctor?view=storage" },
  { label: "Deliveries", of: "System", icon: "health", address: "/doctor?view=deliveries" },
  { label: "Access", of: "System", icon: "health", address: "/doctor?view=access" },
];
