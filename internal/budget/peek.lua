-- Says how budgets are, and changes nothing. ARGV[1] and ARGV[2] are of no use.
--   returns  now; then of each budget: units that are free; for how long the last of the draws that wait does; the
--            multiplier in thousandths; units that are promised; how long until besides these as many are free as are asked for
local answer = {now}
for i = 1, #KEYS do
    local b = load(i)
    if b.unknown then return {-1, i, b.unknown} end
    local free, promised = b.level, 0
    if b.kind ~= 'token' then
        for _, edge, units in entries(b) do
            if edge + b.window > b.from then break end
            free = free - units
        end
        free = b.most - free
    end
    for _, value in ipairs(redis.call('HVALS', b.promised)) do
        promised = promised + tonumber(string.match(value, '^%d+'))
    end
    if b.from > b.now then free = 0 end
    for _, n in ipairs({math.max(0, math.floor(free)), b.from - b.now, math.floor(b.multiplier * 1000), promised,
        earliest(b, math.min(b.n + promised, math.max(b.most, b.n))) - b.now}) do
        answer[#answer + 1] = n
    end
end
return answer
