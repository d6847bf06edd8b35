import { notices } from "../lib/notices.svelte";
import { router } from "../lib/router.svelte";
import { visible } from "../lib/visible";
import { get, type Schema } from "./client";
import { feed, type FeedEvent } from "./feed.svelte";

export type Approval = Schema["Approval"];

// What waits for a person. It is one list for the whole page: the rail counts
// it, the inbox shows it.
class Pending {
  list = $state.raw<Approval[]>([]);
  known = $state(false); // whether the list has been read

  start(): () => void {
    const ends = [
      feed.on<FeedEvent>("approval", ({ approval }) => approval && this.#put(approval)),
      feed.renewed(() => void this.read()),
    ];
    void this.read();
    return () => ends.forEach((end) => end());
  }

  async read(): Promise<void> {
    try {
      this.list = (await get("/approvals")).items;
      this.known = true;
    } catch {
      // The feed says that the daemon is away, and reads again when it is back.
    }
  }

  #put(approval: Approval): void {
    if (approval.state === "pending" && !this.list.some((a) => a.id === approval.id)) {
      notices.say(approval.id, visible(approval.title), visible(approval.what), () => router.go(`/approvals/${approval.id}`));
    }
    const others = this.list.filter((a) => a.id !== approval.id);
    this.list = approval.state === "pending" ? [...others, approval].sort((a, b) => a.created_at.localeCompare(b.created_at)) : others;
  }
}

export const pending = new Pending();
