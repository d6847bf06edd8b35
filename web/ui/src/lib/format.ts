// The format of numbers and times, common to all pages.

const units = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(n: number | null | undefined): string {
  if (n == null) return "–";
  let unit = 0;
  while (Math.abs(n) >= 1024 && unit < units.length - 1) {
    n /= 1024;
    unit++;
  }
  return `${unit === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[unit]}`;
}

const grouped = new Intl.NumberFormat("en", { useGrouping: true });
export function count(n: number | null | undefined): string {
  return n == null ? "–" : grouped.format(n).replaceAll(",", "\u2009");
}

export function of(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

export function percent(fraction: number | null | undefined): string {
  if (fraction == null) return "–";
  const of100 = fraction * 100;
  return `${of100 >= 9.95 || of100 === 0 ? Math.round(of100) : of100.toFixed(1)} %`;
}

// took formats a duration in nanoseconds.
export function took(ns: number | null | undefined): string {
  if (ns == null) return "–";
  if (ns < 1e3) return `${Math.round(ns)} ns`;
  if (ns < 1e6) return `${digits(ns / 1e3)} µs`;
  if (ns < 1e9) return `${digits(ns / 1e6)} ms`;
  if (ns < 60e9) return `${digits(ns / 1e9)} s`;
  const s = Math.round(ns / 1e9);
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

function digits(n: number): string {
  return n >= 100 ? n.toFixed(0) : n >= 10 ? n.toFixed(1) : n.toFixed(2);
}

// ago formats the time from a moment to now.
export function ago(at: number | string | null | undefined, now = Date.now()): string {
  if (at == null) return "–";
  const s = Math.round((now - millis(at)) / 1000);
  if (s < 5 && s > -5) return "now";
  const abs = Math.abs(s);
  const words =
    abs < 60 ? `${abs} s` : abs < 3600 ? `${Math.floor(abs / 60)} min` : abs < 86400 ? `${Math.floor(abs / 3600)} h` : `${Math.floor(abs / 86400)} d`;
  return s >= 0 ? `${words} ago` : `in ${words}`;
}

export function millis(at: number | string): number {
  return typeof at === "number" ? at : Date.parse(at);
}

const pad = (n: number, width = 2) => String(n).padStart(width, "0");

// clock formats the local time of day, with milliseconds.
export function clock(at: number | string | undefined): string {
  if (at === undefined) return "–";
  const d = new Date(at);
  return `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}.${pad(d.getMilliseconds(), 3)}`;
}

export function day(at: number | string): string {
  const d = new Date(at);
  return `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())}`;
}

// stamp formats date, time and time zone.
export function stamp(at: number | string | null | undefined): string {
  if (at == null) return "–";
  const minutes = -new Date(at).getTimezoneOffset();
  const zone = `${minutes < 0 ? "-" : "+"}${pad(Math.floor(Math.abs(minutes) / 60))}:${pad(Math.abs(minutes) % 60)}`;
  return `${day(at)} ${clock(at)} ${zone}`;
}
