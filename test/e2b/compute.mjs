import assert from 'node:assert/strict'

// Another project's client, which speaks through E2B's SDK.
export default async function ({ sdk, check }) {
  const compute = sdk.e2b({})
  let box
  await check('create, run commands and find a sandbox again', async () => {
    box = await compute.sandbox.create({ envs: { COLOUR: 'blue' }, timeout: 120_000 })
    const said = await box.runCommand('echo "$COLOUR $E2B_SANDBOX_ID"; echo bad >&2; exit 3')
    assert.deepEqual([said.stdout, said.stderr, said.exitCode], [`blue ${box.sandboxId}\n`, 'bad\n', 3])
    const there = await box.runCommand('pwd', { cwd: '/tmp' })
    assert.equal(there.stdout.trim(), '/tmp')
    const again = await compute.sandbox.getById(box.sandboxId)
    assert.equal(again.sandboxId, box.sandboxId)
    assert.equal(await compute.sandbox.getById('inosuchsandbox'), null)
    assert.ok((await compute.sandbox.list()).some((s) => s.sandboxId === box.sandboxId))
  })
  await check('files', async () => {
    const fs = box.filesystem
    await fs.mkdir('/home/user/d')
    await fs.writeFile('/home/user/d/f', 'text')
    assert.equal(await fs.readFile('/home/user/d/f'), 'text')
    assert.deepEqual((await fs.readdir('/home/user/d')).map((e) => e.name), ['f'])
    assert.equal(await fs.exists('/home/user/d/f'), true)
    await fs.remove('/home/user/d/f')
    assert.equal(await fs.exists('/home/user/d/f'), false)
  })
  await check('destroy', async () => {
    await box.destroy()
    assert.equal(await compute.sandbox.getById(box.sandboxId), null)
  })
}
