import assert from 'node:assert/strict'

export default async function ({ sdk, check }) {
  const { Sandbox, SandboxError, Volume, VolumeNotFoundError, VolumePathNotFoundError, VolumeError } = sdk
  const out = async (box, cmd, opts) => (await box.commands.run(cmd, opts)).stdout.trim()
  const name = `shared-${Date.now()}`

  let volume
  await check('create, list, connect to and delete volumes', async () => {
    volume = await Volume.create(name)
    assert.equal(volume.name, name)
    assert.deepEqual((await Volume.list()).find((v) => v.name === name), { volumeId: volume.volumeId, name })
    const again = await Volume.connect(volume.volumeId)
    assert.deepEqual([again.name, again.token], [name, volume.token])
    await assert.rejects(Volume.create(name), VolumeError)
    await assert.rejects(Volume.create('no/name'), VolumeError)
    await assert.rejects(Volume.getInfo('volnone'), VolumeNotFoundError)
    await assert.rejects(Volume.connect(volume.volumeId, { apiKey: process.env.OTHER_KEY }), VolumeNotFoundError)
    const brief = await Volume.create(`${name}-brief`)
    await brief.writeFile('f', 'x')
    assert.equal(await Volume.destroy(brief.volumeId), true)
    assert.equal(await Volume.destroy(brief.volumeId), false)
    await assert.rejects(brief.readFile('f'))
  })
  await check('write, read, list, change and remove files of volumes', async () => {
    const wrote = await volume.writeFile('/dir/file.txt', 'hello')
    assert.deepEqual([wrote.path, wrote.size, wrote.type, wrote.uid, wrote.mode], ['/dir/file.txt', 5, 'file', 1000, 0o644])
    assert.equal(await volume.readFile('dir/file.txt'), 'hello')
    await volume.writeFile('dir/file.txt', new Blob(['again']))
    assert.deepEqual(await volume.readFile('dir/file.txt', { format: 'bytes' }), new TextEncoder().encode('again'))
    assert.equal(await (await volume.readFile('dir/file.txt', { format: 'blob' })).text(), 'again')
    assert.equal(await new Response(await volume.readFile('dir/file.txt', { format: 'stream' })).text(), 'again')
    await volume.writeFile('empty', '')
    assert.equal(await volume.readFile('empty'), '')
    const large = new Uint8Array(5 << 20).map((_, i) => i * 7)
    await volume.writeFile('large', new Blob([large]).stream())
    assert.deepEqual(await volume.readFile('large', { format: 'bytes' }), large)

    const made = await volume.makeDir('tree', { mode: 0o700, uid: 0, gid: 5 })
    assert.deepEqual([made.type, made.mode, made.uid, made.gid], ['directory', 0o700, 0, 5])
    await assert.rejects(volume.makeDir('no/parent'), VolumePathNotFoundError)
    await volume.makeDir('yes/parent', { force: true })
    await assert.rejects(volume.makeDir('tree'), VolumeError)
    await assert.rejects(volume.writeFile('empty', 'x', { force: false }), VolumeError)
    const names = async (path, opts) => (await volume.list(path, opts)).map((e) => e.path)
    assert.deepEqual(await names('/'), ['/dir', '/empty', '/large', '/tree', '/yes'])
    assert.deepEqual(await names('/', { depth: 2 }), ['/dir', '/dir/file.txt', '/empty', '/large', '/tree', '/yes', '/yes/parent'])

    const changed = await volume.updateMetadata('empty', { uid: 7, gid: 8, mode: 0o640 })
    assert.deepEqual([changed.uid, changed.gid, changed.mode], [7, 8, 0o640])
    assert.ok(Math.abs(changed.mtime - Date.now()) < 3600_000)
    await assert.rejects(volume.updateMetadata('empty', { uid: 1e6 }), VolumeError)
    assert.equal(await volume.exists('none'), false)
    await assert.rejects(volume.readFile('none'), VolumePathNotFoundError)
    await volume.remove('dir')
    assert.equal(await volume.exists('dir/file.txt'), false)
    await assert.rejects(volume.remove('dir'), VolumePathNotFoundError)
  })
  await check('several sandboxes share a volume, and it outlives them', async () => {
    await volume.writeFile('greeting', 'from outside\n')
    const [a, b] = await Promise.all([1, 2].map(() => Sandbox.create({ volumeMounts: { '/mnt/v': volume } })))
    assert.deepEqual((await a.getInfo()).volumeMounts, [{ name, path: '/mnt/v' }])
    assert.equal(await out(a, 'cat /mnt/v/greeting; stat -c %U /mnt/v/greeting; echo from a >/mnt/v/a'), 'from outside\nuser')
    assert.equal(await out(b, 'cat /mnt/v/a; stat -c %U:%a /mnt/v/a; echo more >>/mnt/v/a'), 'from a\nuser:644')
    assert.equal(await volume.readFile('a'), 'from a\nmore\n')
    assert.equal(await out(b, 'echo mine >/mnt/v/root; stat -c %U /mnt/v/root', { user: 'root' }), 'root')
    await assert.rejects(a.commands.run('echo x >/mnt/v/root'))

    const [fork] = await a.fork()
    assert.equal(await out(fork, 'echo fork >/mnt/v/f; cat /mnt/v/a'), 'from a\nmore')
    assert.equal(await out(a, 'cat /mnt/v/f'), 'fork')
    for (const keepMemory of [true, false]) {
      await a.pause({ keepMemory })
      await b.commands.run(`echo meanwhile ${keepMemory} >/mnt/v/m`)
      await a.connect()
      assert.equal(await out(a, 'cat /mnt/v/m'), `meanwhile ${keepMemory}`)
    }
    const snap = await a.createSnapshot()
    await volume.writeFile('a', 'later\n')
    const made = await Sandbox.create(snap.snapshotId)
    assert.deepEqual((await made.getInfo()).volumeMounts, [{ name, path: '/mnt/v' }])
    assert.equal(await out(made, 'cat /mnt/v/a'), 'later')
    await assert.rejects(Sandbox.create(snap.snapshotId, { volumeMounts: { '/other': volume } }), SandboxError)

    await assert.rejects(Volume.destroy(volume.volumeId), VolumeError)
    await Promise.all([a, b, fork, made].map((s) => s.kill()))
    assert.equal(await volume.readFile('f'), 'fork\n')
    const last = await Sandbox.create({ volumeMounts: { '/home/user/v': name } })
    assert.equal(await out(last, 'cat v/f'), 'fork')
    await last.kill()
    assert.equal(await Volume.destroy(volume.volumeId), true)
    await assert.rejects(Sandbox.create(snap.snapshotId), SandboxError)
    await Sandbox.deleteSnapshot(snap.snapshotId)
  })
  await check('refuse a volume that cannot be mounted', async () => {
    await assert.rejects(Sandbox.create({ volumeMounts: { '/v': 'no-such-volume' } }), SandboxError)
    const v = await Volume.create(`${name}-bad`)
    for (const path of ['/', '/proc', 'relative', '/a/../b', '/.glasshouse']) {
      await assert.rejects(Sandbox.create({ volumeMounts: { [path]: v } }), SandboxError, path)
    }
    await Volume.destroy(v.volumeId)
    assert.deepEqual(await Volume.list(), [])
  })
}
