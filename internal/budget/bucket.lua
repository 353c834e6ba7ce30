-- A bucket is three numbers: at, when it was last drawn on; from, when what was granted last may be used,
-- which lies ahead while draws wait; and level, what it holds at that moment. It gains from then on, so a
-- rule that changes changes what is gained, not what was granted. Moments are microseconds; the level is in
-- units of 2^-20, rounded down at each step by more than a number of 53 bits can err: so it is never more
-- than the rule allows.
local units, window, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local fine = 1048576

-- gained is what comes in within d microseconds, at most a bucket.
local function gained(d)
    return math.min(math.max(0, math.floor(d * units / window * fine - 1)) / fine, burst)
end

-- bucket is the state at now: from is not before it.
local function bucket()
    local kept = redis.call('HMGET', KEYS[1], 'at', 'from', 'level')
    local at, from, level = tonumber(kept[1]), tonumber(kept[2]), tonumber(kept[3])
    if not (at and from and level) then -- nobody has drawn for so long that it is full
        return now, burst
    end
    level = level / fine
    if now < at then -- the clock was set back: as if no time had passed since
        from = from - (at - now)
    end
    if from < now then
        level, from = level + gained(now - from), now
    end
    return from, math.min(level, burst)
end
