-- What all scripts begin with. Each is given, after TIME as now in microseconds:
--
--   KEYS  each budget's state. In the same slot of a cluster, and with the same name, are KEY:log of a sliding window,
--         and KEY:promised, what is promised of it to attempts
--   ARGV  two of the script's own; then of each budget five: kind (token, sliding or fixed); units and window, in
--         microseconds; size: of a token bucket what it holds, of a sliding window how wide the buckets of its log
--         are, of a fixed one moments at which windows begin, in order; and how many units are asked for
--
-- and returns integers. {-1, i, t}: of budget i the window that t lies in is not among those given; nothing was done.
--
-- A state is at, the budget's clock when it was last used; from, when what was granted last may be used, which lies
-- ahead while draws wait; behind, how far Redis's clock is behind the budget's since it was set back; and level at from:
-- what a token bucket holds, or what is used of a window. edge is, of a token bucket, all that was ever granted; of a
-- sliding window the end of its log's last bucket; of a fixed one its end. slow is the multiplier at slowed.
--
-- Levels are in units of 2^-20, rounded by more than a number of 53 bits can err: so no rule is exceeded.
local fine = 1048576
local recovery, least, apart = 60000000, 1 / 16, 1000000 -- of the multiplier; see throttle.lua

-- encode and decode a state.
local struct = rawget(_G, 'struct')
local kinds = {'token', 'sliding', 'fixed', token = 1, sliding = 2, fixed = 3}
local function encode(kind, ...)
    if struct then return struct.pack('<Bddddddd', kinds[kind], ...) end
    return string.format('%d %.0f %.0f %.0f %.0f %.0f %.6f %.0f', kinds[kind], ...) -- not tostring, which keeps 14 digits
