import Koa from 'koa'
import ratelimit from 'koa-ratelimit'
import { record } from './record.mjs'

new Koa()
  .use((context, next) => record(context.req, context.res, () => {}) ?? next())
  .use(ratelimit({ driver: 'memory', db: new Map(), duration: 1000, max: 100, id: (context) => context.ip }))
  .use((context) => { context.body = 'ok' })
  .listen(Number(process.env.PORT), '127.0.0.1')
