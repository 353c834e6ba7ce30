#!/usr/bin/env bash
# @nestjs/throttler 6.7.1 (Nest 12.5.1): a client a tenth above the limit loses half of its requests.
#
# Guess: of 11 requests in each ttl where 10 are allowed, 10 get through.
# Seen: the first refusal shuts for a whole ttl, though places free up meanwhile: a block lasts blockDuration, which is the ttl
# unless it is set. Then ten more get through, and it shuts again. With blockDuration 0 it is as guessed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund @nestjs/throttler@6.7.1 @nestjs/common@12.5.1 @nestjs/core@12.5.1 \
    @nestjs/platform-express@12.5.1 reflect-metadata@0.2.2 rxjs@7.8.2 >/dev/null
cat >seen.mjs <<'JS'
import 'reflect-metadata'
import { Controller, Get, Module } from '@nestjs/common'
import { APP_GUARD, NestFactory } from '@nestjs/core'
import { ThrottlerGuard, ThrottlerModule } from '@nestjs/throttler'

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))
// through sends 11 requests each 2 s for 14 s and returns how many get through.
async function through(limit) {
  class Api { get() { return 'ok' } }
  Get()(Api.prototype, 'get', Object.getOwnPropertyDescriptor(Api.prototype, 'get'))
  Controller()(Api)
  class App {}
  Module({
    imports: [ThrottlerModule.forRoot([{ ttl: 2000, limit: 10, ...limit }])],
    controllers: [Api],
    providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
  })(App)
  const app = await NestFactory.create(App, { logger: false })
  await app.listen(0, '127.0.0.1')
  const began = Date.now()
  let passed = 0
  for (let i = 0; i < 77; i++) {
    await sleep(began + i * 2000 / 11 - Date.now())
    if ((await fetch(await app.getUrl())).ok) passed++
  }
  return passed
}
const [plain, zero] = await Promise.all([through({}), through({ blockDuration: 0 })])
console.log(`of 77 get through: ${plain < 50 ? 'fewer than 50' : plain}`)
console.log(`with blockDuration 0: ${zero > 55 ? 'more than 55' : zero}`)
process.exit(0)
JS
seen=$(node seen.mjs)
echo "$seen"
want='of 77 get through: fewer than 50
with blockDuration 0: more than 55'
[ "$seen" = "$want" ] || { echo "this has changed; it was:"; echo "$want"; exit 1; }
