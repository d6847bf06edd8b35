import assert from 'node:assert/strict'

// What SDKs before 2.0 do: they know the daemon by its domain and TLS alone, and append the
// id of a client to the id of each sandbox.
export default async function ({ sdk, check }) {
  const { Sandbox } = sdk
  let box
  await check('create a sandbox through the domain and run a command', async () => {
    box = await Sandbox.create({ metadata: { by: 'old' }, envs: { COLOUR: 'blue' }, timeoutMs: 120_000 })
    assert.match(box.sandboxId, /^i[a-z2-7]{20}-/)
    const done = await box.commands.run('id -un; echo $COLOUR')
    assert.deepEqual([done.stdout, done.exitCode], ['user\nblue\n', 0])
    await assert.rejects(box.commands.run('exit 3'), (e) => e.exitCode === 3)
  })
  await check('files', async () => {
    await box.files.write('/home/user/a/b', 'text')
    assert.equal(await box.files.read('a/b'), 'text')
    await box.files.remove('a/b')
  })
  await check('list and stat files', async () => {
    await box.files.write('/home/user/listed/b', 'text')
    assert.deepEqual((await box.files.list('/home/user/listed')).map((e) => e.name), ['b'])
    assert.deepEqual([await box.files.exists('listed/b'), await box.files.exists('listed/c')], [true, false])
  })
  await check('a background command and a terminal', async () => {
    const cat = await box.commands.run('cat', { background: true })
    await box.commands.sendStdin(cat.pid, 'hello\n')
    assert.ok((await box.commands.list()).some((p) => p.pid === cat.pid))
    assert.equal(await cat.kill(), true)
    let said = ''
    const pty = await box.pty.create({ cols: 80, rows: 24, onData: (b) => (said += Buffer.from(b)) })
    await box.pty.sendInput(pty.pid, new TextEncoder().encode('echo $((6*7)); exit\n'))
    await pty.wait()
    assert.match(said, /42/)
  })
  await check('reach a port by its host name over TLS', async () => {
    const closed = await fetch(`https://${box.getHost(3000)}/`)
    const body = await closed.json()
    assert.deepEqual([closed.status, body.port], [502, 3000])
    assert.equal(`${body.sandboxId}-`, box.sandboxId.slice(0, body.sandboxId.length + 1))
  })
  await check('get information, change the timeout, connect again, kill', async () => {
    assert.equal(await box.isRunning(), true)
    await box.setTimeout(60_000)
    const listed = await Sandbox.list()
    const all = Array.isArray(listed) ? listed : await listed.nextItems()
    assert.ok(all.some((s) => s.sandboxId === box.sandboxId && s.metadata.by === 'old'))
    const again = await Sandbox.connect(box.sandboxId)
    assert.equal((await again.commands.run('echo here')).stdout, 'here\n')
    assert.equal(await Sandbox.kill(box.sandboxId), true)
    assert.equal(await Sandbox.kill(box.sandboxId), false)
    assert.equal(await box.isRunning(), false)
  })
}
