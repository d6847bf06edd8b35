import assert from 'node:assert/strict'

const rejects = (promise, kind, text) =>
  assert.rejects(promise, (e) => {
    assert.ok(e instanceof kind, `${e?.constructor?.name}: ${e?.message}, want ${kind.name}`)
    assert.match(e.message, text)
    return true
  })

const eventually = async (what, f, ms = 20_000) => {
  for (const end = Date.now() + ms; ; await new Promise((r) => setTimeout(r, 50))) {
    if (await f()) return
    assert.ok(Date.now() < end, `${what} in ${ms} ms`)
  }
}

export default async function ({ sdk, check, all }) {
  const { Sandbox, SandboxError, NotFoundError, AuthenticationError, InvalidArgumentError } = sdk
  const out = async (box, cmd, opts) => (await box.commands.run(cmd, opts)).stdout.trim()
  const newer = 'SandboxNotFoundError' in sdk ? sdk.SandboxNotFoundError : NotFoundError

  let box
  await check('create a sandbox and run a command', async () => {
    box = await Sandbox.create({ metadata: { job: 'one & only', ünï: 'ç=d' }, envs: { COLOUR: 'blue' }, timeoutMs: 90_000 })
    assert.equal(await out(box, 'id -un; pwd; echo $COLOUR $E2B_SANDBOX_ID'), `user\n/home/user\nblue ${box.sandboxId}`)
    assert.equal(await box.isRunning(), true)
  })
  await check('get information about a sandbox', async () => {
    const info = await box.getInfo()
    assert.equal(info.sandboxId, box.sandboxId)
    assert.equal(info.state, 'running')
    assert.equal(info.templateId, 'base')
    assert.deepEqual(info.metadata, { job: 'one & only', ünï: 'ç=d' })
    assert.ok(info.cpuCount >= 1 && info.memoryMB >= 128)
    const left = info.endAt - info.startedAt
    assert.ok(Math.abs(left - 90_000) < 1000, `it stays ${left} ms`)
  })
  await check('the default timeout of a sandbox is five minutes', async () => {
    const short = await Sandbox.create()
    const info = await short.getInfo()
    assert.ok(Math.abs(info.endAt - info.startedAt - 300_000) < 1000)
    assert.equal(await short.kill(), true)
    assert.equal(await short.kill(), false)
    assert.equal(await short.isRunning(), false)
    await rejects(short.getInfo(), newer, /not found/)
  })
  await check('list sandboxes by metadata and state, in pages', async () => {
    const two = await Promise.all([1, 2].map((n) => Sandbox.create({ metadata: { list: 'yes', n: String(n) } })))
    const ids = async (query, opts) => {
      const found = []
      for (const pages = Sandbox.list({ query, ...opts }); pages.hasNext; ) found.push(...(await pages.nextItems()))
      return found.map((s) => s.sandboxId)
    }
    assert.deepEqual(await ids({ metadata: { job: 'one & only', ünï: 'ç=d' } }), [box.sandboxId])
    assert.deepEqual(await ids({ metadata: { job: 'another' } }), [])
    assert.deepEqual(new Set(await ids({ metadata: { list: 'yes' } })), new Set(two.map((s) => s.sandboxId)))
    const whole = await ids({})
    assert.ok(whole.length >= 3)
    assert.deepEqual(await ids({}, { limit: 1 }), whole)
    const first = Sandbox.list({ limit: 1 })
    assert.equal((await first.nextItems()).length, 1)
    assert.ok(first.hasNext && first.nextToken)
    assert.deepEqual(await ids({ state: ['paused'] }), [])
    await Promise.all(two.map((s) => s.kill()))
  })
  await check('change the timeout of a sandbox', async () => {
    await box.setTimeout(200_000)
    const info = await box.getInfo()
    assert.ok(Math.abs(info.endAt - Date.now() - 200_000) < 30_000)
    const brief = await Sandbox.create({ timeoutMs: 1000 })
    await eventually('it is killed when its time is over', async () => !(await brief.isRunning()))
    await rejects(Sandbox.setTimeout(brief.sandboxId, 1000), newer, /not found/)
  })
  await check('invalid requests get the errors of E2B', async () => {
    await rejects(Sandbox.create('no-such-template'), SandboxError, /404.*not found/)
    await rejects(Sandbox.connect('inosuchsandbox'), NotFoundError, /not found/)
    await rejects(Sandbox.create({ apiKey: 'e2b_00' }), AuthenticationError, /credentials/)
    await rejects(Sandbox.create({ timeoutMs: 25 * 3600_000 }), SandboxError, /400.*24 hours/)
    await rejects(Sandbox.create({ network: { allowOut: ['example.com'] } }), SandboxError, /400.*ALL_TRAFFIC/)
    assert.equal(await Sandbox.kill('inosuchsandbox'), false)
  })
  await check('pause and resume with memory', async () => {
    await box.commands.run('echo $$ > pid; exec sleep 1000', { background: true })
    await eventually('the command began', async () => (await out(box, 'cat pid 2>/dev/null || true')) !== '')
    const pid = await out(box, 'cat pid')
    assert.equal(await box.pause(), true)
    assert.equal(await box.pause(), false)
    assert.equal((await box.getInfo()).state, 'paused')
    assert.equal(await box.isRunning(), false)
    const found = await Sandbox.list({ query: { state: ['paused'] } }).nextItems()
    assert.deepEqual(found.map((s) => s.sandboxId), [box.sandboxId])
    const again = await Sandbox.connect(box.sandboxId, { timeoutMs: 150_000 })
    assert.equal(await out(again, `kill -0 ${pid} && echo alive`), 'alive')
    assert.equal((await again.getInfo()).state, 'running')
  })
  await check('pause and resume with files only', async () => {
    await out(box, 'echo kept > file')
    assert.equal(await box.pause({ keepMemory: false }), true)
    await box.connect()
    assert.equal(await out(box, 'cat file; pgrep sleep || echo none'), 'kept\nnone')
  })
  await check('pause at the timeout and resume on a request', async () => {
    const lazy = await Sandbox.create({ lifecycle: { onTimeout: 'pause', autoResume: true } })
    await out(lazy, 'echo here > file')
    await lazy.setTimeout(1000) // a command that came after its time would wake it for five minutes
    await eventually('it rests', async () => (await lazy.getInfo()).state === 'paused')
    const health = { 'E2b-Sandbox-Id': lazy.sandboxId, 'E2b-Sandbox-Port': '49983' }
    assert.equal((await fetch(`${process.env.E2B_SANDBOX_URL}/health`, { headers: health })).status, 403)
    assert.equal((await lazy.getInfo()).state, 'paused', 'a request without the token does not resume it')
    assert.deepEqual(await Promise.all(Array.from({ length: 8 }, () => out(lazy, 'cat file'))), Array(8).fill('here'))
    const info = await lazy.getInfo()
    assert.equal(info.state, 'running')
    assert.ok(info.endAt - Date.now() > 200_000, 'it was woken for five minutes')
    await lazy.kill()
  })
  await check('fork a running sandbox five times', async () => {
    await out(box, 'echo parent > who')
    const forks = await box.fork({ count: 5 })
    assert.equal(forks.length, 5)
    for (const f of forks) assert.ok(f instanceof Sandbox, String(f))
    assert.equal(new Set([box, ...forks].map((f) => f.sandboxId)).size, 6)
    const said = await Promise.all(forks.map((f, i) => out(f, `cat who; echo ${i} > who; cat who; echo $E2B_SANDBOX_ID`)))
    said.forEach((s, i) => assert.equal(s, `parent\n${i}\n${forks[i].sandboxId}`))
    assert.equal(await out(box, 'cat who'), 'parent')
    await Promise.all(forks.map((f) => f.kill()))
  })
  await check('snapshot a sandbox and create others from it', async () => {
    await out(box, 'echo from the snapshot > file')
    const snap = await box.createSnapshot()
    const named = await box.createSnapshot({ name: 'my-snapshot' })
    assert.ok(named.names.some((n) => n.includes('my-snapshot')))
    await out(box, 'echo later > file')
    for (const of of [snap.snapshotId, named.snapshotId, 'my-snapshot']) {
      const made = await Sandbox.create(of, { metadata: { of } })
      assert.equal(await out(made, 'cat file; echo $COLOUR'), 'from the snapshot\nblue')
      await made.kill()
    }
    const mine = await box.listSnapshots().nextItems()
    assert.deepEqual(new Set(mine.map((s) => s.snapshotId)), new Set([snap.snapshotId, named.snapshotId]))
    for (const s of [snap, named]) assert.equal(await Sandbox.deleteSnapshot(s.snapshotId), true)
    assert.equal(await Sandbox.deleteSnapshot(snap.snapshotId), false)
    await rejects(Sandbox.create(snap.snapshotId), SandboxError, /404/)
  })
  await check('change the network rules of a sandbox', async () => {
    const rules = { 'api.example.com': [{ transform: { headers: { 'X-Key': 'v' } } }] }
    const network = { allowOut: ['example.com', '8.8.8.0/24'], denyOut: ['0.0.0.0/0'], rules }
    await box.updateNetwork(network)
    const info = await box.getInfo()
    assert.deepEqual(info.network.allowOut, network.allowOut)
    assert.deepEqual(info.network.denyOut, network.denyOut)
    assert.deepEqual(info.network.rules, rules)
    await box.updateNetwork({})
    assert.equal((await box.getInfo()).network?.allowOut, undefined)
    const shut = await Sandbox.create({ allowInternetAccess: false })
    assert.equal((await shut.getInfo()).allowInternetAccess, false)
    await shut.kill()
  })
  await check('get metrics of a sandbox', async () => {
    const [m] = await box.getMetrics()
    assert.ok(m.memTotal >= m.memUsed && m.memUsed > 0 && m.diskTotal > 0 && m.cpuCount >= 1)
    assert.ok(Math.abs(m.timestamp - Date.now()) < 3600_000)
  })
  await check('secure mode requires the token', async () => {
    const base = process.env.E2B_SANDBOX_URL
    const headers = { 'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': '49983' }
    const bare = await fetch(`${base}/files?path=/etc/hostname&username=user`, { headers })
    assert.equal(bare.status, 401)
    await rejects(Sandbox.connect(box.sandboxId, { apiKey: process.env.OTHER_KEY }), NotFoundError, /not found/)
  })
  if (all) {
    await check('fifty sandboxes at once', async () => {
      const many = await Promise.all(Array.from({ length: 50 }, () => Sandbox.create({ requestTimeoutMs: 0 })))
      const said = await Promise.all(many.map((b) => out(b, 'echo $E2B_SANDBOX_ID', { requestTimeoutMs: 0 })))
      assert.deepEqual(said, many.map((b) => b.sandboxId))
      await Promise.all(many.map((b) => b.kill({ requestTimeoutMs: 0 })))
    })
  }
  await check('kill a sandbox', async () => {
    assert.equal(await box.kill(), true)
    assert.equal(await box.isRunning(), false)
    assert.deepEqual(await Sandbox.list().nextItems(), [])
  })
}
