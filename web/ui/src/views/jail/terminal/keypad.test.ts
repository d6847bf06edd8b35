import { expect, test } from "vitest";
import { control } from "./keypad";

test("Ctrl and a key is its control character", () => {
  expect(["c", "C", "d", "z", "[", "\\", "]", "@", " ", "?"].map(control)).toEqual(["\x03", "\x03", "\x04", "\x1a", "\x1b", "\x1c", "\x1d", "\0", "\0", "\x7f"]);
});

test("pasted text and keys without a control character stay", () => {
  expect(["cd /tmp", "1", "é", "\x1b[A", ""].map(control)).toEqual(["cd /tmp", "1", "é", "\x1b[A", ""]);
});
