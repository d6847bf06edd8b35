import { expect, test } from "vitest";
import { continues, sentence, withoutInit, type Event } from "./event";

const call = (fields: Partial<Event>) => sentence({ type: "syscall", seq: 1, ts: 0, name: "write", ...fields } as Event);

test("a system call without a path shows its arguments", () => {
  expect(call({ args: [1, 140234567, 128, 0, 0, 0], ret: 128 })).toBe("write(1, 140234567, 128) = 128");
  expect(call({ name: "futex", args: [0x7f0000001000, 128, 2, 0, 0, 0], ret: 0 })).toBe("futex(0x7f0000001000, 128, 2) = 0");
  expect(call({ name: "getpid", args: [0, 0, 0, 0, 0, 0], ret: 7 })).toBe("getpid() = 7");
  expect(call({ name: "close", args: [18446744073709551615, 0, 0, 0, 0, 0], ret: -9 })).toBe("close(…)");
});

test("a system call with a path shows the path", () => {
  expect(call({ name: "openat", path: "/etc/hosts", args: [1, 2, 3, 0, 0, 0], ret: 3 })).toBe("openat(/etc/hosts) = 3");
});

test("events of init are hidden unless a filter names a process", () => {
  for (const [q, asked] of [
    ["", "-pid:1"],
    ["type:net host:a", "type:net host:a -pid:1"],
    ["-pid:7", "-pid:7 -pid:1"],
    ["pid:1", "pid:1"],
    ["type:syscall seq:11..245", "type:syscall seq:11..245"],
    ["host_pid:4242", "host_pid:4242"],
    ['"pid:1 is text', '"pid:1 is text -pid:1'],
  ] as const) expect(withoutInit(q)).toBe(asked);
});

test("a burst is of one process and kind, without pauses", () => {
  const event = (fields: Partial<Event>) => ({ type: "file", seq: 1, ts: 1000, pid: 7, comm: "npm", ...fields }) as Event;
  expect(continues(event({}), event({ ts: 1015 }))).toBe(true);
  for (const other of [{ ts: 1100 }, { pid: 8 }, { comm: "node" }, { type: "proc" as const }]) expect(continues(event({}), event(other))).toBe(false);
});
