import { createSubscriber } from "svelte/reactivity";

// The current time for relative times. It updates each second while an effect reads it.
const watch = createSubscriber((update) => {
  const timer = setInterval(update, 1000);
  return () => clearInterval(timer);
});

export function now(): number {
  watch();
  return Date.now();
}
