import assert from 'node:assert/strict'

const rejects = (promise, kind, text) =>
  assert.rejects(promise, (e) => {
    assert.ok(e instanceof kind, `${e?.constructor?.name}: ${e?.message}, want ${kind.name}`)
    assert.match(e.message, text)
    return true
  })

const base = process.env.E2B_SANDBOX_URL

export default async function ({ sdk, check }) {
  const { Sandbox, NotFoundError, SandboxError, TimeoutError } = sdk

  let box
  const run = async (code, opts) => {
    const done = await box.runCode(code, opts)
    assert.equal(done.error, undefined, done.error?.traceback)
    return done
  }
  const text = async (code, opts) => (await run(code, opts)).text

  await check('run code that uses the state of earlier code', async () => {
    box = await Sandbox.create({ envs: { COLOUR: 'blue' }, timeoutMs: 300_000 })
    assert.equal((await box.getInfo()).templateId, 'code-interpreter-v1')
    const first = await run('x = 1')
    assert.deepEqual([first.results, first.text, first.executionCount], [[], undefined, 1])
    const second = await run('x += 1; x')
    assert.deepEqual([second.text, second.results.length, second.results[0].isMainResult, second.executionCount], ['2', 1, true, 2])
    assert.equal(await text('_ + 1'), '3')
    assert.equal(await text('x;'), undefined)
    assert.equal(await text("'words'"), 'words')
    assert.equal(await text('import asyncio\nawait asyncio.sleep(0, "awaited")'), 'awaited')
    assert.equal(await text('    def f():\n        return 4\n    f()'), '4')
    assert.equal(await text('list(range(40))'), `[${Array.from({ length: 40 }, (_, i) => i).join(',\n ')}]`)
    assert.equal((await run('!echo {x} from a shell')).logs.stdout.join(''), '2 from a shell\n')
  })
  await check('run code as the user, in a directory, with environment variables', async () => {
    assert.equal(await text('import os, getpass; f"{getpass.getuser()} {os.getcwd()} {os.environ[\'COLOUR\']} {os.environ[\'E2B_SANDBOX_ID\']}"'), `user /home/user blue ${box.sandboxId}`)
    assert.equal(await text('os.environ["COLOUR"], os.environ["OWN"]', { envs: { COLOUR: "r'ed\n", OWN: 'x' } }), `("r'ed\\n", 'x')`)
    assert.equal(await text('os.environ["COLOUR"], os.environ.get("OWN")'), "('blue', None)")
  })
  await check('contexts are isolated from each other', async () => {
    const [usual] = await box.listCodeContexts()
    assert.deepEqual([usual.language, usual.cwd], ['python', '/home/user'])
    const context = await box.createCodeContext({ cwd: '/tmp' })
    assert.deepEqual([context.language, context.cwd], ['python', '/tmp'])
    assert.deepEqual((await box.listCodeContexts()).find((c) => c.id === context.id), context)
    assert.equal(await text('import os; here = os.getcwd(); here', { context }), '/tmp')
    assert.equal((await box.runCode('x', { context })).error.name, 'NameError')
    assert.equal(await text('x'), '2')
    await box.restartCodeContext(context)
    assert.equal((await box.runCode('here', { context })).error.name, 'NameError')
    const both = await Promise.all([text('import time; time.sleep(0.3); 1', { context }), text('2'), text('3', { context })])
    assert.deepEqual(both, ['1', '2', '3'])
    const turns = await Promise.all(Array.from({ length: 10 }, (_, i) => text(`turn = globals().get("turn", 0) + 1; time.sleep(0.01); turn`, { context })))
    assert.deepEqual(turns.map(Number).sort((a, b) => a - b), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    await box.removeCodeContext(context)
    assert.ok(!(await box.listCodeContexts()).some((c) => c.id === context.id))
    await rejects(box.runCode('1', { context }), NotFoundError, new RegExp(`Context ${context.id} not found`))
    await rejects(box.removeCodeContext('no-such'), NotFoundError, /Context no-such not found/)
    await rejects(box.restartCodeContext('no-such'), NotFoundError, /not found/)
    await rejects(box.createCodeContext({ cwd: '/no/such' }), SandboxError, /500/)
  })
  await check('stream output, results and errors of running code', async () => {
    const seen = []
    const done = await box.runCode(
      'import sys, time\nprint("one")\ndisplay("shown")\nopen("said", "w").close()\nwhile os.path.exists("said"): time.sleep(0.01)\nprint("two", file=sys.stderr)\n"result"\n1/0',
      {
        onStdout: (m) => seen.push(['out', m.line, m.error]),
        onStderr: (m) => seen.push(['err', m.line, m.error]),
        onError: (e) => seen.push(['error', e.name]),
        onResult: async (r) => {
          seen.push(['result', r.text, r.isMainResult])
          await box.files.remove('said') // it waits for that
        },
      }
    )
    assert.deepEqual(seen, [['out', 'one\n', false], ['result', 'shown', false], ['err', 'two\n', true], ['error', 'ZeroDivisionError']])
    assert.deepEqual(done.logs, { stdout: ['one\n'], stderr: ['two\n'] })
    const parts = []
    await run('for i in range(3):\n  print(i, end=" ")\n  while not os.path.exists(f"go{i}"): time.sleep(0.01)', {
      onStdout: async (m) => box.files.write(`go${parts.push(m.line) - 1}`, ''),
    })
    assert.deepEqual(parts, ['0 ', '1 ', '2 '])
    const ünï = 'ünï ✓ 😀 '.repeat(3000)
    assert.equal((await run(`print(${JSON.stringify(ünï)})`)).logs.stdout.join(''), ünï + '\n')
    const order = []
    const note = (m) => order.push(m.line)
    await run('for i in range(100): print(i); print(-i, file=sys.stderr)', { onStdout: note, onStderr: note })
    assert.equal(order.join(''), Array.from({ length: 100 }, (_, i) => `${i}\n${i && -i}\n`).join(''))
    const many = await run('for i in range(20000): print(i)')
    assert.equal(many.logs.stdout.join(''), Array.from({ length: 20000 }, (_, i) => `${i}\n`).join(''))
  })
  await check('output of programs that the code starts', async () => {
    const done = await run('import subprocess\nprint("a")\nsubprocess.run("echo b; echo c >&2", shell=True)\nos.write(1, b"d\\n")\nprint("e");')
    assert.deepEqual([done.logs.stdout.join(''), done.logs.stderr.join('')], ['a\nb\nd\ne\n', 'c\n'])
  })
  await check('failed code reports its error', async () => {
    const { error, results } = await box.runCode('def broken():\n    return [][3]\n1\nbroken()')
    assert.deepEqual([error.name, error.value, results], ['IndexError', 'list index out of range', []])
    assert.match(error.traceback, /Traceback[^]*line 4, in <module>\n    broken\(\)\n[^]*line 2, in broken\n    return \[\]\[3\]/)
    assert.ok(!error.traceback.includes('<interpreter>'), error.traceback)
    const syntax = (await box.runCode('def f(:')).error
    assert.deepEqual([syntax.name, /def f\(:\n +\^/.test(syntax.traceback)], ['SyntaxError', true])
    assert.equal((await box.runCode('exit(3)')).error.name, 'SystemExit')
    const died = await box.runCode('os.kill(os.getpid(), 9)')
    assert.deepEqual([died.error.name, /signal 9/.test(died.error.value)], ['UnexpectedEndOfExecution', true])
    assert.equal((await box.runCode('x')).error.name, 'NameError') // begun anew
    assert.equal(await text('import os, time; 1'), '1')
  })
  await check('values have all their representations', async () => {
    await run(`import base64
class Picture:
    def _repr_png_(self): return b"\\x89PNG..."
    def _repr_jpeg_(self): return "anBlZw=="
    def _repr_html_(self): return "<b>é</b>"
    def _repr_markdown_(self): return "**b**"
    def _repr_svg_(self): return "<svg/>"
    def _repr_latex_(self): return "$x$"
    def _repr_json_(self): return {"n": [1, float("nan")]}
    def _repr_javascript_(self): return "f()"
    def _repr_pdf_(self): return b"%PDF"
    def __repr__(self): return "Picture"
class Bundle:
    def _repr_mimebundle_(self, include=None, exclude=None): return {"text/plain": "plain", "text/html": "<i>", "x/own": "mine"}
class Quiet:
    def _repr_html_(self): raise ValueError("not today")`)
    const [r] = (await run('Picture()')).results
    assert.deepEqual(
      [r.text, Buffer.from(r.png, 'base64').toString('latin1'), r.jpeg, r.html, r.markdown, r.svg, r.latex, r.json, r.javascript, Buffer.from(r.pdf, 'base64').toString()],
      ['Picture', '\x89PNG...', 'anBlZw==', '<b>é</b>', '**b**', '<svg/>', '$x$', { n: [1, null] }, 'f()', '%PDF']
    )
    assert.deepEqual(r.formats().sort(), ['html', 'javascript', 'jpeg', 'json', 'latex', 'markdown', 'pdf', 'png', 'svg'])
    const bundle = (await run('Bundle()')).results[0]
    assert.deepEqual([bundle.text, bundle.html, bundle.raw.extra], ['plain', '<i>', { 'x/own': 'mine' }])
    const quiet = await run('Quiet()')
    assert.ok(quiet.results[0].text.includes('Quiet object') && quiet.logs.stderr.join('').includes('not today'))
    assert.deepEqual((await run('[1, {"a": None}]')).results[0].json, [1, { a: null }])
    const shown = await run('for i in range(2): display(i, Picture())\n"last"')
    assert.deepEqual(shown.results.map((r) => [r.text, r.isMainResult]), [['0', false], ['Picture', false], ['1', false], ['Picture', false], ['last', true]])
    const html = (await run('from IPython.display import HTML, Image\ndisplay(HTML("<p>"))\nImage(data=b"\\x89PNG")')).results
    assert.deepEqual([html[0].html, Buffer.from(html[1].png, 'base64').toString('latin1')], ['<p>', '\x89PNG'])
  })
  await check('code is interrupted at its timeout, and its context remains', async () => {
    await run('kept = 7')
    // Python ends the program if the interrupt finds it waiting, so it has time to begin.
    await rejects(box.runCode('import subprocess; subprocess.run(["sleep", "600"])', { timeoutMs: 3000 }), TimeoutError, /timed out/)
    assert.equal(await text('kept'), '7')
    await rejects(box.runCode('while True: pass', { timeoutMs: 500 }), TimeoutError, /timed out/)
    assert.equal(await text('kept'), '7')
    assert.equal((await box.commands.run('pgrep -x sleep || echo none')).stdout, 'none\n')
  })
  await check('run code in other languages', async () => {
    assert.deepEqual((await run('X=1; cd /tmp; echo $FOO', { language: 'bash', envs: { FOO: "it's" } })).logs.stdout, ["it's\n"])
    assert.deepEqual((await run('echo $X $PWD [$FOO]', { language: 'bash' })).logs.stdout, ['1 /tmp []\n'])
    const failed = await box.runCode('ls /no/such', { language: 'bash' })
    assert.ok(failed.error.value === '2' && failed.logs.stderr.join('').includes('/no/such'), JSON.stringify(failed))
    await run('const z = { a: [1] }', { language: 'js' })
    const z = (await run('console.log(process.env.FOO); await Promise.resolve(z)', { language: 'javascript', envs: { FOO: 'bar' } })).results[0]
    assert.deepEqual([z.text, z.json], ['{ a: [ 1 ] }', { a: [1] }])
    const thrown = (await box.runCode('throw new TypeError("bad")', { language: 'js' })).error
    assert.deepEqual([thrown.name, thrown.value], ['TypeError', 'bad'])
    assert.ok((await box.listCodeContexts()).some((c) => c.language === 'javascript'))
    const typed = await box.runCode('const n: number = 3; interface A { a: string }; n', { language: 'typescript' })
    assert.match(typed.text ?? typed.error.value, /^3$|node 22.13 is needed, or the package typescript/)
    for (const language of ['r', 'java']) {
      const r = await fetch(`${base}/execute`, {
        method: 'POST', body: JSON.stringify({ code: '1', language }),
        headers: { 'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': '49999', 'X-Access-Token': box.envdAccessToken },
      })
      assert.deepEqual([r.status, (await r.text()).includes(`no such kernel named ${language}: there are python`)], [500, true])
    }
    await rejects(box.runCode('1', { language: 'cobol' }), SandboxError, /500/)
    await rejects(box.createCodeContext({ language: 'cobol' }), SandboxError, /500/)
  })
  await check('running code needs the token of its sandbox', async () => {
    const closed = await Sandbox.create({ network: { allowPublicTraffic: false } })
    assert.equal((await closed.runCode('1')).text, '1')
    const ask = (of, headers, path = '/execute') =>
      fetch(base + path, { method: 'POST', body: '{"code": "1"}', headers: { 'E2b-Sandbox-Id': of.sandboxId, 'E2b-Sandbox-Port': '49999', ...headers } }).then((r) => r.status)
    assert.equal(await ask(box, {}), 401)
    assert.equal(await ask(box, { 'X-Access-Token': closed.envdAccessToken }), 401)
    assert.equal(await ask(box, { 'X-Access-Token': box.envdAccessToken }), 200)
    assert.equal(await ask(closed, { 'X-Access-Token': closed.envdAccessToken }), 403)
    assert.equal(await ask(closed, {}, '/contexts'), 403)
    assert.equal(await ask(closed, { 'X-Access-Token': closed.envdAccessToken, 'E2B-Traffic-Access-Token': closed.trafficAccessToken }), 200)
    const byPath = await fetch(`${base}/ports/49999-${box.sandboxId}/contexts`)
    assert.equal((await byPath.json())[0].language, 'python')
    await closed.kill()
  })
  await check('state of code survives a pause and a fork', async () => {
    await run('made = ["here"]')
    await box.pause()
    await box.connect()
    assert.equal(await text('made'), "['here']")
    const [fork] = await box.fork({ count: 1 })
    assert.equal((await fork.runCode('made.append("there"); made')).text, "['here', 'there']")
    assert.equal(await text('made'), "['here']")
    await fork.kill()
  })
  await check('a sandbox at its timeout finishes its requests, then pauses', async () => {
    const lazy = await Sandbox.create({ lifecycle: { onTimeout: 'pause', autoResume: true } })
    await lazy.runCode('import os, time; kept = 7; os.path.exists("go")')
    const asked = lazy.runCode('while not os.path.exists("go"): time.sleep(0.01)\n"answered"')
    await lazy.setTimeout(1000)
    const { endAt } = await lazy.getInfo()
    while (Date.now() < endAt.getTime() + 500) await new Promise((r) => setTimeout(r, 50))
    assert.equal((await lazy.getInfo()).state, 'running')
    await lazy.files.write('go', '') // comes after its time: it stays as if it had been woken
    assert.equal((await asked).text, 'answered')
    assert.ok((await lazy.getInfo()).endAt - Date.now() > 200_000)
    const last = lazy.runCode('open("begun", "w").close(); time.sleep(2); "last"')
    while (!(await lazy.files.exists('begun'))) await new Promise((r) => setTimeout(r, 20))
    await lazy.setTimeout(500)
    assert.equal((await last).text, 'last')
    for (const end = Date.now() + 20_000; (await lazy.getInfo()).state !== 'paused'; await new Promise((r) => setTimeout(r, 50))) assert.ok(Date.now() < end)
    const all = await Promise.all(Array.from({ length: 4 }, () => lazy.runCode('kept')))
    assert.deepEqual(all.map((r) => r.text), Array(4).fill('7'))
    await lazy.kill()
  })
  await box.kill()
}
