// A producer with Prisma.
import { once } from 'node:events'
import { PrismaPg } from '@prisma/adapter-pg'
import { Prisma, PrismaClient } from '@prisma/client'

// Prisma reads every field of what it has inserted. A producer may read all but call_data.
const prisma = new PrismaClient({
  adapter: new PrismaPg({ connectionString: process.env.DATABASE_URL }),
  omit: { call: { callData: true } },
})

const api = process.env.API_URL
const data = (path) => ({ method: 'POST', url: api + path, json: { order: 4711 } })
const call = (path, uniqueKey) => ({ queue: 'payments', key: 'acct_42', uniqueKey, callData: data(path) })

const steps = {
  version: () => ({ version: Prisma.prismaVersion.client }),

  async create() {
    const { id } = await prisma.call.create({ data: {
      queue: 'payments', key: 'acct_42', uniqueKey: 'order-4711',
      callData: { method: 'POST', url: api + '/create', json: { order: 4711 } },
    } })
    return { id }
  },

  async bulk() {
    const many = Array.from({ length: 1000 }, (_, i) => call(`/bulk/${i}`))
    const rows = await prisma.call.createManyAndReturn({ data: many })
    return { ids: rows.map((row) => row.id) }
  },

  async transaction() {
    await prisma.$transaction((tx) => tx.call.create({ data: call('/committed') }))
    await prisma.$transaction(async (tx) => {
      await tx.call.create({ data: call('/rolled-back') })
      throw new Error('not paid')
    }).catch((err) => { if (err.message !== 'not paid') throw err })
    return {}
  },

  async duplicates() {
    const three = [call('/duplicates/1', 'dup-1'), call('/duplicates/2', 'dup-1'), call('/duplicates/3', 'dup-2')]
    await prisma.call.createMany({ data: three, skipDuplicates: true })
    return {}
  },

  async upsert() {
    const ids = await prisma.$transaction(async (tx) => {
      const ids = []
      for (const path of ['/upsert/1', '/upsert/2']) {
        await tx.call.createMany({ data: [call(path, 'up-1')], skipDuplicates: true })
        const { id } = await tx.call.findFirst({ where: { queue: 'payments', uniqueKey: 'up-1' } })
        ids.push(id)
      }
      return ids
    })
    return { ids }
  },

  async read(id) {
    const made = await prisma.call.findUnique({
      where: { id: BigInt(id) }, include: { results: { orderBy: { attempt: 'desc' }, take: 1 } } })
    return { status: made.status, result: made.results[0].result }
  },

  async stale(id) {
    const { id: loaded, ...fields } = await prisma.call.findUnique({ where: { id: BigInt(id) } })
    console.log(JSON.stringify({ loaded: String(loaded) }))
    await once(process.stdin, 'data')
    process.stdin.unref()
    try {
      await prisma.call.update({ where: { id: loaded }, data: { ...fields, priority: 9 } })
    } catch (err) {
      return { sqlstate: err.meta?.driverAdapterError?.cause?.originalCode ?? err.cause?.originalCode ?? err.code ?? String(err) }
    }
    return { sqlstate: 'ok' }
  },

  diff: () => ({ skip: 'prisma migrate diff needs an engine that npm does not bring' }),
}

const [step, ...args] = process.argv.slice(2)
const said = await steps[step](...args)
console.log(JSON.stringify(said, (_, value) => typeof value === 'bigint' ? String(value) : value))
await prisma.$disconnect()
