"""What a program does with Glasshouse, from Python. Each step says that it was done; the
test in Go compares what was said. $VIEWER is the token of somebody who may only look."""

import asyncio
import os
import sys
import threading

from glasshouse import AsyncGlasshouse, Glasshouse, errors

MANIFEST = """(capability "math.double" :version "1.0.0" :description "Twice a number"
  :input-schema [:map [:x :int]] :output-schema [:map [:y :int]] :effects []
  :runtime {:type :rtfs} :implementation (fn [{:keys [x]}] {:y (* 2 x)}))"""

POLICY = '{"permission": {"bash": {"git status": "allow", "git push": "ask", "rm *": "deny"}}}'


def did(step):
    print(step, flush=True)


def refused(kind, call):
    try:
        call()
    except kind as e:
        return e
    raise AssertionError(f"nothing was refused as {kind.__name__}")


def commands(jail):
    r = jail.run("echo out; echo err >&2; exit 3")
    assert (r.stdout, r.stderr, r.exit_code, r.ok) == ("out\n", "err\n", 3, False), r
    e = refused(errors.CommandFailed, r.check)
    assert "exit code 3" in str(e) and e.result is r, e
    assert jail.run(["cat"], stdin=b"\xff\x00").stdout_bytes == b"\xff\x00"
    assert jail.run("echo $A; pwd", env={"A": "a b"}, cwd="/tmp", check=True).stdout == "a b\n/tmp\n"
    slow = jail.run("sleep 60", timeout=0.2)
    assert slow.timed_out and not slow.ok, slow
    did("run")

    with jail.stream("read x; echo got $x; echo more >&2", stdin_open=True) as command:
        command.write("something\n", close=True)
        seen = {"stdout": b"", "stderr": b""}
        for out in command:
            seen[out.stream] += out.data
        assert seen == {"stdout": b"got something\n", "stderr": b"more\n"}, seen
        assert command.wait().ok
    again = jail.command(command.id)
    assert again.wait().stdout == "got something\n"
    sleeper = jail.spawn(["sleep", "60"])
    sleeper.signal("KILL")
    assert sleeper.wait().exit_code == 137
    assert {command.id, sleeper.id} <= {x["id"] for x in jail.commands()}
    did("stream")


def files(jail):
    jail.files.mkdir("/data/deep", parents=True)
    jail.files.write("/data/deep/a", (bytes([n]) * 100_000 for n in range(3)), mode="600")
    assert jail.files.stat("/data/deep/a")["size"] == 300_000
    assert jail.files.read("/data/deep/a", offset=99_999, size=2) == b"\x00\x01"
    with jail.files.open("/data/deep/a") as whole:
        assert sum(len(piece) for piece in whole) == 300_000
    seen = threading.Event()

    def write():  # a watch sees what is done after it is there, so it is done until it is seen
        while not seen.wait(0.1):
            jail.files.write_text("/data/new", "text")

    writer = threading.Thread(target=write)
    writer.start()
    with jail.files.watch("/data") as changes:
        assert next(changes)["path"].startswith("/data/")
    seen.set()
    writer.join()
    jail.files.move("/data/new", "/data/moved")
    assert jail.files.read_text("/data/moved") == "text"
    assert [f["name"] for f in jail.files.list("/data")] == ["deep", "moved"]
    archive = jail.files.get_tar("/data").read()
    jail.files.mkdir("/copy")
    jail.files.put_tar("/copy", archive)
    assert jail.run("find /copy -name moved").stdout.strip() != ""
    jail.files.remove("/data/deep", recursive=True)
    assert refused(errors.NotFound, lambda: jail.files.read("/data/deep/a")).status == 404
    did("files")


def events(jail):
    """One stream, over the end of the daemon and a new one. Each record comes once."""
    jail.run("echo before > /tmp/before")
    told = []
    with jail.events("type:file path:/tmp", follow=True) as stream:
        for event in stream:
            told.append(event)
            if event.get("path") == "/tmp/before" and len(told) == 1:
                did("kill the daemon")
                address = sys.stdin.readline().strip()  # of the next one, for the network
                jail.run("echo after > /tmp/after")
            if event.get("path") == "/tmp/after":
                break
    seqs = [e["seq"] for e in told]
    assert seqs == sorted(set(seqs)), seqs
    past = [e["seq"] for e in jail.events("type:file path:/tmp", follow=False) if e["seq"] <= seqs[-1]]
    assert seqs == past, (seqs, past)
    assert len(list(jail.events(follow=False, limit=3))) == 3
    assert any(p.get("pid") == 1 for p in jail.processes())
    did("events")
    return address


