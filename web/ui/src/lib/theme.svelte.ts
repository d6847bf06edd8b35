// The color theme: that of the system, unless the user selects another.
export type Theme = "system" | "light" | "dark";

const place = "glasshouse.theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");

class Choice {
  chosen = $state<Theme>(read());
  #system = $state(system.matches);
  dark = $derived(this.chosen === "dark" || (this.chosen === "system" && this.#system));

  constructor() {
    system.addEventListener("change", () => {
      this.#system = system.matches;
      this.show();
    });
    this.show();
  }

  choose(theme: Theme): void {
    this.chosen = theme;
    try {
      localStorage.setItem(place, theme);
    } catch {
      // Without storage the selection lasts until the page is closed.
    }
    this.show();
  }

  show(): void {
    document.documentElement.dataset.theme = this.dark ? "dark" : "light";
  }
}

function read(): Theme {
  try {
    const kept = localStorage.getItem(place);
    return kept === "light" || kept === "dark" ? kept : "system";
  } catch {
    return "system"; // storage is blocked
  }
}

export const theme = new Choice();
