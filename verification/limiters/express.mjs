import express from 'express'
import { rateLimit } from 'express-rate-limit'
import { record } from './record.mjs'

express()
  .use(record)
  .use(rateLimit({ windowMs: 1000, limit: 100 }))
  .get('/', (request, response) => response.send('ok'))
  .listen(Number(process.env.PORT), '127.0.0.1')
