#!/usr/bin/env bash
# @nestjs/throttler 6.7.1 (Nest 12.5.1): once its throttlers have names, a 429 has no Retry-After.
#
# Guess: a second throttler changes what is allowed; a refusal still says in Retry-After when to come back.
# Seen: it says so in Retry-After-short, after the throttler that refused, and no HTTP client knows that header. A name becomes
# part of each header's, unless it is default.
#
# The README names all throttlers where it has more than one. Who follows it to add a second limit takes Retry-After from every
# client that heeded it.
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

// refusal tells what the second of two requests is answered where one an hour is allowed.
async function refusal(throttlers) {
  class Api { get() { return 'ok' } }
  Get()(Api.prototype, 'get', Object.getOwnPropertyDescriptor(Api.prototype, 'get'))
  Controller()(Api)
  class App {}
  Module({
    imports: [ThrottlerModule.forRoot(throttlers)],
    controllers: [Api],
    providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
  })(App)
  const app = await NestFactory.create(App, { logger: false })
  await app.listen(0, '127.0.0.1')
  await fetch(await app.getUrl())
  const answer = await fetch(await app.getUrl())
  return answer.status + ' ' + [...answer.headers.keys()].filter(name => name.startsWith('retry')).join()
}
const hour = 3_600_000
console.log('one: ' + await refusal([{ ttl: hour, limit: 1 }]))
console.log('two: ' + await refusal([{ name: 'short', ttl: hour, limit: 1 }, { name: 'long', ttl: 24 * hour, limit: 9 }]))
process.exit(0)
JS
seen=$(node seen.mjs)
echo "$seen"
want='one: 429 retry-after
two: 429 retry-after-short'
[ "$seen" = "$want" ] || { echo "this has changed; it was:"; echo "$want"; exit 1; }
