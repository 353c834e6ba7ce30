// The peers in Node.js that make HTTP calls under a limit. The bench in the folder above starts this program as
//
//   PEER insert API RATE N   insert the calls 1 to N, and end. Call n requests API/n
//   PEER work API RATE       work until SIGTERM, and then print how often the handler ran
//
// DATABASE_URL and REDIS_URL say where. What it cannot do ends it, and says why on stderr.
import http from 'node:http'

const [name, verb, api, rate, calls] = process.argv.slice(-5)
const limit = Number(rate) // a second
const slots = 25 // of a worker
const processes = 4
const task = 'call'
const databaseURL = process.env.DATABASE_URL
const redis = { path: decodeURIComponent(new URL(process.env.REDIS_URL).pathname), maxRetriesPerRequest: null }
const list = (first, count, make) => Array.from({ length: count }, (_, i) => make(first + i))

const agent = new http.Agent({ keepAlive: true })
let ran = 0

// call requests the API's path of a call.
const call = n => new Promise((resolve, reject) => {
  const request = http.get(api + n, { agent }, response => {
    response.resume()
    response.on('end', () => response.statusCode === 200 ? resolve() : reject(new Error(`status ${response.statusCode}`)))
  })
  request.on('error', reject)
})

// Of each peer: insert adds calls, work starts the worker and gives what stops it, close ends what insert has opened.

// BullMQ, whose workers have a limiter that all processes share.
async function bull () {
  const { Queue, Worker } = await import('bullmq')
  let queue
  return {
    insert (first, count) {
      queue ??= new Queue(task, { connection: redis })
      return queue.addBulk(list(first, count, n => ({ name: task, data: { n } })))
    },
    close: () => queue.close(),
    async work () {
      const worker = new Worker(task, job => { ran++; return call(job.data.n) }, {
        connection: redis, concurrency: slots, limiter: { max: limit, duration: 1000 },
      })
      worker.on('error', err => console.error('BullMQ:', err))
      return () => worker.close()
    },
  }
}

// graphile-worker has no limiter, and no answer that delays a job. So a handler counts the second's calls in Redis, and
// adds those above the limit again, for the next second.
async function graphile () {
  const { Logger, makeWorkerUtils, run } = await import('graphile-worker')
  const { Redis } = await import('ioredis')
  const logger = new Logger(() => () => {})
  let utils
  return {
    async insert (first, count) {
      if (!utils) {
        utils = await makeWorkerUtils({ connectionString: databaseURL, logger })
        await utils.migrate()
      }
      await utils.addJobs(list(first, count, n => ({ identifier: task, payload: { n } })))
    },
    close: () => utils.release(),
    async work () {
      const counts = new Redis(redis)
      const handle = async ({ n }, { addJob }) => {
        ran++
        const second = Math.floor(Date.now() / 1000)
        const key = `api:${second}`
        const [[, count]] = await counts.multi().incr(key).expire(key, 10).exec()
        if (count > limit) {
          await addJob(task, { n }, { runAt: new Date((second + 1) * 1000) })
          return
        }
        await call(n)
      }
      const runner = await run({
        connectionString: databaseURL, concurrency: slots, noHandleSignals: true, logger, taskList: { [task]: handle },
      })
      return async () => {
        await runner.stop()
        counts.disconnect()
      }
    },
  }
}

// pg-boss has no limiter either. The nearest is that each process fetches its part of a second's calls, each second.
async function boss () {
  const { PgBoss } = await import('pg-boss')
  const boss = new PgBoss({ connectionString: databaseURL })
  boss.on('error', err => console.error('pg-boss:', err))
  await boss.start()
  const stop = () => boss.stop()
  return {
    async insert (first, count) {
      await boss.createQueue(task)
      await boss.insert(task, list(first, count, n => ({ data: { n } })))
    },
    close: stop,
    async work () {
      await boss.work(task, { batchSize: Math.floor(limit / processes), pollingIntervalSeconds: 1 }, jobs =>
        Promise.all(jobs.map(job => { ran++; return call(job.data.n) })))
      return stop
    },
  }
}

const peer = await { BullMQ: bull, 'graphile-worker + Redis': graphile, 'pg-boss batches': boss }[name]()

if (verb === 'insert') {
  const batch = 1000
  for (let first = 1; first <= Number(calls); first += batch) {
    await peer.insert(first, Math.min(batch, Number(calls) - first + 1))
  }
  await peer.close()
  process.exit(0)
}

const ended = new Promise(resolve => process.once('SIGTERM', resolve))
const stop = await peer.work()
await ended
await stop()
console.log(ran)
process.exit(0)
