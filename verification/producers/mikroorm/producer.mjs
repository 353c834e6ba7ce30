// A producer with MikroORM.
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { EntitySchema, MikroORM } from '@mikro-orm/postgresql'

// A producer sets no more than the properties up to maxAttempts. None has a default, so that callq's hold.
const Call = new EntitySchema({
  name: 'Call', tableName: 'call_queue',
  properties: {
    id: { type: 'bigint', primary: true, autoincrement: true },
    queue: { type: 'text', nullable: true },
    task: { type: 'text', nullable: true },
    key: { type: 'text', nullable: true },
    callData: { type: 'json', nullable: true },
    cost: { type: 'bigint', nullable: true },
    priority: { type: 'smallint', nullable: true },
    runAt: { type: 'datetime', nullable: true },
    expiresAt: { type: 'datetime', nullable: true },
    uniqueKey: { type: 'text', nullable: true },
    maxAttempts: { type: 'integer', nullable: true },

    // To read only.
    status: { type: 'text', nullable: true },
    attempts: { type: 'integer', nullable: true },
    results: { kind: '1:m', entity: () => Attempt, mappedBy: 'call' },
  },
})
const Attempt = new EntitySchema({
  name: 'Attempt', tableName: 'call_attempts',
  properties: {
    call: { kind: 'm:1', entity: () => Call, primary: true },
    attempt: { type: 'integer', primary: true },
    outcome: { type: 'text' },
    result: { type: 'json', nullable: true },
  },
})

const orm = await MikroORM.init({
  clientUrl: process.env.DATABASE_URL, entities: [Call, Attempt], discovery: { disableDynamicFileAccess: true },
  // callq migrates its tables itself.
  schemaGenerator: { ignoreSchema: ['callq'], skipTables: ['call_queue', 'call_attempts'] },
})
const em = orm.em.fork()

const api = process.env.API_URL
const data = (path) => ({ method: 'POST', url: api + path, json: { order: 4711 } })
const call = (path, uniqueKey) => ({ queue: 'payments', key: 'acct_42', uniqueKey, callData: data(path) })

const steps = {
  version: () => ({ version: JSON.parse(readFileSync('node_modules/@mikro-orm/core/package.json')).version }),

  async create() {
    const made = em.create('Call', {
      queue: 'payments', key: 'acct_42', uniqueKey: 'order-4711',
      callData: { method: 'POST', url: api + '/create', json: { order: 4711 } },
    })
    await em.flush()
    return { id: String(made.id) }
  },

  async bulk() {
    const calls = Array.from({ length: 1000 }, (_, i) => em.create('Call', call(`/bulk/${i}`)))
    await em.flush()
    return { ids: calls.map((made) => String(made.id)) }
  },

  async transaction() {
    await em.transactional((tx) => { tx.create('Call', call('/committed')) })
    await em.transactional(async (tx) => {
      tx.create('Call', call('/rolled-back'))
      await tx.flush()
      throw new Error('not paid')
    }).catch((err) => { if (err.message !== 'not paid') throw err })
    return {}
  },

  async duplicates() {
    const three = [call('/duplicates/1', 'dup-1'), call('/duplicates/2', 'dup-1'), call('/duplicates/3', 'dup-2')]
    await em.createQueryBuilder('Call').insert(three).onConflict().ignore().execute()
    return {}
  },

  async upsert() {
    const ids = await em.transactional(async (tx) => {
      const ids = []
      for (const path of ['/upsert/1', '/upsert/2']) {
        await tx.createQueryBuilder('Call').insert(call(path, 'up-1')).onConflict().ignore().execute()
        const { id } = await tx.findOneOrFail('Call', { queue: 'payments', uniqueKey: 'up-1' }, { fields: ['id'] })
        ids.push(String(id))
      }
      return ids
    })
    return { ids }
  },

  async read(id) {
    const made = await em.findOneOrFail('Call', { id }, { populate: ['results'], orderBy: { results: { attempt: 'desc' } } })
    return { status: made.status, result: made.results[0].result }
  },

  async stale(id) {
    const made = await em.findOneOrFail('Call', { id })
    console.log(JSON.stringify({ loaded: String(made.id) }))
    await once(process.stdin, 'data')
    process.stdin.unref()
    made.priority = 9
    try {
      await em.flush()
    } catch (err) {
      return { sqlstate: err.code ?? String(err) }
    }
    return { sqlstate: 'ok' }
  },

  // What schema:update would run.
  async diff() {
    const sql = await orm.schema.getUpdateSchemaSQL()
    const tables = [...sql.matchAll(/(?:table|function|schema|trigger) (?:if (?:not )?exists )?("[^ ;]+)/gi)].map((found) => found[1])
    return { tables: [...new Set(tables)].sort() }
  },
}

const [step, ...args] = process.argv.slice(2)
console.log(JSON.stringify(await steps[step](...args)))
await orm.close()
