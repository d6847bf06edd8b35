// What is written can be read, in both themes: WCAG 2.2, 1.4.3 and 1.4.11.
import { describe, expect, it } from "vitest";

import tokens from "./tokens.css?raw";

const sources = import.meta.glob<string>(["../**/*.svelte", "../**/*.css", "!./tokens.css"], { query: "?raw", import: "default", eager: true });

const texts = ["ink", "soft", "link", "accent", "red", "amber", "green", "proc", "file", "net", "syscall", "gap", "lineage", "other"];
const grounds = ["ground", "card", "faint", "accent-soft", "red-soft", "amber-soft", "green-soft"];
// What is a shape and no text: dots, bars, frames of what one types in.
const shapes = ["edge", ...texts];
// Hairlines between what is apart anyway; shadows; what a dialog lays over a page.
const ornaments = ["line", "shade", "veil"];

type Theme = Record<string, string>;

function themes(): Record<"light" | "dark", Theme> {
  const [light = "", dark = ""] = tokens.split(':root[data-theme="dark"]');
  const read = (css: string): Theme => Object.fromEntries([...css.matchAll(/--([\w-]+):\s*(#[0-9a-f]{6,8})\b/g)].map((m) => [m[1], m[2]]));
  return { light: read(light), dark: read(dark) };
}

function luminance(colour: string): number {
  const [r = 0, g = 0, b = 0] = [1, 3, 5].map((at) => {
    const c = Number.parseInt(colour.slice(at, at + 2), 16) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(a: string, b: string): number {
  const [light = 0, dark = 0] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (light + 0.05) / (dark + 0.05);
}

// styles are all rules of the UI, each with what it says.
function styles(): { file: string; rule: string }[] {
  return Object.entries(sources).flatMap(([file, text]) => {
    const css = file.endsWith(".css") ? text : (/<style>([\s\S]*)<\/style>/.exec(text)?.[1] ?? "");
    return [...css.replaceAll(/\/\*[\s\S]*?\*\//g, "").matchAll(/\{([^{}]*)\}/g)].map((m) => ({ file, rule: m[1] ?? "" }));
  });
}

const inked = /(?:^|[\s;])color:\s*var\(--([\w-]+)\)/;
const laid = /background(?:-color)?:\s*var\(--([\w-]+)\)/;

it("knows how black and white contrast", () => {
  expect(contrast("#ffffff", "#000000")).toBeCloseTo(21, 5);
  expect(contrast("#777777", "#ffffff")).toBeCloseTo(4.48, 2);
});

it("has no colour in one theme that is missing in the other", () => {
  const { light, dark } = themes();
  expect(Object.keys(dark).sort()).toEqual(Object.keys(light).sort());
});

describe.each(Object.entries(themes()))("in the %s theme", (_, theme) => {
  const of = (name: string) => theme[name] ?? "#ff00ff";

  const poor = (names: string[], least: number) =>
    names.flatMap((name) => grounds.filter((ground) => contrast(of(name), of(ground)) < least).map((ground) => `${name} on ${ground}: ${contrast(of(name), of(ground)).toFixed(2)}`));

  it("text is read on every ground", () => expect(poor(texts, 4.5)).toEqual([]));
  it("shapes are seen on every ground", () => expect(poor(shapes, 3)).toEqual([]));
  it("what stands on the accent is read", () => expect(contrast(of("on-accent"), of("accent"))).toBeGreaterThanOrEqual(4.5));
});

it("looks at all styles there are", () => expect(styles().length).toBeGreaterThan(200));

it("styles text and grounds with nothing else", () => {
  const strange = styles().flatMap(({ file, rule }) => {
    const [ink, ground] = [inked.exec(rule)?.[1], laid.exec(rule)?.[1]];
    const found: string[] = [];
    if (ink === "on-accent" ? ground !== "accent" : ink && !texts.includes(ink)) found.push(`${file}: text in --${ink}`);
    if (ground && ink && ink !== "on-accent" && !grounds.includes(ground)) found.push(`${file}: text in --${ink} on --${ground}`);
    if (ground && ![...grounds, ...shapes, ...ornaments].includes(ground)) found.push(`${file}: a ground of --${ground}`);
    if (/(?:^|[\s;])(?:color|background(?:-color)?):\s*(?:#|rgb|hsl|white|black)/.test(rule)) found.push(`${file}: a colour that is no token: ${rule.trim()}`);
    return found;
  });
  expect(strange).toEqual([]);
});
