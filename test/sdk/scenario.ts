// What a program does with Glasshouse, from TypeScript. Each step says that it was done;
// the test in Go compares what was said. $VIEWER is the token of somebody who may only look.

import assert from "node:assert/strict";
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import * as g from "glasshouse";
import { Glasshouse, type Jail } from "glasshouse";

const MANIFEST = `(capability "math.double" :version "1.0.0" :description "Twice a number"
  :input-schema [:map [:x :int]] :output-schema [:map [:y :int]] :effects []
  :runtime {:type :rtfs} :implementation (fn [{:keys [x]}] {:y (* 2 x)}))`;

const POLICY = '{"permission": {"bash": {"git status": "allow", "git push": "ask", "rm *": "deny"}}}';

const did = (step: string) => process.stdout.write(step + "\n");

async function refused<E extends Error>(kind: new (...a: any[]) => E, call: () => unknown): Promise<E> {
  try {
    await call();
  } catch (err) {
    if (err instanceof kind) return err;
    throw err;
  }
  throw new Error(`nothing was refused as ${kind.name}`);
}

async function all<T>(list: AsyncIterable<T>): Promise<T[]> {
  const items: T[] = [];
  for await (const item of list) items.push(item);
  return items;
}

async function commands(jail: Jail) {
  const r = await jail.run("echo out; echo err >&2; exit 3");
  assert.deepEqual([r.stdout, r.stderr, r.exitCode, r.ok], ["out\n", "err\n", 3, false]);
  const e = await refused(g.CommandFailed, () => r.check());
  assert.ok(e.message.includes("exit code 3") && e.result === r, e.message);
  const bytes = Uint8Array.of(0xff, 0);
  assert.deepEqual([...(await jail.run(["cat"], { stdin: bytes })).stdoutBytes], [...bytes]);
  assert.equal((await jail.run("echo $A; pwd", { env: { A: "a b" }, cwd: "/tmp", check: true })).stdout, "a b\n/tmp\n");
  const slow = await jail.run("sleep 60", { timeout: 200 });
  assert.ok(slow.timedOut && !slow.ok);
  did("run");

  await using command = await jail.stream("read x; echo got $x; echo more >&2", { stdinOpen: true });
  await command.write("something\n", { close: true });
  const seen = { stdout: "", stderr: "" };
  for await (const out of command) seen[out.stream] += Buffer.from(out.data);
  assert.deepEqual(seen, { stdout: "got something\n", stderr: "more\n" });
  assert.ok((await command.wait()).ok);
  const again = await jail.command(command.id);
  assert.equal((await again.wait()).stdout, "got something\n");
  const sleeper = await jail.spawn(["sleep", "60"]);
  await sleeper.signal("KILL");
  assert.equal((await sleeper.wait()).exitCode, 137);
  const known = (await all(jail.commands())).map((x) => x.id);
  assert.ok(known.includes(command.id) && known.includes(sleeper.id));
  did("stream");
}

async function files(jail: Jail) {
  await jail.files.mkdir("/data/deep", { parents: true });
  const pieces = [0, 1, 2].map((n) => Buffer.alloc(100_000, n));
  await jail.files.write("/data/deep/a", pieces, { mode: "600" });
  assert.equal((await jail.files.stat("/data/deep/a")).size, 300_000);
  assert.deepEqual([...(await jail.files.read("/data/deep/a", { offset: 99_999, size: 2 }))], [0, 1]);
  let size = 0;
  for await (const piece of await jail.files.open("/data/deep/a")) size += piece.length;
  assert.equal(size, 300_000);
  await using changes = jail.files.watch("/data");
  const change = changes.next();
  const writing = (async () => {
    // A watch sees what is done after it is there, so it is done until it is seen.
    for (let seen = false; !seen; ) {
      await jail.files.write("/data/new", "text");
      seen = await Promise.race([change.then(() => true), sleep(100, false)]);
    }
  })();
  const { value: first } = await change;
  await writing;
  assert.ok(first?.path.startsWith("/data/"), JSON.stringify(first));
  await jail.files.move("/data/new", "/data/moved");
  assert.equal(await jail.files.readText("/data/moved"), "text");
  assert.deepEqual((await all(jail.files.list("/data"))).map((f) => f.name), ["deep", "moved"]);
  const archive = await (await jail.files.getTar("/data")).bytes();
  await jail.files.mkdir("/copy");
  await jail.files.putTar("/copy", archive);
  assert.notEqual((await jail.run("find /copy -name moved")).stdout, "");
  await jail.files.remove("/data/deep", { recursive: true });
  assert.equal((await refused(g.NotFound, () => jail.files.read("/data/deep/a"))).status, 404);
  did("files");
}

/** One stream, over the end of the daemon and a new one. Each record comes once. */
async function events(jail: Jail): Promise<string> {
  await jail.run("echo before > /tmp/before");
  const told: g.wire.Event[] = [];
  let address = "";
  for await (const event of jail.events("type:file path:/tmp")) {
    told.push(event);
    if (event.path === "/tmp/before" && told.length === 1) {
      const line = once(process.stdin, "data"); // of the next one, for the network
      did("kill the daemon");
      address = String((await line)[0]).trim();
      await jail.run("echo after > /tmp/after");
    }
    if (event.path === "/tmp/after") break;
  }
  const seqs = told.map((e) => e.seq);
  const past = (await all(jail.events("type:file path:/tmp", { follow: false }))).map((e) => e.seq).filter((n) => n <= seqs.at(-1)!);
  assert.deepEqual(seqs, past);
  assert.equal((await all(jail.events(undefined, { follow: false, limit: 3 }))).length, 3);
  assert.ok((await jail.processes()).some((p) => p.pid === 1));
  did("events");
  return address;
}

