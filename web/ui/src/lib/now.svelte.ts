import { createSubscriber } from "svelte/reactivity";

// The time, for what says how long ago something was. It ticks only while
// somebody looks at it.
const watch = createSubscriber((update) => {
  const timer = setInterval(update, 1000);
  return () => clearInterval(timer);
});

export function now(): number {
  watch();
  return Date.now();
}
