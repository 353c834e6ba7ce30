local n, most = tonumber(ARGV[4]), tonumber(ARGV[5])
local from, level = bucket()
if level < n then -- wait for the first microsecond at which it is sure to hold n
    local wait = math.ceil((n - level + 2 / fine) * window / units)
    from, level = from + wait, math.min(level + gained(wait), burst)
end
level = math.max(0, level - n)
local wait = from - now
if most >= 0 and wait > most then -- nothing is reserved
    return {0, wait, now}
end
-- Not tostring, which keeps 14 digits.
redis.call('HSET', KEYS[1], 'at', string.format('%.0f', now), 'from', string.format('%.0f', from),
    'level', string.format('%.0f', level * fine))
local full = wait + (burst - level) * window / units
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.ceil(full / 1000) + 1000))
return {1, wait, now}
