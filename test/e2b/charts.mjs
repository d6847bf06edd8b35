import assert from 'node:assert/strict'

// The scenarios of pictures, which are run in a template that has matplotlib, pandas and
// PIL: CHARTS is its name, or it is built here as people build one.
export default async function ({ sdk, check }) {
  const { Sandbox, Template } = sdk
  const png = Buffer.from('\x89PNG\r\n\x1a\n', 'latin1')
  const isPNG = (text) => Buffer.from(text ?? '', 'base64').subarray(0, 8).equals(png)
  const close = (a, b) => Math.abs(a - b) < 1e-6
  let name = process.env.CHARTS
  let box
  const run = async (code) => {
    const done = await box.runCode(code)
    assert.equal(done.error, undefined, done.error?.traceback)
    return done.results
  }
  const chart = async (code) => {
    const [result, ...more] = await run(`plt.figure()\n${code}\nplt.show()`)
    assert.ok(isPNG(result.png))
    assert.deepEqual(more, [])
    return result.chart
  }

  await check('build a template with Debian packages', async () => {
    if (!name) {
      name = 'the-charts'
      const packages = ['python3-matplotlib', 'python3-pandas', 'python3-pil']
      await Template.build(Template().fromBaseImage().aptInstall(packages, { noInstallRecommends: true }), name, { cpuCount: 2, memoryMB: 2048 })
    }
    box = await Sandbox.create(name, { timeoutMs: 900_000 })
    await box.runCode('import datetime, numpy as np, pandas as pd, matplotlib.pyplot as plt\nfrom PIL import Image', { timeoutMs: 600_000 })
    assert.deepEqual(await run('plt.get_fignums()').then(([r]) => r.text), '[]')
  })

  await check('show matplotlib figures', async () => {
    const shown = await run('x = np.linspace(0, 20, 100)\nplt.plot(x, np.sin(x))\nplt.show()\nplt.plot(x, np.cos(x))\nplt.show()')
    assert.deepEqual(shown.map((r) => [isPNG(r.png), r.text, r.isMainResult]), Array(2).fill([true, '<Figure size 640x480 with 1 Axes>', false]))
    assert.deepEqual((await run('plt.plot(x, x);')).map((r) => isPNG(r.png)), [true]) // what is left open at the end
    assert.deepEqual(await run('1').then((l) => l.map((r) => r.text)), ['1']) // and once
    const last = await run('fig, ax = plt.subplots()\nax.plot([1, 2], [1, 4])\nplt.close(fig)\nfig')
    assert.deepEqual(last.map((r) => [isPNG(r.png), r.isMainResult, r.chart.type]), [[true, true, 'line']])
    assert.deepEqual((await run('fig.show()')).map((r) => [isPNG(r.png), r.isMainResult]), [[true, false]])
    const failed = await box.runCode('plt.plot(x, x)\n1/0')
    assert.deepEqual([failed.error.name, failed.results.map((r) => isPNG(r.png))], ['ZeroDivisionError', [true]])
    const saved = await run('%matplotlib inline\nplt.plot(x, x)\nplt.savefig("/tmp/it.png")\nimport os\nprint(os.path.getsize("/tmp/it.png") > 1000)')
    assert.deepEqual(saved.map((r) => r.chart?.type), ['line'])
  })

  await check('charts: lines and points', async () => {
    const line = await chart(`dates = [datetime.date(2023, 9, 1) + datetime.timedelta(days=i) for i in range(100)]
t = np.linspace(0, 2 * np.pi, 100)
plt.plot(dates, np.sin(t), label='sin(x)')
plt.plot(dates, np.cos(t))
plt.axhline(0.5); plt.grid(True)
plt.xlabel('Time (s)'); plt.ylabel('Amplitude [Hz]'); plt.title('Waves')`)
    assert.deepEqual(
      [line.type, line.title, line.x_label, line.x_unit, line.y_label, line.y_unit, line.x_scale, line.y_scale],
      ['line', 'Waves', 'Time (s)', 's', 'Amplitude [Hz]', 'Hz', 'datetime', 'linear']
    )
    assert.ok(line.x_ticks.every((t) => !isNaN(new Date(t))) && line.y_ticks.every((t) => typeof t === 'number'), JSON.stringify(line))
    assert.equal(line.x_ticks.length, line.x_tick_labels.length)
    assert.deepEqual(line.elements.map((e) => [e.label, e.points.length, e.points[1][0]]), [['sin(x)', 100, '2023-09-02'], ['Line 1', 100, '2023-09-02']])
    assert.ok(close(line.elements[1].points[0][1], 1))
    const log = await chart("plt.plot([1, 10, 100], [1, float('nan'), 3]); plt.xscale('log')")
    assert.deepEqual([log.x_scale, log.title, log.x_label, log.x_unit, log.elements[0].points], ['log', null, null, null, [[1, 1], [10, null], [100, 3]]])
    const words = await chart("plt.plot(['a', 'b', 'c'], [3, 1, 2])")
    assert.deepEqual([words.x_scale, words.x_tick_labels, words.elements[0].points], ['categorical', ['a', 'b', 'c'], [['a', 3], ['b', 1], ['c', 2]]])
    const stamps = await chart("s = pd.Series([1, 2, 3], pd.date_range('2024-01-01', periods=3)); plt.plot(s.index, s)")
    assert.deepEqual([stamps.x_scale, stamps.elements[0].points[2]], ['datetime', ['2024-01-03T00:00:00', 3]])
    const scatter = await chart("plt.scatter([1, 2], [3, 4], label='some', c='red'); plt.scatter([5], [6], label='more'); plt.grid(True); plt.legend()")
    assert.deepEqual([scatter.type, scatter.elements], ['scatter', [{ label: 'some', points: [[1, 3], [2, 4]] }, { label: 'more', points: [[5, 6]] }]])
  })

  await check('charts: bars, pies and boxes', async () => {
    const bar = await chart("plt.bar(['A', 'B'], [100, 200]); plt.bar(['A', 'B'], [1, 1], bottom=[100, 200], label='top'); plt.xlabel('Author'); plt.ylabel('Books'); plt.title('Sales')")
    assert.deepEqual([bar.type, bar.title, bar.x_label, bar.y_label, bar.x_unit], ['bar', 'Sales', 'Author', 'Books', null])
    assert.deepEqual(bar.elements, [
      { label: 'A', group: 'Group 0', value: 100 }, { label: 'B', group: 'Group 0', value: 200 },
      { label: 'A', group: 'top', value: 1 }, { label: 'B', group: 'top', value: 1 },
    ])
    const lying = await chart("plt.barh(['A', 'B', 'C'], [1, 2, 3]); plt.xlabel('Books'); plt.ylabel('Author')")
    assert.deepEqual([lying.x_label, lying.y_label, lying.elements.map((e) => [e.label, e.value])], ['Author', 'Books', [['A', 1], ['B', 2], ['C', 3]]])
    const hist = await chart('plt.hist([1, 1, 2, 3], bins=[0.5, 1.5, 2.5, 3.5])')
    assert.deepEqual([hist.type, hist.elements.map((e) => e.value)], ['bar', [2, 1, 1]])
    const pie = await chart("plt.pie([1, 1, 2], labels=['x', 'y', 'z'], autopct='%1.1f%%', explode=(0.1, 0, 0)); plt.title('Parts')")
    assert.deepEqual([pie.type, pie.title, pie.elements], ['pie', 'Parts', [['x', 90], ['y', 90], ['z', 180]].map(([label, angle]) => ({ label, angle, radius: 1 }))])
    for (const [upright, labels] of [['True', ['Class', 'Score']], ['False', ['Class', 'Score']]]) {
      const boxes = await chart(`ax = plt.gca(); ax.boxplot([[1, 2, 3, 4, 5], [2, 2, 3, 4, 4, 30]], vert=${upright}, patch_artist=True)
(ax.set_xticklabels if ${upright} else ax.set_yticklabels)(['A', 'B'])
(ax.set_xlabel if ${upright} else ax.set_ylabel)('Class'); (ax.set_ylabel if ${upright} else ax.set_xlabel)('Score')`)
      assert.deepEqual([boxes.type, boxes.x_label, boxes.y_label], ['box_and_whisker', ...labels])
      assert.deepEqual(boxes.elements, [
        { label: 'A', min: 1, first_quartile: 2, median: 3, third_quartile: 4, max: 5, outliers: [] },
        { label: 'B', min: 2, first_quartile: 2.25, median: 3.5, third_quartile: 4, max: 4, outliers: [30] },
      ])
    }
    const one = await chart('plt.boxplot([[1, 2, 3, 4, 5]], patch_artist=True)')
    assert.deepEqual([one.elements[0].min, one.elements[0].median, one.elements[0].max], [1, 3, 5])
  })

  await check('figures with several axes, without axes, and without a chart', async () => {
    const both = await chart("plt.close('all'); fig, axs = plt.subplots(1, 3); fig.suptitle('Both'); axs[0].plot([1, 2, 3], [3, 4, 3]); axs[0].set_title('One'); axs[1].scatter([1], [2]); plt.tight_layout()")
    assert.deepEqual([both.type, both.title, both.elements.map((e) => [e.type, e.title])], ['superchart', 'Both', [['line', 'One'], ['scatter', null]]])
    assert.deepEqual((await chart("plt.imshow([[1, 2], [3, 4]]); plt.title('Seen')")), { type: 'unknown', title: 'Seen', elements: [] })
    assert.equal((await chart('plt.stackplot([1, 2, 3], [1, 2, 3])')).type, 'unknown')
    assert.equal(await chart('plt.gca()'), undefined)
    assert.equal(await chart('pass'), undefined)
    const many = await chart('plt.plot(np.arange(200_000), np.arange(200_000))')
    assert.equal(many.elements[0].points.length, 200_000)
    assert.deepEqual(many.elements[0].points.at(-1), [199_999, 199_999])
  })

  await check('show pandas tables, and return their data', async () => {
    const [table] = await run(`pd.DataFrame({'n': [1, 2], 'x': [0.5, None], 'at': pd.to_datetime(['2024-01-01', '2024-01-02']), 'of': ['a', 'é']}, index=['p', 'q'])`)
    assert.deepEqual(table.data, { n: [1, 2], x: [0.5, null], at: ['2024-01-01T00:00:00', '2024-01-02T00:00:00'], of: ['a', 'é'] })
    assert.match(table.html, /<table[^]*<th>p<\/th>/)
    assert.match(table.text, /n +x +at +of\np +1/)
    assert.equal(table.isMainResult, true)
    assert.deepEqual(table.formats().sort(), ['data', 'html'])
    const [series] = await run("pd.Series([1, 2], name='s')")
    assert.deepEqual([series.data, series.text.includes('Name: s')], [undefined, true])
    assert.deepEqual((await run("pd.DataFrame({'a': [1, 2]}).plot()")).map((r) => r.chart?.type), [undefined, 'line'])
    const [wide] = await run("pd.DataFrame(np.zeros((3, 40)))")
    assert.equal(Object.keys(wide.data).length, 40)
    assert.deepEqual((await run("{'n': np.int64(3), 'x': [np.float32(0.5)], 'on': datetime.date(2024, 1, 2)}"))[0].json, { n: 3, x: [0.5], on: '2024-01-02' })
    assert.equal((await run('np.arange(3)'))[0].text, 'array([0, 1, 2])')
  })

  await check('show PIL images', async () => {
    await run("image = Image.fromarray((np.random.rand(16, 16, 3) * 255).astype('uint8'))")
    for (const code of ['image', 'image.show()', "image.save('it.png')", 'display(image)']) {
      const shown = await run(code)
      assert.deepEqual(shown.map((r) => [isPNG(r.png), r.chart]), [[true, undefined]], code)
    }
    assert.deepEqual(await run("import io; b = io.BytesIO(); image.save(b, 'PNG')"), [])
  })
  await box.kill()
}
