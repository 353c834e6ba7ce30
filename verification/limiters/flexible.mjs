import express from 'express'
import { RateLimiterMemory } from 'rate-limiter-flexible'
import { record } from './record.mjs'

const limiter = new RateLimiterMemory({ points: 100, duration: 1 })

express()
  .use(record)
  .use((request, response, next) => limiter.consume(request.ip).then(() => next(), () => response.sendStatus(429)))
  .get('/', (request, response) => response.send('ok'))
  .listen(Number(process.env.PORT), '127.0.0.1')
