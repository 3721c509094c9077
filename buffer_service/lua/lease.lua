-- Takes, renews or gives back the lease of the one who plans. KEYS: lease. ARGV: name, milliseconds (0 gives it back).
-- Answers 1 where it is the name's from now on, else 0.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return 0
end
if tonumber(ARGV[2]) == 0 then
  redis.call('DEL', KEYS[1])
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