def branches(gh, jail):
    jail.run("echo 0 > /tmp/n")
    snapshot = jail.snapshot(name="zero")
    with jail.branch(5, labels={"of": "five"}) as copies:
        assert len(copies) == 5 and copies.snapshot is not None
        for n, copy in enumerate(copies):
            copy.run(f"echo {n + 1} > /tmp/n", check=True)
        assert [copy.files.read_text("/tmp/n") for copy in copies] == [f"{n + 1}\n" for n in range(5)]
        assert {j.id for j in gh.jails(labels={"of": "five"})} == {c.id for c in copies}
        differs = copies[4].diff(jail, only=["files"], unified=True)
        assert [c["path"] for c in differs["files"]["list"]] == ["/tmp/n"], differs
    assert not list(gh.jails(labels={"of": "five"}))
    jail.run("echo 9 > /tmp/n; echo more > /tmp/more")
    assert {c["path"] for c in jail.changes(against=snapshot.id)} == {"/tmp/n", "/tmp/more"}
    jail.rewind(snapshot)
    assert jail.files.read_text("/tmp/n") == "0\n"
    assert snapshot.id in {s.id for s in jail.snapshots()}
    snapshot.delete()
    did("branches")


def approvals(gh, jail):
    jail.set_policy(files=[{"name": "opencode.json", "text": POLICY}], level=2)
    assert jail.decide("bash", "git status")["allow"]
    assert not jail.decide("bash", "rm x")["allow"]
    told = []
    asker = threading.Thread(target=lambda: told.append(jail.decide("bash", "git push", wait=30)))
    asker.start()
    with gh.approval_events() as happening:
        for event in happening:
            if event["kind"] == "asked" and event["approval"].get("jail") == jail.id:
                gh.approve(event["approval"]["id"])
            if event["kind"] == "answered":
                break
    asker.join()
    assert told[0]["allow"] and told[0]["tag"] == "APPROVED", told
    assert [e["allowed"] for e in jail.trail()][-1] is True
    kinds = {e["kind"] for e in gh.chain(jail=jail.id)}
    assert "decision" in kinds, kinds
    assert not gh.verify_chain().get("bad")
    did("approvals")


def capabilities(gh):
    gh.register(MANIFEST)
    assert gh.call("math.double", {"x": 21}) == {"y": 42}
    e = refused(errors.GlasshouseError, lambda: gh.call("math.double", {"x": "no number"}))
    assert "x" in str(e), e
    refused(errors.NotFound, lambda: gh.call("no.such"))
    did("capabilities")


def runs(gh):
    session = gh.session(name="from python")
    run = session.run("count to three")
    assert run.wait() == "counted", run.info
    assert "tool" in {a["kind"] for a in run.actions()}
    assert run.id in {r.id for r in gh.runs(session=session.id)}
    waits = session.run("count to three", schedule="0 0 1 1 *")
    schedule = gh.find_schedule(waits.info["schedule"])
    assert len(schedule.refresh()["next"]) == 10
    schedule.pause()
    assert schedule.info["paused"]
    schedule.delete()
    session.close()
    did("runs")


def refusals(gh, address):
    e = refused(errors.NotFound, lambda: gh.find_jail("j-nosuchjail2"))
    assert e.kind == "not found" and e.status == 404, e
    e = refused(errors.Invalid, lambda: gh.api.create_jail({"network": "sideways"}))
    assert e.field == "network", vars(e)
    with Glasshouse(address, token=os.environ["VIEWER"]) as viewer:
        assert viewer.me()["role"] == "viewer"
        assert refused(errors.Denied, lambda: viewer.jail(name="not mine")).remedy
    refused(errors.Unauthenticated, lambda: Glasshouse(address, token="gh_wrong").version())
    assert refused(errors.Unavailable, lambda: Glasshouse("unix:///nowhere/at.sock").version()).remedy
    did("refusals")


async def awaited():
    async with AsyncGlasshouse() as gh, await gh.jail(name="awaited") as jail:
        many = await asyncio.gather(*(jail.run(f"sleep 0.1; echo {n}") for n in range(10)))
        assert [r.stdout for r in many] == [f"{n}\n" for n in range(10)]
        async with await jail.stream("echo a; echo b >&2") as command:
            assert b"".join(sorted([o.data async for o in command])) == b"a\nb\n"
        async with jail.events("type:file path:/tmp/seen") as stream:
            waiting = asyncio.ensure_future(stream.__anext__())
            await jail.run("echo > /tmp/seen")
            assert (await asyncio.wait_for(waiting, 30))["path"] == "/tmp/seen"
        forever = asyncio.ensure_future(jail.run("sleep 600"))
        await asyncio.sleep(0)
        forever.cancel()
        try:
            await forever
        except asyncio.CancelledError:
            pass
        async with await jail.branch(2) as copies:
            assert [(await c.run("echo hi")).stdout for c in copies] == ["hi\n"] * 2
        assert [j.id async for j in gh.jails(name="awaited")][0] == jail.id
    did("awaited")


def main():
    with Glasshouse() as gh:
        with gh.jail(name="python") as jail:
            assert jail.state == "running"
            did("jail")
            commands(jail)
            files(jail)
            address = events(jail)
            branches(gh, jail)
            approvals(gh, jail)
        capabilities(gh)
        runs(gh)
        refusals(gh, address)
        assert jail.id not in {j.id for j in gh.jails()}
    asyncio.run(awaited())


main()