end
local function decode(kept)
    if struct and #kept ~= 57 then return nil end
    local all = {}
    if struct then
        all = {struct.unpack('<Bddddddd', kept)}
    else
        for text in string.gmatch(kept, '%S+') do all[#all + 1] = tonumber(text) end
    end
    return kinds[all[1]], all[2], all[3], all[4], all[5], all[6], all[7], all[8]
end

-- gained is what a token bucket gains within d microseconds, at most what it holds.
local function gained(b, d)
    return math.min(math.max(0, math.floor(d * b.rate / b.window * fine - 1)) / fine, b.size)
end

-- after is the end of the fixed window that t lies in; nil: it is not known.
local function after(b, t)
    local begun = false
    for text in string.gmatch(b.size, '%d+') do
        local edge = tonumber(text)
        if edge > t then return begun and edge or nil end
        begun = true
    end
end

-- entries yields the log of a sliding window, first what was granted first: place, end of the bucket, units.
local function entries(b)
    local at, list = 0, {}
    return function()
        if b.fresh then return nil end
        if at % 16 == 0 then list = redis.call('LRANGE', b.log, at, at + 15) end
        local text = list[at % 16 + 1]
        if not text then return nil end
        at = at + 1
        local edge, units = string.match(text, '^(%d+) (%d+)$')
        return at, tonumber(edge), tonumber(units)
    end
end

-- load reads the i-th budget as it is now: from is not before that.
local function load(i)
    local a = 5 * i - 2
    local b = {state = KEYS[i], log = KEYS[i] .. ':log', promised = KEYS[i] .. ':promised', kind = ARGV[a], units = tonumber(ARGV[a + 1]),
        window = tonumber(ARGV[a + 2]), size = ARGV[a + 3], n = tonumber(ARGV[a + 4])}
    if b.kind ~= 'fixed' then b.size = tonumber(b.size) end
    for _, x in ipairs({b.units or 0, b.window or 0, b.n or 0, b.kind == 'fixed' and 1 or b.size or 0}) do
        if not (x > 0 and x < math.huge) then error('units, window, size and what is asked for must be numbers above 0') end
    end
    b.at, b.from, b.behind, b.level, b.edge, b.slow, b.slowed = now, now, 0, 0, now, 1, 0
    local kept, kind = redis.call('GET', b.state), nil
    if kept then
        local level, edge
        kind, b.at, b.from, b.behind, level, edge, b.slow, b.slowed = decode(kept)
        if not kind then error('no budget is kept there: ' .. b.state) end
        if kind == b.kind then b.level, b.edge = level / fine, edge end
    end
    b.fresh = kind ~= b.kind
    b.now = now + b.behind
    local back = b.now < b.at
    if back and b.kind == 'fixed' then -- the calendar's windows are by Redis's clock: what was used counts in this one
        b.from = b.from - (b.at - b.now)
    elseif back then -- as if no time had passed since
        b.now, b.behind = b.at, b.at - now
    end
    b.multiplier = math.min(1, b.slow + math.max(0, b.now - b.slowed) / recovery)
    b.rate = b.units * b.multiplier
    b.most = math.max(1, math.floor(b.rate)) -- of a window
    local from = math.max(b.from, b.now)
    if b.kind == 'token' then
        b.most = b.size
        if b.fresh then
            b.level = b.size
        else
            b.level = math.min(b.level + (from > b.from and gained(b, from - b.from) or 0), b.size)
        end
    elseif b.kind == 'fixed' and (b.fresh or back or from >= b.edge) then
        if not back then b.level = 0 end
        b.edge = after(b, from)
        b.unknown = not b.edge and from or nil
    end
    b.from = from
    return b
end

-- earliest is when n units may be used. A multiplier makes no draw impossible.
local function earliest(b, n)
    if b.kind == 'token' then
        if b.level >= n then return b.from end -- else the first microsecond at which it is sure to hold n
        return b.from + math.ceil((n - b.level + 2 / fine) * b.window / b.rate)
    end
    local most = math.max(b.most, n)
    if b.level + n <= most then return b.from end
    if b.kind == 'fixed' then return b.edge end
    local level, t = b.level, b.from
    for _, edge, units in entries(b) do
        level, t = level - units, math.max(t, edge + b.window)
        if level + n <= most then break end
    end
    return t
end

-- save keeps a budget for as long as it differs from one that was never used.
local function save(b)
    local left = b.edge + b.window - b.now
    if b.kind == 'token' then
        left = b.from - b.now + math.max(0, b.size - b.level) * b.window / b.rate
    elseif b.kind == 'fixed' then
        left = b.edge - b.now
    end
    left = string.format('%.0f', math.ceil(math.max(left, (1 - b.multiplier) * recovery) / 1000) + 1000)
    redis.call('SET', b.state, encode(b.kind, b.now, b.from, b.behind, math.floor(b.level * fine), b.edge, b.slow, b.slowed), 'PX', left)
    if b.kind == 'sliding' then redis.call('PEXPIRE', b.log, left) end
end

-- take takes n units at t, which is not before from. A fixed window's next edge is known.
local function take(b, n, t)
    if b.kind == 'token' then
        if t > b.from then b.level = math.min(b.level + gained(b, t - b.from), b.size) end
        b.level, b.edge = b.level - n, b.edge + n
    elseif b.kind == 'fixed' then
        if t >= b.edge then b.level, b.edge = 0, after(b, t) end
        b.level = b.level + n
    else
        if b.fresh then redis.call('DEL', b.log) end
        local gone = 0
        for place, edge, units in entries(b) do
            if edge + b.window > t then break end
            b.level, gone = b.level - units, place
        end
        if gone > 0 then redis.call('LTRIM', b.log, gone, -1) end
        local edge, last, units = math.ceil(t / b.size) * b.size, nil, nil
        local text = redis.call('LINDEX', b.log, -1)
        if text then last, units = string.match(text, '^(%d+) (%d+)$') end
        if last and tonumber(last) >= edge then -- later, if buckets were wider
            b.edge = tonumber(last)
            redis.call('LSET', b.log, -1, string.format('%.0f %.0f', b.edge, units + n))
        else
            b.edge = edge
            redis.call('RPUSH', b.log, string.format('%.0f %.0f', edge, n))
        end
        b.level = b.level + n
    end
    b.from = t
    save(b)
end
