-- What is kept of requests whose answers are fetched later, or asked for again; results.py has the rule, and specifies it.
--
-- KEYS  1 results  hash: id -> 'w' (waits), 'd' (done) or 'r' (refused), a token of 16 bytes, and what is not read here
--       2 over     zset: id -> when it was over, or counts as lost, seconds
--       3 bytes    string: bytes of the values of 1
-- ARGV  1 begin, finish, read or remove   2 id   3 entries at the most   4 their bytes   5 seconds that one is kept when it is over
--       6 seconds after which one that waits is lost   7 begin, finish: the value; remove: the token that it must have ('' : any)
-- Returns { what came of it, the value that is there, when it is over, now }: of begin 'begun', 'there' or 'full'; of finish 'done',
--         'none' or 'full'; of read and remove 'there' or 'none'

local what, id = ARGV[1], ARGV[2]
local most, most_bytes, life, patience = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000

local function text(seconds) return string.format('%.17g', seconds) end

local function drop(one)
  local value = redis.call('HGET', KEYS[1], one)
  if value then
    redis.call('HDEL', KEYS[1], one)
    redis.call('INCRBY', KEYS[3], -#value)
  end
  redis.call('ZREM', KEYS[2], one)
end

local function put(value, over)
  redis.call('HSET', KEYS[1], id, value)
  redis.call('ZADD', KEYS[2], text(over), id)
  redis.call('INCRBY', KEYS[3], #value)
  -- Who asks no more leaves nothing behind.
  for i = 1, 3 do redis.call('EXPIRE', KEYS[i], math.ceil(patience + life)) end
end

-- Entries that were over by then, the first of them first, so many at the most.
local function forget(over, number)
  local found = redis.call('ZRANGE', KEYS[2], '-inf', text(over), 'BYSCORE', 'LIMIT', 0, number)
  for _, one in ipairs(found) do drop(one) end
  return #found
end

local function held() return tonumber(redis.call('GET', KEYS[3]) or '0') end

local there = redis.call('HGET', KEYS[1], id)
local over = there and tonumber(redis.call('ZSCORE', KEYS[2], id) or '0')

if what == 'read' then
  if not there or over <= now - life then return { 'none', '', '', text(now) } end
  return { 'there', there, text(over), text(now) }
elseif what == 'remove' then
  if not there or (ARGV[7] ~= '' and string.sub(there, 2, 17) ~= ARGV[7]) then return { 'none', '', '', text(now) } end
  drop(id)
  return { 'there', '', '', text(now) }
end

local value = ARGV[7]
if what == 'begin' then
  while forget(now - life, 100) == 100 do end
  there = redis.call('HGET', KEYS[1], id)
  if there then
    local state = string.sub(there, 1, 1)
    if state ~= 'r' and not (state == 'w' and over <= now) then return { 'there', there, text(over), text(now) } end
    drop(id)
  end
  while redis.call('HLEN', KEYS[1]) >= most or held() + #value > most_bytes do
    if forget(now, 1) == 0 then return { 'full', '', '', text(now) } end
  end
  put(value, now + patience)
  return { 'begun', '', '', text(now) }
end

-- finish
if not there or string.sub(there, 1, 17) ~= 'w' .. string.sub(value, 2, 17) then return { 'none', '', '', text(now) } end
drop(id)
while held() + #value > most_bytes do
  if forget(now, 1) == 0 then
    put(there, over)
    return { 'full', '', '', text(now) }
  end
end
put(value, now)
return { 'done', '', '', text(now) }
