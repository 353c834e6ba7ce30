// The peers that are written for Node.js. The bench in the folder above starts this program with a peer's name and the
// URL of a fresh database, and writes commands to it, a line each. Each is answered by a line, once it is done:
//
//   (the start)  "ready": the schema is there
//   singles N P  insert N calls, one each time, by P producers
//   bulk N       insert N calls, as many each time as is best for the peer
//   start N      start the workers; the answer is how many calls were handled, once these are N
//   stop         no more comes; the answer is how many calls were handled
//
// The end of the commands ends it. What it cannot do ends it too, and says why on stderr.
import { createInterface } from 'node:readline'

const [name, url] = process.argv.slice(-2)
const connections = 20 // of a pool, as every peer has them
const task = 'noop'
const payload = n => ({ n, method: 'POST', url: 'https://api.example.com/v1/messages' })
const list = (first, count, make) => Array.from({ length: count }, (_, i) => make(first + i))

// graphile-worker, tuned: it fetches 500 jobs ahead, and batches the completions that come meanwhile.
async function graphile () {
  const { Logger, makeWorkerUtils, run } = await import('graphile-worker')
  const logger = new Logger(() => () => {})
  const pool = { connectionString: url, maxPoolSize: connections, logger }
  const utils = await makeWorkerUtils(pool)
  await utils.migrate()
  return {
    batch: 1000,
    insert: n => utils.addJob(task, payload(n)),
    insertMany: (first, count) => utils.addJobs(list(first, count, n => ({ identifier: task, payload: payload(n) }))),
    work: handle => run({
      ...pool,
      concurrency: 100,
      noHandleSignals: true,
      taskList: { [task]: handle },
      preset: { worker: { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } },
    }),
  }
}

// pg-boss, wide: two workers that fetch 1,000 jobs each, and at once the next where these were all there was room for.
async function boss () {
  const { PgBoss } = await import('pg-boss')
  const boss = new PgBoss({ connectionString: url, max: connections })
  boss.on('error', err => console.error('pg-boss:', err))
  await boss.start()
  await boss.createQueue(task)
  const wide = { batchSize: 1000, localConcurrency: 2, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 }
  return {
    batch: 5000,
    insert: n => boss.send(task, payload(n)),
    insertMany: (first, count) => boss.insert(task, list(first, count, n => ({ data: payload(n) }))),
    work: handle => boss.work(task, wide, jobs => Promise.all(jobs.map(handle))),
  }
}

const peer = await { 'graphile-worker': graphile, 'pg-boss': boss }[name]()
let handled = 0

const commands = {
  async singles (n, producers) {
    let next = 0
    await Promise.all(list(0, producers, async () => { while (next < n) await peer.insert(next++) }))
    return 'done'
  },
  async bulk (n) {
    for (let first = 0; first < n; first += peer.batch) {
      await peer.insertMany(first, Math.min(peer.batch, n - first))
    }
    return 'done'
  },
  async start (n) {
    const { promise, resolve } = Promise.withResolvers()
    await peer.work(async () => { if (++handled === n) resolve() })
    await promise
    return handled
  },
  async stop () { return handled },
}

const lines = createInterface({ input: process.stdin })
lines.on('close', () => process.exit(0)) // whatever is under way: who asked for it has gone
console.log('ready')
for await (const line of lines) {
  const [command, ...numbers] = line.split(' ')
  console.log(await commands[command](...numbers.map(Number)))
}
