import { untrack } from "svelte";

// The keyboard shortcuts in effect. A view binds its keys while it is shown; the latest
// binding of a key wins.
export interface Binding {
  key: string; // "j", "?", "Escape", "Mod+k" (Ctrl or ⌘), or a sequence of two: "g j"
  says: string; // the description in the list of shortcuts
  run: () => void;
  group?: string;
}

class Keys {
  bindings = $state.raw<Binding[]>([]);
  #first = ""; // the first key of a sequence
  #forget = 0;

  constructor() {
    document.addEventListener("keydown", (event) => this.#press(event));
  }

  // bind adds bindings and returns a function that removes them. Use it in an effect.
  bind(...added: Binding[]): () => void {
    // untrack: an effect that binds keys must not run again when other keys are bound.
    this.bindings = [...untrack(() => this.bindings), ...added];
    return () => {
      this.bindings = untrack(() => this.bindings).filter((b) => !added.includes(b));
    };
  }

  #press(event: KeyboardEvent): void {
    if (event.defaultPrevented || event.altKey) return;
    if (event.ctrlKey || event.metaKey) {
      this.#combine(event);
      return;
    }
    // Text fields get typed characters. Dialogs handle their own keys.
    if (typing(event.target) && event.key !== "Escape") return;
    if (document.querySelector("dialog:modal")) return;

    const pressed = this.#first ? `${this.#first} ${event.key}` : event.key;
    this.#first = "";
    clearTimeout(this.#forget);
    const found = this.bindings.findLast((b) => b.key === pressed);
    if (found) {
      event.preventDefault();
      found.run();
      return;
    }
    if (this.bindings.some((b) => b.key.startsWith(`${pressed} `))) {
      this.#first = pressed;
      this.#forget = window.setTimeout(() => (this.#first = ""), 1500);
    }
  }

  // combine handles a key with Ctrl or ⌘, also in text fields. In a terminal Ctrl belongs to
  // the shell.
  #combine(event: KeyboardEvent): void {
    if (event.shiftKey || (event.ctrlKey && event.target instanceof HTMLElement && event.target.closest(".xterm"))) return;
    const found = this.bindings.findLast((b) => b.key === `Mod+${event.key.toLowerCase()}`);
    if (!found) return;
    event.preventDefault();
    found.run();
  }
}

// mac reports whether the modifier of shortcuts is ⌘.
export const mac = /Mac|iPhone|iPad/.test(navigator.platform);

function typing(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || target.matches("input:not([type=checkbox],[type=radio]), textarea, select") || target.closest(".xterm") !== null;
}

export const keys = new Keys();
