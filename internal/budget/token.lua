-- What draw.lua does of one token bucket that is neither throttled nor promised to anybody, at a third of the cost: most draws are
-- of these. Everything else falls through to it. budget.lua says what is given and kept.
local struct, given = rawget(_G, 'struct'), ARGV -- the Redis that callq dev may embed has no struct
if struct and given[3] == 'token' and given[2] == '' and #KEYS == 1 then
    local units, window, size, n, most = given[4] + 0, given[5] + 0, given[6] + 0, given[7] + 0, given[1] + 0
    local kept, fine, floor = redis.call('GET', KEYS[1]), 1048576, math.floor
    local kind, at, from, behind, level, edge, slow = 1, now, now, 0, size * fine, now, 1
    if kept then
        kind = 0
        if #kept == 57 then kind, at, from, behind, level, edge, slow = struct.unpack('<Bdddddd', kept) end
    end
    if kind == 1 and at <= now and behind == 0 and slow == 1
        and units > 0 and window > 0 and size > 0 and n > 0 and units + window + size + n < math.huge then
        local wait = 0
        level = level / fine
        if from < now then
            local gained = floor((now - from) * units / window * fine - 1) / fine
            if gained > 0 then level = level + (gained < size and gained or size) end
        else
            wait = from - now
        end
        if level > size then level = size end
        if level < n then
            local more = math.ceil((n - level + 2 / fine) * window / units)
            wait = wait + more
            if most < 0 or wait <= most then
                level = math.min(level + math.max(0, floor(more * units / window * fine - 1)) / fine, level + size, size)
            end
        end
        if most >= 0 and wait > most then return {0, wait, now, 1} end
        level, edge = level - n, edge + n
        redis.call('SET', KEYS[1], struct.pack('<Bddddddd', 1, now, now + wait, 0, floor(level * fine), edge, 1, 0), 'PX',
            math.ceil((wait + (size - level) * window / units) / 1000) + 1000)
        return {1, wait, now, 1, 1000, edge}
    end
end
