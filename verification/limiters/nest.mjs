// Decorators are called as functions here: so it runs without a compiler.
import 'reflect-metadata'
import { Controller, Get, Module } from '@nestjs/common'
import { APP_GUARD, NestFactory } from '@nestjs/core'
import { ThrottlerGuard, ThrottlerModule } from '@nestjs/throttler'
import { record } from './record.mjs'

class Api {
  get() { return 'ok' }
}
Get()(Api.prototype, 'get', Object.getOwnPropertyDescriptor(Api.prototype, 'get'))
Controller()(Api)

class App {}
Module({
  imports: [ThrottlerModule.forRoot([{ ttl: 1000, limit: 100 }])],
  controllers: [Api],
  providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
})(App)

const app = await NestFactory.create(App, { logger: ['error'] })
app.use(record)
await app.listen(Number(process.env.PORT), '127.0.0.1')
