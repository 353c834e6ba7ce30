-- Takes the units of all budgets or of none, all at one moment.
--   ARGV     how long that may lie ahead, in microseconds (-1: for ever); whose promise shrinks ('': nobody's)
--   returns  1, or 0: nothing was taken; the wait; now; which budget it waits for; then of each budget, if they were
--            taken, the multiplier in thousandths and the draw's mark, by which adjust.lua finds it again
local most, owner = tonumber(ARGV[1]), ARGV[2]
local budgets, wait, last = {}, 0, 1
for i = 1, #KEYS do
    local b = load(i)
    if b.unknown then return {-1, i, b.unknown} end
    local own = earliest(b, b.n) - b.now
    if own > wait then wait, last = own, i end
    budgets[i] = b
end
if most >= 0 and wait > most then return {0, wait, now, last} end
for i, b in ipairs(budgets) do
    if b.kind == 'fixed' and not after(b, b.now + wait) then return {-1, i, b.now + wait} end
end
local answer = {1, wait, now, last}
for _, b in ipairs(budgets) do
    take(b, b.n, b.now + wait)
    answer[#answer + 1] = math.floor(b.multiplier * 1000)
    answer[#answer + 1] = b.edge
    local promised = owner ~= '' and redis.call('HGET', b.promised, owner)
    if promised then
        local units, rest = string.match(promised, '^(%d+)(.*)$')
        if tonumber(units) > b.n then
            redis.call('HSET', b.promised, owner, string.format('%.0f', units - b.n) .. rest)
        else
            redis.call('HDEL', b.promised, owner)
        end
    end
end
return answer
