import { get, type Schema } from "./client";

type Role = Schema["Me"]["role"];
const rank: Record<Role, number> = { viewer: 0, operator: 1, admin: 2 };

// The current user. The UI hides actions that the role does not allow; the daemon enforces
// the permissions.
class Me {
  #who = $state.raw<Schema["Me"]>();
  #asked = false;

  // The getter loads the user on first use.
  get who(): Schema["Me"] | undefined {
    if (!this.#asked) {
      this.#asked = true;
      get("/me").then((who) => (this.#who = who), () => (this.#asked = false));
    }
    return this.#who;
  }

  may(role: Role): boolean {
    const who = this.who;
    return who !== undefined && rank[who.role] >= rank[role];
  }

  // forget resets the user, for example after a logout.
  forget(): void {
    this.#asked = false;
    this.#who = undefined;
  }
}

export const me = new Me();
