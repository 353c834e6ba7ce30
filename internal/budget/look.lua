local from, level = bucket()
if from > now then
    return {0, from - now}
end
return {math.floor(level), 0}
