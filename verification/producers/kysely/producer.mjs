// A producer with Kysely.
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { Kysely, PostgresDialect } from 'kysely'
import pg from 'pg'

const db = new Kysely({ dialect: new PostgresDialect({ pool: new pg.Pool({ connectionString: process.env.DATABASE_URL }) }) })

const api = process.env.API_URL
const data = (path) => ({ method: 'POST', url: api + path, json: { order: 4711 } })
const call = (path, unique_key) => ({ queue: 'payments', key: 'acct_42', unique_key, call_data: data(path) })

const steps = {
  version: () => ({ version: JSON.parse(readFileSync('node_modules/kysely/package.json')).version }),

  async create() {
    const { id } = await db.insertInto('call_queue').values({
      queue: 'payments', key: 'acct_42', unique_key: 'order-4711',
      call_data: { method: 'POST', url: api + '/create', json: { order: 4711 } },
    }).returning('id').executeTakeFirstOrThrow()
    return { id }
  },

  async bulk() {
    const many = Array.from({ length: 1000 }, (_, i) => call(`/bulk/${i}`))
    const rows = await db.insertInto('call_queue').values(many).returning('id').execute()
    return { ids: rows.map((row) => row.id) }
  },

  async transaction() {
    await db.transaction().execute((tx) => tx.insertInto('call_queue').values(call('/committed')).execute())
    await db.transaction().execute(async (tx) => {
      await tx.insertInto('call_queue').values(call('/rolled-back')).execute()
      throw new Error('not paid')
    }).catch((err) => { if (err.message !== 'not paid') throw err })
    return {}
  },

  async duplicates() {
    const three = [call('/duplicates/1', 'dup-1'), call('/duplicates/2', 'dup-1'), call('/duplicates/3', 'dup-2')]
    await db.insertInto('call_queue').values(three).onConflict((conflict) => conflict.doNothing()).execute()
    return {}
  },

  async upsert() {
    const ids = await db.transaction().execute(async (tx) => {
      const ids = []
      for (const path of ['/upsert/1', '/upsert/2']) {
        await tx.insertInto('call_queue').values(call(path, 'up-1')).onConflict((conflict) => conflict.doNothing()).execute()
        const { id } = await tx.selectFrom('call_queue').select('id')
          .where('queue', '=', 'payments').where('unique_key', '=', 'up-1').executeTakeFirstOrThrow()
        ids.push(id)
      }
      return ids
    })
    return { ids }
  },

  async read(id) {
    const { status } = await db.selectFrom('call_queue').select('status').where('id', '=', id).executeTakeFirstOrThrow()
    const { result } = await db.selectFrom('call_attempts').select('result').where('call_id', '=', id)
      .orderBy('attempt', 'desc').limit(1).executeTakeFirstOrThrow()
    return { status, result }
  },

  async stale(id) {
    const { id: loaded, ...fields } = await db.selectFrom('call_queue').selectAll().where('id', '=', id).executeTakeFirstOrThrow()
    console.log(JSON.stringify({ loaded }))
    await once(process.stdin, 'data')
    process.stdin.unref()
    try {
      await db.updateTable('call_queue').set({ ...fields, priority: 9 }).where('id', '=', loaded).execute()
    } catch (err) {
      return { sqlstate: err.code }
    }
    return { sqlstate: 'ok' }
  },

  diff: () => ({ skip: 'it has no models' }),
}

const [step, ...args] = process.argv.slice(2)
console.log(JSON.stringify(await steps[step](...args)))
await db.destroy()
