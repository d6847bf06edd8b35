import { notices } from "../lib/notices.svelte";
import { router } from "../lib/router.svelte";
import { visible } from "../lib/visible";
import { Changes } from "./changes";
import { get, type Schema } from "./client";
import { feed, type FeedEvent } from "./feed.svelte";

export type Approval = Schema["Approval"];

// The pending approvals. The list is common to the page: the navigation shows its length,
// the inbox its entries.
class Pending {
  list = $state.raw<Approval[]>([]);
  known = $state(false); // whether the list has been read
  #changes = new Changes<Approval>();

  start(): () => void {
    const ends = [
      feed.on<FeedEvent>("approval", ({ approval }) => approval && this.#changed(approval)),
      feed.renewed(() => void this.read()),
    ];
    void this.read();
    return () => ends.forEach((end) => end());
  }

  async read(): Promise<void> {
    try {
      await this.#changes.during(get("/approvals"), ({ items }, changes) => {
        this.list = items;
        changes.forEach((approval) => this.#put(approval));
      });
      this.known = true;
    } catch {
      // The feed shows that the daemon is unreachable, and triggers another read later.
    }
  }

  #changed(approval: Approval): void {
    this.#changes.add(approval);
    if (approval.state === "pending" && !this.list.some((a) => a.id === approval.id)) {
      notices.say(approval.id, visible(approval.title), visible(approval.what), () => router.go(`/approvals/${approval.id}`));
    }
    this.#put(approval);
  }

  #put(approval: Approval): void {
    const others = this.list.filter((a) => a.id !== approval.id);
    this.list = approval.state === "pending" ? [...others, approval].sort((a, b) => a.created_at.localeCompare(b.created_at)) : others;
  }
}

export const pending = new Pending();
