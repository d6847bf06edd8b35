// The contrast of text and shapes in both themes: WCAG 2.2, 1.4.3 and 1.4.11.
import { describe, expect, it } from "vitest";

import tokens from "./tokens.css?raw";

const sources = import.meta.glob<string>(["../**/*.svelte", "../**/*.css", "!./tokens.css"], { query: "?raw", import: "default", eager: true });

const texts = ["ink", "soft", "link", "accent", "red", "amber", "green", "proc", "file", "net", "syscall", "gap", "lineage", "other"];
const grounds = ["ground", "card", "faint", "accent-soft", "red-soft", "amber-soft", "green-soft"];
// Shapes without text: dots, bars, borders of inputs.
const shapes = ["edge", ...texts];
// Decorative lines, shadows, and the backdrop of dialogs.
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

// styles returns all CSS rules of the UI with their files.
function styles(): { file: string; rule: string }[] {
  return Object.entries(sources).flatMap(([file, text]) => {
    const css = file.endsWith(".css") ? text : (/<style>([\s\S]*)<\/style>/.exec(text)?.[1] ?? "");
    return [...css.replaceAll(/\/\*[\s\S]*?\*\//g, "").matchAll(/\{([^{}]*)\}/g)].map((m) => ({ file, rule: m[1] ?? "" }));
  });
}

const inked = /(?:^|[\s;])color:\s*var\(--([\w-]+)\)/;
const laid = /background(?:-color)?:\s*var\(--([\w-]+)\)/;

it("computes contrast ratios", () => {
  expect(contrast("#ffffff", "#000000")).toBeCloseTo(21, 5);
  expect(contrast("#777777", "#ffffff")).toBeCloseTo(4.48, 2);
});

it("defines the same colors in both themes", () => {
  const { light, dark } = themes();
  expect(Object.keys(dark).sort()).toEqual(Object.keys(light).sort());
});

describe.each(Object.entries(themes()))("in the %s theme", (_, theme) => {
  const of = (name: string) => theme[name] ?? "#ff00ff";

  const poor = (names: string[], least: number) =>
    names.flatMap((name) => grounds.filter((ground) => contrast(of(name), of(ground)) < least).map((ground) => `${name} on ${ground}: ${contrast(of(name), of(ground)).toFixed(2)}`));

  it("text has enough contrast on every background", () => expect(poor(texts, 4.5)).toEqual([]));
  it("shapes have enough contrast on every background", () => expect(poor(shapes, 3)).toEqual([]));
  it("cards stand out from the ground", () => expect(contrast(of("card"), of("ground"))).toBeGreaterThanOrEqual(1.1));
  it("text on the accent color has enough contrast", () => expect(contrast(of("on-accent"), of("accent"))).toBeGreaterThanOrEqual(4.5));
});

it("finds all styles", () => expect(styles().length).toBeGreaterThan(200));

it("uses only tokens for text and backgrounds", () => {
  const strange = styles().flatMap(({ file, rule }) => {
    const [ink, ground] = [inked.exec(rule)?.[1], laid.exec(rule)?.[1]];
    const found: string[] = [];
    if (ink === "on-accent" ? ground !== "accent" : ink && !texts.includes(ink)) found.push(`${file}: text in --${ink}`);
    if (ground && ink && ink !== "on-accent" && !grounds.includes(ground)) found.push(`${file}: text in --${ink} on --${ground}`);
    if (ground && ![...grounds, ...shapes, ...ornaments].includes(ground)) found.push(`${file}: a ground of --${ground}`);
    if (/(?:^|[\s;])(?:color|background(?:-color)?):\s*(?:#|rgb|hsl|white|black)/.test(rule)) found.push(`${file}: a color that is no token: ${rule.trim()}`);
    return found;
  });
  expect(strange).toEqual([]);
});