async function branches(gh: Glasshouse, jail: Jail) {
  await jail.run("echo 0 > /tmp/n");
  const snapshot = await jail.snapshot({ name: "zero" });
  {
    await using copies = await jail.branch(5, { labels: { of: "five" } });
    assert.ok(copies.length === 5 && copies.snapshot);
    await Promise.all(copies.map((copy, n) => copy.run(`echo ${n + 1} > /tmp/n`, { check: true })));
    assert.deepEqual(await Promise.all(copies.map((copy) => copy.files.readText("/tmp/n"))), ["1\n", "2\n", "3\n", "4\n", "5\n"]);
    const labelled = await all(gh.jails({ labels: { of: "five" } }));
    assert.deepEqual(labelled.map((j) => j.id).sort(), copies.map((c) => c.id).sort());
    const differs = await copies[4]!.diff(jail, { only: ["files"], unified: true });
    assert.deepEqual(differs.files?.list?.map((c) => c.path), ["/tmp/n"]);
  }
  assert.equal((await all(gh.jails({ labels: { of: "five" } }))).length, 0);
  await jail.run("echo 9 > /tmp/n; echo more > /tmp/more");
  assert.deepEqual((await all(jail.changes({ against: snapshot.id }))).map((c) => c.path).sort(), ["/tmp/more", "/tmp/n"]);
  await jail.rewind(snapshot);
  assert.equal(await jail.files.readText("/tmp/n"), "0\n");
  assert.ok((await all(jail.snapshots())).some((s) => s.id === snapshot.id));
  await snapshot.delete();
  did("branches");
}

async function approvals(gh: Glasshouse, jail: Jail) {
  await jail.setPolicy({ files: [{ name: "opencode.json", text: POLICY }], level: 2 });
  assert.ok((await jail.decide("bash", "git status")).allow);
  assert.ok(!(await jail.decide("bash", "rm x")).allow);
  const asker = jail.decide("bash", "git push", { wait: 30_000 });
  for await (const event of gh.approvalEvents()) {
    if (event.kind === "asked" && event.approval.question.resource === "git push") await gh.approve(event.approval.id);
    if (event.kind === "answered") break;
  }
  const told = await asker;
  assert.ok(told.allow && told.tag === "APPROVED");
  assert.equal((await all(jail.trail())).at(-1)?.allowed, true);
  assert.ok((await all(gh.chain({ jail: jail.id }))).some((e) => e.kind === "decision"));
  assert.ok(!(await gh.verifyChain()).bad);
  did("approvals");
}

async function capabilities(gh: Glasshouse) {
  await gh.register(MANIFEST);
  assert.deepEqual(await gh.call("math.double", { x: 21 }), { y: 42 });
  const e = await refused(g.GlasshouseError, () => gh.call("math.double", { x: "no number" }));
  assert.ok(e.message.includes("x"), e.message);
  await refused(g.NotFound, () => gh.call("no.such"));
  did("capabilities");
}

async function runs(gh: Glasshouse) {
  const session = await gh.session({ name: "from typescript" });
  const run = await session.run("count to three");
  assert.equal(await run.wait(), "counted");
  assert.ok((await all(run.actions())).some((a) => a.kind === "tool"));
  assert.ok((await all(gh.runs({ session: session.id }))).some((r) => r.id === run.id));
  const waits = await session.run("count to three", { schedule: "0 0 1 1 *" });
  const schedule = await gh.findSchedule(waits.info.schedule!);
  assert.equal((await schedule.refresh()).next?.length, 10);
  await schedule.pause();
  assert.ok(schedule.info.paused);
  await schedule.delete();
  await session.close();
  did("runs");
}

async function refusals(gh: Glasshouse, address: string) {
  assert.equal((await refused(g.NotFound, () => gh.findJail("j-nosuchjail2"))).status, 404);
  const e = await refused(g.Invalid, () => gh.api.createJail({ network: "sideways" as "full" }));
  assert.equal(e.field, "network");
  await using viewer = new Glasshouse({ address, token: process.env["VIEWER"]! });
  assert.equal((await viewer.me()).role, "viewer");
  assert.ok((await refused(g.Denied, () => viewer.jail({ name: "not mine" }))).remedy);
  await refused(g.Unauthenticated, () => new Glasshouse({ address, token: "gh_wrong" }).version());
  assert.ok((await refused(g.Unavailable, () => new Glasshouse({ address: "unix:///nowhere/at.sock" }).version())).remedy);
  did("refusals");
}

/** Many at once, and one that is given up. */
async function awaited(gh: Glasshouse) {
  await using jail = await gh.jail({ name: "awaited" });
  const many = await Promise.all([...Array(10).keys()].map((n) => jail.run(`sleep 0.1; echo ${n}`)));
  assert.deepEqual(many.map((r) => r.stdout), [...Array(10).keys()].map((n) => `${n}\n`));
  const abort = new AbortController();
  const forever = gh.api.execCommand(jail.id, { cmd: "sleep 600" }, { signal: abort.signal });
  abort.abort();
  await refused(Error, () => forever);
  did("awaited");
}

await using gh = new Glasshouse();
let gone: string;
{
  await using jail = await gh.jail({ name: "typescript" });
  gone = jail.id;
  assert.equal(jail.state, "running");
  did("jail");
  await commands(jail);
  await files(jail);
  const address = await events(jail);
  await branches(gh, jail);
  await approvals(gh, jail);
  await capabilities(gh);
  await runs(gh);
  await refusals(gh, address);
}
assert.ok(!(await all(gh.jails())).some((j) => j.id === gone));
await awaited(gh);
process.stdin.destroy();
