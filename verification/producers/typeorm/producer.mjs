// A producer with TypeORM.
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import 'reflect-metadata'
import { DataSource, EntitySchema } from 'typeorm'

// What a producer may set. No column has a default, so that callq's hold.
const id = { type: 'bigint', primary: true, generated: true }
const settable = {
  queue: { type: 'text', nullable: true },
  task: { type: 'text', nullable: true },
  key: { type: 'text', nullable: true },
  callData: { type: 'jsonb', name: 'call_data', nullable: true },
  cost: { type: 'bigint', nullable: true },
  priority: { type: 'smallint', nullable: true },
  runAt: { type: 'timestamptz', name: 'run_at', nullable: true },
  expiresAt: { type: 'timestamptz', name: 'expires_at', nullable: true },
  uniqueKey: { type: 'text', name: 'unique_key', nullable: true },
  maxAttempts: { type: 'int', name: 'max_attempts', nullable: true },
}
const Call = new EntitySchema({ name: 'Call', tableName: 'call_queue', synchronize: false, columns: { id, ...settable } })

// Calls to read, with what became of them.
const MadeCall = new EntitySchema({
  name: 'MadeCall', tableName: 'call_queue', synchronize: false,
  columns: { id, ...settable, status: { type: 'text' }, attempts: { type: 'int' } },
  relations: { results: { type: 'one-to-many', target: 'Attempt', inverseSide: 'call' } },
})
const Attempt = new EntitySchema({
  name: 'Attempt', tableName: 'call_attempts', synchronize: false,
  columns: {
    callId: { type: 'bigint', name: 'call_id', primary: true },
    attempt: { type: 'int', primary: true },
    outcome: { type: 'text' },
    result: { type: 'jsonb', nullable: true },
  },
  relations: { call: { type: 'many-to-one', target: 'MadeCall', inverseSide: 'results', joinColumn: { name: 'call_id' } } },
})

const source = await new DataSource({
  type: 'postgres', url: process.env.DATABASE_URL, entities: [Call, MadeCall, Attempt],
}).initialize()
const calls = source.getRepository(Call)

const api = process.env.API_URL
const data = (path) => ({ method: 'POST', url: api + path, json: { order: 4711 } })
const call = (path, uniqueKey) => ({ queue: 'payments', key: 'acct_42', uniqueKey, callData: data(path) })

const steps = {
  version: () => ({ version: JSON.parse(readFileSync('node_modules/typeorm/package.json')).version }),

  async create() {
    const { id } = await calls.save({
      queue: 'payments', key: 'acct_42', uniqueKey: 'order-4711',
      callData: { method: 'POST', url: api + '/create', json: { order: 4711 } },
    })
    return { id }
  },

  async bulk() {
    const { identifiers } = await calls.insert(Array.from({ length: 1000 }, (_, i) => call(`/bulk/${i}`)))
    return { ids: identifiers.map((row) => row.id) }
  },

  async transaction() {
    await source.transaction((tx) => tx.save(Call, call('/committed')))
    await source.transaction(async (tx) => {
      await tx.save(Call, call('/rolled-back'))
      throw new Error('not paid')
    }).catch((err) => { if (err.message !== 'not paid') throw err })
    return {}
  },

  async duplicates() {
    const three = [call('/duplicates/1', 'dup-1'), call('/duplicates/2', 'dup-1'), call('/duplicates/3', 'dup-2')]
    await calls.createQueryBuilder().insert().values(three).orIgnore().execute()
    return {}
  },

  async upsert() {
    const ids = await source.transaction(async (tx) => {
      const ids = []
      for (const path of ['/upsert/1', '/upsert/2']) {
        await tx.createQueryBuilder().insert().into(Call).values(call(path, 'up-1')).orIgnore().execute()
        const { id } = await tx.findOne(Call, { select: { id: true }, where: { queue: 'payments', uniqueKey: 'up-1' } })
        ids.push(id)
      }
      return ids
    })
    return { ids }
  },

  async read(id) {
    const made = await source.getRepository(MadeCall).findOne({
      where: { id }, relations: { results: true }, order: { results: { attempt: 'DESC' } } })
    return { status: made.status, result: made.results[0].result }
  },

  async stale(id) {
    const made = await source.getRepository(MadeCall).findOneBy({ id })
    console.log(JSON.stringify({ loaded: made.id }))
    await once(process.stdin, 'data')
    process.stdin.unref()
    made.priority = 9
    try {
      await source.getRepository(MadeCall).save(made)
    } catch (err) {
      return { sqlstate: err.driverError?.code ?? String(err) }
    }
    return { sqlstate: 'ok' }
  },

  // What synchronize() would run.
  async diff() {
    const { upQueries } = await source.driver.createSchemaBuilder().log()
    const tables = upQueries.flatMap(({ query }) => [...query.matchAll(/TABLE "(\w+)"/g)].map((found) => found[1]))
    return { tables: [...new Set(tables)].sort() }
  },
}

const [step, ...args] = process.argv.slice(2)
console.log(JSON.stringify(await steps[step](...args)))
await source.destroy()
