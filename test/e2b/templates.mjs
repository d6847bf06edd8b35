import assert from 'node:assert/strict'
import { chmod, mkdtemp, mkdir, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

// The scenarios of templates. REGISTRY serves the image test/tree:1, and PRIVATE_REGISTRY
// does so to who is me and says mine.
export default async function ({ sdk, check }) {
  const { Sandbox, Template, BuildError, TemplateError, waitForFile } = sdk
  const name = (s) => `the-${s}`
  const dir = await mkdtemp(join(tmpdir(), 'e2b-templates-'))
  const inSandbox = async (template, f) => {
    const box = await Sandbox.create(template, { timeoutMs: 300_000 })
    try {
      return await f(box)
    } finally {
      await box.kill()
    }
  }
  const out = async (box, command) => (await box.commands.run(command)).stdout.trim()
  // counts is what the start command has counted to; the file is empty for a moment.
  const counts = async (box) => {
    for (;;) {
      const [, n] = /^hello (\d+)$/.exec(await out(box, 'cat /tmp/count')) ?? []
      if (n) return Number(n)
    }
  }
  const logged = () => {
    const lines = []
    const onBuildLogs = (e) => lines.push(e)
    return { lines, onBuildLogs, text: () => lines.map((e) => e.message).join('\n') }
  }
  const first = () =>
    Template({ fileContextPath: dir })
      .fromBaseImage()
      .setEnvs({ COLOUR: 'green', PATH: '/opt/bin:$PATH' })
      .setWorkdir('/srv/app')
      .runCmd('echo $COLOUR > colour && echo built >&2')
      .runCmd(['mkdir -p /opt/bin', "printf '#!/bin/sh\\necho tool\\n' > /opt/bin/tool", 'chmod +x /opt/bin/tool'], { user: 'root' })

  await check('build a template and create a sandbox from it', async () => {
    const log = logged()
    const info = await Template.build(first(), name('first'), { cpuCount: 1, memoryMB: 512, onBuildLogs: log.onBuildLogs })
    assert.equal(info.name, name('first'))
    assert.match(log.text(), /RUN echo \$COLOUR/)
    assert.match(log.text(), /^built$/m)
    assert.match(log.text(), /Internet/) // what the build may reach is said
    await inSandbox(name('first'), async (box) => {
      assert.equal(await out(box, 'cat colour; echo $COLOUR; pwd; tool; id -un'), 'green\ngreen\n/srv/app\ntool\nuser')
      const told = await box.getInfo()
      assert.equal(told.templateId, info.templateId)
      assert.equal(told.name, name('first'))
      assert.equal(told.cpuCount, 1)
      assert.equal(told.memoryMB, 512)
    })
    await inSandbox(info.templateId, async (box) => assert.equal(await out(box, 'cat colour'), 'green'))
  })

  await check('a second build uses the cached layers', async () => {
    const again = logged()
    await Template.build(first().runCmd('date > more'), name('second'), { onBuildLogs: again.onBuildLogs })
    assert.equal(again.text().match(/CACHED/g)?.length, 4)
    const forced = logged()
    await Template.build(first().runCmd('date > more'), name('second'), { onBuildLogs: forced.onBuildLogs, skipCache: true })
    assert.doesNotMatch(forced.text(), /CACHED/)
    const partly = logged()
    await Template.build(
      Template().fromBaseImage().setEnvs({ COLOUR: 'green', PATH: '/opt/bin:$PATH' }).skipCache().setWorkdir('/srv/app'),
      name('second'),
      { onBuildLogs: partly.onBuildLogs },
    )
    assert.equal(partly.text().match(/CACHED/g)?.length, 1)
  })

  await check('copy files into a template', async () => {
    await mkdir(join(dir, 'src/deep'), { recursive: true })
    await writeFile(join(dir, 'one.txt'), 'one')
    await writeFile(join(dir, 'src/a.js'), 'a')
    await writeFile(join(dir, 'src/deep/b.js'), 'b')
    await writeFile(join(dir, 'src/run.sh'), '#!/bin/sh\necho ran\n')
    await chmod(join(dir, 'src/run.sh'), 0o755)
    await symlink('a.js', join(dir, 'src/link'))
    const copying = () =>
      Template({ fileContextPath: dir })
        .fromBaseImage()
        .setWorkdir('/app')
        .copy('one.txt', 'named.txt')
        .copy('one.txt', 'there/')
        .copy('src', '/app/src', { user: 'root', mode: undefined })
        .copy('src/*.js', '/app/scripts')
        .copy('one.txt', '/app/tight.txt', { mode: 0o600 })
    const log = logged()
    await Template.build(copying(), name('files'), { onBuildLogs: log.onBuildLogs })
    await inSandbox(name('files'), async (box) => {
      assert.equal(await out(box, 'cat named.txt there/one.txt src/a.js src/deep/b.js scripts/a.js; src/run.sh'), 'oneoneabaran')
      assert.equal(await out(box, 'stat -c %U:%a named.txt src/a.js src/run.sh tight.txt'), 'user:644\nroot:644\nroot:755\nuser:600')
      assert.equal(await out(box, 'readlink src/link; ls scripts'), 'a.js\na.js')
    })
    const again = logged()
    await Template.build(copying(), name('files'), { onBuildLogs: again.onBuildLogs })
    assert.match(again.text(), /Skipping upload/)
    assert.equal(again.text().match(/CACHED/g)?.length, 6)
    await writeFile(join(dir, 'one.txt'), 'two')
    await Template.build(copying(), name('files'))
    await inSandbox(name('files'), async (box) => assert.equal(await out(box, 'cat named.txt'), 'two'))
  })

  await check('build a template from another, with its own users and directories', async () => {
    await Template.build(first(), name('below'))
    await Template.build(
      Template()
        .fromTemplate(name('below'))
        .setUser('worker')
        .setWorkdir('/home/worker')
        .runCmd('id -un > who')
        .makeDir('/home/worker/a/b')
        .remove('/srv/app/colour', { user: 'root' }),
      name('above'),
    )
    await inSandbox(name('above'), async (box) => {
      assert.equal(await out(box, 'id -un; pwd; cat who; echo $COLOUR; ls -d a/b; ls /srv/app | wc -l'), 'worker\n/home/worker\nworker\ngreen\na/b\n0')
    })
    await inSandbox(name('below'), async (box) => assert.equal(await out(box, 'cat colour'), 'green'))
  })

  await check('build a template from an image of a registry', async () => {
    await Template.build(Template().fromImage(`${process.env.REGISTRY}/test/tree:1`).runCmd('echo $FROM_IMAGE > /tmp/x && cp /tmp/x ~/from'), name('image'))
    await inSandbox(name('image'), async (box) => assert.equal(await out(box, 'cat ~/from; cat /of-the-image; id -un'), 'yes\nimage\nuser'))
    const e = await Template.build(Template().fromImage(`${process.env.REGISTRY}/test/none:1`), name('image')).catch((e) => e)
    assert.ok(e instanceof BuildError, String(e))
    assert.match(e.message, /none/)
    const closed = await Template.build(Template().fromImage('127.0.0.1:1/test/none:1'), name('image')).catch((e) => e)
    assert.ok(closed instanceof BuildError, String(closed))
    assert.match(closed.message, /check the network/)
  })

  await check('build a template from an image of a private registry', async () => {
    const image = `${process.env.PRIVATE_REGISTRY}/test/tree:1`
    const log = logged()
    await Template.build(Template().fromImage(image, { username: 'me', password: 'mine' }).runCmd('cat /of-the-image'), name('private'), { onBuildLogs: log.onBuildLogs })
    assert.match(log.text(), /^image$/m)
    const refused = await Template.build(Template().fromImage(image, { username: 'me', password: 'other' }), name('private')).catch((e) => e)
    assert.ok(refused instanceof BuildError, String(refused))
    assert.match(refused.message, /the credentials that were given/)
    const none = await Template.build(Template().fromAWSRegistry(image, { accessKeyId: 'A', secretAccessKey: 'b', region: 'nowhere' }), name('private')).catch((e) => e)
    assert.match(none.message, /aws needs/)
    const gcp = Template().fromGCPRegistry(image, { serviceAccountJSON: { client_email: 'a@b', private_key: 'c' } })
    assert.match((await Template.build(gcp, name('private')).catch((e) => e)).message, /the credentials that were given/)
  })

  await check('build a Dockerfile', async () => {
    await writeFile(join(dir, 'hello.txt'), 'hello\n')
    await Template.build(
      Template({ fileContextPath: dir }).fromDockerfile('FROM e2bdev/base\nENV A=b\nWORKDIR /d\nCOPY hello.txt ./\nRUN cat hello.txt > copy\nUSER user\n'),
      name('dockerfile'),
    )
    await inSandbox(name('dockerfile'), async (box) => assert.equal(await out(box, 'echo $A; cat /d/copy; id -un'), 'b\nhello\nuser'))
  })

  await check('a failed build names its step', async () => {
    const log = logged()
    const e = await Template.build(Template().fromBaseImage().runCmd('true').runCmd('echo bad >&2; exit 7'), name('broken'), { onBuildLogs: log.onBuildLogs }).catch((e) => e)
    assert.ok(e instanceof BuildError, String(e))
    assert.match(e.message, /exit status 7/)
    assert.match(e.stack, /templates\.mjs/) // the line of the step
    assert.match(log.text(), /^bad$/m)
    await assert.rejects(Sandbox.create(name('broken')), /no build with the tag/)
    const info = await Template.buildInBackground(Template().fromTemplate('never-built'), name('broken'))
    for (;;) {
      const status = await Template.getBuildStatus(info)
      if (status.status === 'error') {
        assert.equal(status.reason.step, 'base')
        assert.match(status.reason.message, /not found/)
        break
      }
      assert.ok(['waiting', 'building'].includes(status.status), status.status)
      await new Promise((r) => setTimeout(r, 50))
    }
    await assert.rejects(Template.build(Template().fromBaseImage(), name('huge'), { memoryMB: 1 << 30 }), /memory must be/)
    await assert.rejects(Template.build(Template().fromBaseImage(), 'No Name!'), /invalid template name/)
  })

  await check('a template contains the processes of its start command', async () => {
    const log = logged()
    await Template.build(
      Template()
        .fromBaseImage()
        .setEnvs({ SAYS: 'hello' })
        .setStartCmd('n=0; while :; do n=$((n+1)); echo "$SAYS $n" > /tmp/count; [ $n = 3 ] && touch /tmp/ready; sleep 0.1; done', waitForFile('/tmp/ready')),
      name('started'),
      { onBuildLogs: log.onBuildLogs },
    )
    assert.match(log.text(), /Template is ready/)
    assert.doesNotMatch(log.text(), /cannot be kept/)
    await inSandbox(name('started'), async (box) => {
      // It counts on from where it was: it was not begun anew.
      const before = await counts(box)
      assert.ok(before > 2)
      for (let i = 0; (await counts(box)) === before; i++) assert.ok(i < 200, 'it does not run')
    })
    await Template.build(Template().fromTemplate(name('started')).runCmd('touch ~/more'), name('started-more'))
    await inSandbox(name('started-more'), async (box) => assert.ok((await counts(box)) && (await out(box, 'ls ~/more'))))
    const e = await Template.build(Template().fromBaseImage().setStartCmd('exit 3', waitForFile('/never')), name('started')).catch((e) => e)
    assert.match(e.message, /start command failed: exit status 3/)
    await inSandbox(name('started'), async (box) => assert.ok(await counts(box))) // the one before stays
  })

  await check('tag builds', async () => {
    const one = await Template.build(Template().fromBaseImage().runCmd('echo 1 > ~/v'), name('tagged') + ':v1', { tags: ['stable'] })
    assert.deepEqual([...one.tags].sort(), ['stable', 'v1'])
    const two = await Template.build(Template().fromBaseImage().runCmd('echo 2 > ~/v'), name('tagged'))
    assert.deepEqual(two.tags, ['default'])
    const version = (ref) => inSandbox(ref, (box) => out(box, 'cat ~/v'))
    assert.equal(await version(name('tagged')), '2')
    assert.equal(await version(name('tagged') + ':v1'), '1')
    const assigned = await Template.assignTags(name('tagged') + ':v1', ['production', 'default'])
    assert.equal(assigned.buildId, one.buildId)
    assert.equal(await version(name('tagged')), '1')
    const tags = await Template.getTags(name('tagged'))
    assert.deepEqual(tags.map((t) => t.tag).sort(), ['default', 'production', 'stable', 'v1'])
    assert.ok(tags.every((t) => t.buildId === one.buildId && t.createdAt instanceof Date))
    await Template.removeTags(name('tagged'), ['production', 'stable'])
    assert.deepEqual((await Template.getTags(two.templateId)).map((t) => t.tag).sort(), ['default', 'v1'])
    await assert.rejects(Sandbox.create(name('tagged') + ':production'), /production/)
    await assert.rejects(Template.removeTags(name('tagged'), 'default'), TemplateError)
    await assert.rejects(Template.assignTags(name('tagged') + ':none', 'x'), TemplateError)
  })

  await check('list and delete templates; they belong to one API key', async () => {
    assert.equal(await Template.exists(name('first')), true)
    assert.equal(await Template.aliasExists(name('none')), false)
    assert.equal(await Template.exists('base'), true)
    const other = { apiKey: process.env.OTHER_KEY }
    assert.equal(await Template.exists(name('first'), other), false)
    await assert.rejects(Sandbox.create(name('first'), other), /not found/)
    await assert.rejects(Template.getTags(name('first'), other), TemplateError)
    const log = logged() // another's layers are not one's own
    await Template.build(first(), name('first'), { ...other, onBuildLogs: log.onBuildLogs })
    assert.doesNotMatch(log.text(), /CACHED/)
    const call = (method, path, key) => fetch(process.env.E2B_API_URL + path, { method, headers: { 'X-API-Key': key } })
    const list = await (await call('GET', '/templates', process.env.E2B_API_KEY)).json()
    assert.ok(list.some((t) => t.names.includes(name('first')) && t.buildStatus === 'ready' && t.spawnCount > 0))
    assert.equal((await call('DELETE', `/templates/${name('first')}`, process.env.OTHER_KEY)).status, 204) // its own
    await inSandbox(name('first'), async (box) => assert.equal(await out(box, 'cat colour'), 'green'))
    assert.equal((await call('DELETE', `/templates/${name('first')}`, process.env.E2B_API_KEY)).status, 204)
    assert.equal((await call('DELETE', `/templates/${name('first')}`, process.env.E2B_API_KEY)).status, 404)
    assert.equal(await Template.exists(name('first')), false)
    await assert.rejects(Sandbox.create(name('first')), /not found/)
    await inSandbox(name('above'), async (box) => assert.equal(await out(box, 'cat who'), 'worker')) // built of the same layers
  })

  await rm(dir, { recursive: true })
}
