import fastify from 'fastify'
import rateLimit from '@fastify/rate-limit'
import { record } from './record.mjs'

const app = fastify()
app.addHook('onRequest', (request, reply, done) => record(request.raw, reply.raw, done))
await app.register(rateLimit, { max: 100, timeWindow: 1000 })
app.get('/', async () => 'ok')
await app.listen({ port: Number(process.env.PORT), host: '127.0.0.1' })
