import { get, type Schema } from "./client";

type Role = Schema["Me"]["role"];
const rank: Record<Role, number> = { viewer: 0, operator: 1, admin: 2 };

// Who looks at the page, so that it offers nobody what the daemon would refuse.
// It is the daemon that refuses.
class Me {
  #who = $state.raw<Schema["Me"]>();
  #asked = false;

  // who is read when it is first wanted.
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

  // forget is for when somebody else may have logged in.
  forget(): void {
    this.#asked = false;
    this.#who = undefined;
  }
}

export const me = new Me();
